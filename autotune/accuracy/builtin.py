"""Agreement of two servers' greedy answers: what is damage, and what is ordinary nondeterminism.

Kernels whose sums depend on the batch make a server's greedy answers differ from launch to launch: where two tokens
are nearly as likely, either may come. So answers are compared position by position, as long as both servers have
generated the same (`compare`), and what a fresh launch of the baseline differs from its first one (the null) says what
is ordinary. A finalist fails (`judge`) on any of three counts:

1. wrong tokens: its first differing token is one that the baseline holds for much less likely than its own, by more
   than twice the largest difference of log-probabilities within the null, and `WRONG` of them are found. Nondeterminism
   flips near-ties alone, damage any token.
2. divergence: alone, under load, or on long contexts its answers diverge more often per position than `ORDINARY` times
   as often as the null's. Both counts are taken for Poisson, so that the test of their ratio is a binomial one.
3. loss: the baseline's tokens have become less likely by `LOSS` nats per token more than in the null, a paired t-test
   over contexts.

Without log-probabilities the second is all there is. `benchmarks/accuracy.py` measures how often each is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import binom, t

from autotune.accuracy.asking import Answer
from autotune.accuracy.tasks import Interval, score

Answers = Mapping[str, Answer | None]
"""By the context's name; None where the server could not take the context."""

WRONG = 3
LEAST_SEVERITY = 0.3
"""Nats: below, a token that differs is a near-tie on any engine."""
ORDINARY = 1.5
DIVERGES = 5e-4
"""Level of the test of each group's divergences; three groups are tested."""
LOSS = 0.02
LOSES = 5e-4
"""Level of the test of the loss."""
_WORST_LOSS = 5.0
"""Nats that one token may count for in a mean."""
_FEWEST = 8
"""Contexts that both servers must have answered."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two answers to a context first differ.

    Attributes:
        severity: by how much the reference holds the other's token for less likely, nats, at least; None: not known.
    """

    context: str
    position: int
    severity: float | None


@dataclass(slots=True)
class Agreement:
    """What two sets of answers have in common, over the contexts that both servers took.

    Attributes:
        positions: compared, by the group of their context.
        divergences: by group.
        largest: the largest difference of log-probabilities of a token on which both agree.
        losses: by context, mean loss per position of the log-probabilities of the reference's tokens, nats.
    """

    positions: dict[str, int] = field(default_factory=dict)
    divergences: dict[str, list[Divergence]] = field(default_factory=dict)
    largest: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    contexts: int = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Positions compared, and those that agree."""
        total = sum(self.positions.values())
        return total, total - sum(map(len, self.divergences.values()))

    @property
    def score(self) -> tuple[float, Interval]:
        """The share of positions that agree, in percent, with its 95 % interval."""
        total, same = self.counts
        return score([True] * same + [False] * (total - same))

    def severities(self) -> list[float]:
        """Of all divergences of which it is known."""
        known = (one.severity for rows in self.divergences.values() for one in rows)
        return [severity for severity in known if severity is not None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a server's answers pass.

    Attributes:
        threshold: the agreement in percent below which divergence alone would fail.
        reasons: why it fails, a sentence each; empty where it passes.
        worst: the divergences that tell most, the worst first.
    """

    agreement: Agreement
    threshold: float
    reasons: tuple[str, ...]
    worst: tuple[Divergence, ...]


def compare(reference: Answers, other: Answers, groups: Mapping[str, str]) -> Agreement:
    """Compare two servers' answers position by position, each up to its first difference.

    Args:
        groups: of the contexts.
    """
    agreement = Agreement()
    for name, group in groups.items():
        mine, theirs = reference.get(name), other.get(name)
        if mine is None or theirs is None or not mine.tokens:
            continue
        agreement.contexts += 1
        loss, position = 0.0, 0
        agreement.divergences.setdefault(group, [])
        for position, own in enumerate(mine.tokens):
            token = theirs.tokens[position] if position < len(theirs.tokens) else None
            if token is not None and token.text == own.text:
                if own.logprob is not None and token.logprob is not None:
                    agreement.largest = max(agreement.largest, abs(own.logprob - token.logprob))
                    loss += own.logprob - token.logprob
                continue
            lost = _severity(own.logprob, own.others, None if token is None else token.text)
            agreement.divergences[group].append(Divergence(name, position, lost))
            loss += min(lost or 0.0, _WORST_LOSS)
            break
        agreement.positions[group] = agreement.positions.get(group, 0) + position + 1
        agreement.losses[name] = loss / (position + 1)
    return agreement


def _severity(own: float | None, others: Mapping[str, float] | None, text: str | None) -> float | None:
    """How much less likely another token is; of one that is not among the likeliest, than the last of these.

    An answer that ends early (no text) says nothing of how likely that was.
    """
    if own is None or not others or text is None:
        return None
    return own - others.get(text, min(others.values()))


def judge(reference: Answers, finalist: Answers, nulls: Sequence[Agreement], groups: Mapping[str, str]) -> Verdict:
    """Whether a finalist answers as the baseline does, by what the baseline's own launches differ.

    Args:
        reference: answers of the baseline's first launch.
        nulls: agreement of these with those of its further launches, at least one.
    """
    mine = compare(reference, finalist, groups)
    worst = sorted(
        (one for rows in mine.divergences.values() for one in rows),
        key=lambda one: (-(one.severity or 0.0), one.position),
    )
    if mine.contexts < _FEWEST:
        reason = f"it answered {mine.contexts} of {len(groups)} contexts, too few to compare"
        return Verdict(mine, 100.0, (reason,), ())
    reasons = [*_wrong(nulls, mine), *_diverges(nulls, mine), *_loses(nulls, mine)]
    return Verdict(mine, _threshold(nulls, mine), tuple(reasons), tuple(worst))


def least_wrong(nulls: Sequence[Agreement]) -> float:
    """The severity in nats from which on a token counts as wrong: what no divergence of the null comes near."""
    largest = [one.largest for one in nulls]
    return max(LEAST_SEVERITY, 2 * max(largest), *(1.5 * s for one in nulls for s in one.severities()))


def _wrong(nulls: Sequence[Agreement], mine: Agreement) -> list[str]:
    least = least_wrong(nulls)
    wrong = [severity for severity in mine.severities() if severity > least]
    if len(wrong) < WRONG:
        return []
    share = 100 * len(wrong) / mine.counts[0]
    return [
        f"{len(wrong)} tokens ({share:.2f} % of {mine.counts[0]}) are ones that the baseline holds for less likely by "
        f"more than {least:.1f} nats, which none is between its own launches"
    ]


def _diverges(nulls: Sequence[Agreement], mine: Agreement) -> list[str]:
    where = {"alone": "sent alone", "load": "under load", "long": "on long contexts"}
    reasons = []
    for group, rows in mine.divergences.items():
        ours = mine.positions[group]
        theirs = sum(one.positions.get(group, 0) for one in nulls)
        usual = sum(len(one.divergences.get(group, ())) for one in nulls)
        if theirs and _odds_of_more(len(rows), ours, usual, theirs) < DIVERGES:
            rates = f"{100 * len(rows) / ours:.2f} % of positions, {100 * usual / theirs:.2f} % between"
            reasons.append(f"answers {where[group]} diverge at {rates} launches of the baseline")
    return reasons


def _odds_of_more(count: int, positions: int, usual: int, usual_positions: int) -> float:
    """The odds of so many divergences or more, if they come at most `ORDINARY` times as often as the null's.

    One divergence is added to the null: that none was seen does not mean that there are none.
    """
    share = ORDINARY * positions / (ORDINARY * positions + usual_positions)
    return float(binom.sf(count - 1, count + usual + 1, share))


def _threshold(nulls: Sequence[Agreement], mine: Agreement) -> float:
    """The least agreement over all groups that is no more divergence than ordinary, in percent."""
    ours, theirs = mine.counts[0], sum(one.counts[0] for one in nulls)
    usual = sum(one.counts[0] - one.counts[1] for one in nulls)
    count = 0
    while count < ours and _odds_of_more(count + 1, ours, usual, theirs) >= DIVERGES:
        count += 1
    return 100 * (1 - count / ours)


def _loses(nulls: Sequence[Agreement], mine: Agreement) -> list[str]:
    both = [name for name in mine.losses if all(name in one.losses for one in nulls)]
    differences = [mine.losses[name] - sum(one.losses[name] for one in nulls) / len(nulls) for name in both]
    if len(both) < _FEWEST:
        return []
    mean = sum(differences) / len(both)
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / (len(both) - 1) / len(both))
    if mean <= LOSS or (spread and t.sf((mean - LOSS) / spread, len(both) - 1) >= LOSES):
        return []
    return [f"the baseline's tokens lose {mean:.3f} nats each, beyond what they lose between its launches"]
