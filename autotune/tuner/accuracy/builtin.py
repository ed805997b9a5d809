"""Agreement of two servers' greedy answers: distinguish damage from normal nondeterminism.

Kernels whose sums depend on the batch make a server's greedy answers differ from launch to launch:
where two tokens are nearly as likely, either may come. Another engine, layout or kernel differs so
as well. So answers are compared position by position, as long as both servers have generated the
same (`compare`). Nondeterminism flips near-ties alone, damage any token: a first differing token is
*wrong* where the baseline holds it for less likely than its own by `SEVERE` nats or more. What
fresh launches of the baseline differ from its first one (the null) is ordinary. A finalist fails
(`judge`)

1. where wrong tokens, sent alone, under load or on long contexts, are more than a share of
   `TOLERATED_WRONG` and `ORDINARY` times the null's explain, a Poisson test;
2. where the baseline's tokens have become less likely by `LOSS` nats each beyond the null, a t-test
  over contexts.

Without log-probabilities every difference counts in the first, and `TOLERATED_DIVERGENCE` is what
is tolerated. `benchmarks/tuner/accuracy.py` measures how often this is right.

Every context is a text of ours, so each position up to the first differing token is teacher-forced:
both servers have read the same. Texts are cut at several places, which gives many short answers:
one that has diverged tells no more. Long contexts are a ledger of made-up entries and a question
about one of them, the needle; they share their beginning, so that a prefix cache reads it once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

import yaml

from autotune.base import FloatDict, Interval, StringMap, Strings, beside

from .asking import Answer, Token, words

CUTS = (0.25, 0.5, 0.75, 1.0)
SHORT_TOKENS, LONG_TOKENS = 32, 48
"""Generated tokens for each context."""
ENTRIES = 560
"""Lines of the ledger: 3/4 of it exceed 8192 tokens for any tokenizer with at most five characters
per token."""
NEEDLES = 16
ALONE_SHORT, ALONE_LONG = 12, 4
"""Contexts of each length that are sent one at a time."""
Answers = Mapping[str, Answer | None]
"""Answers by the context's name; None if the server could not take the context."""
SEVERE = 1.0
TOLERATED_WRONG, TOLERATED_DIVERGENCE = 3e-4, 1e-2
"""Tolerated share of positions beyond the null: tokens may differ because of another kernel."""
ORDINARY = 1.5
WRONG_LEVEL = 2e-3
"""Error rate of the test of each group."""
LOSS = 0.02
LOSS_LEVEL = 5e-4
_WORST_LOSS = 5.0
"""Upper bound of one token's loss, nats, so that a single token does not decide the mean."""
_FEWEST = 8
"""Contexts that both servers must have answered."""


class Context(NamedTuple):
    """One text to continue, in a group (``alone``, ``load`` or ``long``) that is compared
    separately."""

    name: str
    group: str
    prompt: str
    max_tokens: int
    alone: bool

    @property
    def body(self) -> dict[str, object]:
        """Return the body of the request."""
        return {"prompt": self.prompt, "max_tokens": self.max_tokens}


@lru_cache(maxsize=1)
def contexts() -> tuple[Context, ...]:
    """Return all contexts: those sent alone first, then those under load."""
    prompts = yaml.safe_load(beside(__file__, "prompts.yaml"))
    short = [
        Context(name, "load", text, SHORT_TOKENS, False) for name, text in _short(prompts["texts"])
    ]
    long = [
        Context(name, "long", text, LONG_TOKENS, False) for name, text in _long(prompts["ledger"])
    ]
    few_short = short[3 :: len(short) // ALONE_SHORT]
    few_long = long[:: NEEDLES // ALONE_LONG]
    return (
        *(one._replace(name=f"alone {one.name}", group="alone", alone=True) for one in few_short),
        *(one._replace(name=f"alone {one.name}", alone=True) for one in few_long),
        *short,
        *long,
    )


def _short(texts: Sequence[StringMap]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        whole = text["text"].rstrip()
        for cut in CUTS:
            place = int(cut * len(whole))
            # At the end of a word, where there are spaces; Chinese and Japanese have none.
            end = len(whole) if cut == 1 else whole.rfind(" ", 0, place)
            yield f"{text['kind']} {number} {cut:g}", whole[: end if end > 20 else place]


def _entry(number: int, ledger: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return an entry of the ledger, and the question for its needle up to the start of the
    answer."""
    place, person, work = (
        ledger[key][number * step % len(ledger[key])]
        for key, step in (("places", 5), ("people", 3), ("work", 1))
    )
    return (
        f"Entry {number:04d}. At {number * 11 % 24:02d}:{number * 17 % 60:02d} {person} {work} at the "
        f"{place}; level {11 + number * 7 % 83} cm.\n",
        f"\nQuestion: what does entry {number:04d} say, word for word?\nAnswer: Entry {number:04d}. At",
    )


def _long(ledger: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    entries = [_entry(number, ledger)[0] for number in range(1, ENTRIES + 1)]
    text = "".join(["Ledger of the harbour watch.\n", *entries])
    for number in range(NEEDLES):
        # From the first entries to the last ones.
        needle = 1 + number * (ENTRIES - 1) // (NEEDLES - 1)
        yield f"needle {needle}", text + _entry(needle, ledger)[1]


class Divergence(NamedTuple):
    """The first difference of two answers; for the reference the other token is `severity` nats
    less likely."""

    context: str
    position: int
    severity: float | None

    @property
    def counts(self) -> bool:
        """True if it is not known to be a near-tie."""
        return self.severity is None or self.severity >= SEVERE


@dataclass
class Agreement:
    """Agreement of two sets of answers, over the contexts taken by both servers.

    Attributes:
        positions: compared, by the group of their context.
        divergences: by group.
        losses: by context, mean loss per position of the log-probabilities of the reference's
            tokens, nats.
        logprobs: whether both servers told them.
    """

    positions: dict[str, int]
    divergences: dict[str, list[Divergence]]
    losses: FloatDict
    logprobs: bool

    def counted(self, group: str) -> int:
        """Return the divergences of a group that are no near-ties."""
        return sum(one.counts for one in self.divergences.get(group, ()))

    @property
    def total(self) -> int:
        """Return the number of compared positions."""
        return sum(self.positions.values())

    @property
    def score(self) -> tuple[float, Interval]:
        """Return the share of positions that agree or are near-ties, in percent, with its 95 %
        interval."""
        other = sum(map(self.counted, self.divergences))
        return score([True] * (self.total - other) + [False] * other)


class Verdict(NamedTuple):
    """Verdict on a server's answers, compared with those of the baseline.

    Attributes:
        null: the agreement of the baseline with itself.
        threshold: the agreement in percent, over all groups, below which it fails in any case.
        reasons: why it fails, a sentence each; empty where it passes.
        worst: the divergences that count, the worst first.
    """

    agreement: Agreement
    null: Agreement
    threshold: float
    reasons: Strings
    worst: tuple[Divergence, ...]


def compare(
    reference: Answers, other: Answers, groups: StringMap, logprobs: bool = True
) -> Agreement:
    """Compare two servers' answers position by position up to the first difference; `groups` are
    the contexts'."""
    agreement = Agreement({}, {}, {}, logprobs)
    for name, group in groups.items():
        mine = reference.get(name)
        theirs = other.get(name)
        if mine is None or theirs is None or not mine.tokens:
            continue
        tokens, others, known = _in_one_form(mine, theirs, logprobs)
        agreement.logprobs &= known
        loss = 0.0
        position = 0
        rows = agreement.divergences.setdefault(group, [])
        for position, own in enumerate(tokens):
            token = others[position] if position < len(others) else None
            if token is None or token.text != own.text:
                severity = _severity(own, token) if known else None
                rows.append(Divergence(name, position, severity))
                loss += min(severity or 0.0, _WORST_LOSS)
                break
            loss += (own.logprob or 0.0) - (token.logprob or 0.0)
        agreement.positions[group] = agreement.positions.get(group, 0) + position + 1
        agreement.losses[name] = loss / (position + 1)
    return agreement


def _in_one_form(
    mine: Answer, theirs: Answer, logprobs: bool
) -> tuple[Sequence[Token], Sequence[Token], bool]:
    """Return the tokens of both, and whether both have log-probabilities; else the complete words
    of both."""
    if logprobs and all(token.logprob is not None for token in (*mine.tokens, *theirs.tokens)):
        return mine.tokens, theirs.tokens, True
    # An answer is cut at a number of tokens, and so within a word.
    own = words(mine.text)
    return own[: max(1, len(own) - 1)], words(theirs.text), False


def _severity(own: Token, other: Token | None) -> float | None:
    """Return by how much less likely the other token is, at least; None: the end of the answer.

    A token that is not among the likeliest is less likely than the last of these; the end of the
    answer, whose name is unknown, than the second.
    """
    others = {text: value for text, value in (own.others or {}).items() if text != own.text}
    if own.logprob is None or not others:
        return None
    least = min(others.values())
    return own.logprob - (others.get(other.text, least) if other else max(others.values()))


def judge(
    reference: Answers,
    finalist: Answers,
    alike: Sequence[tuple[Answers, Answers]],
    groups: StringMap,
) -> Verdict:
    """Return whether a finalist's answers agree with the baseline's, given the variation of the
    baseline's launches.

    Args:
        reference: answers of the baseline's first launch.
        alike: pairs of answers between which nothing but ordinary nondeterminism lies, at least
            one: of the baseline's first launch and a further one.
    """
    mine = compare(reference, finalist, groups)
    nulls = [compare(one, other, groups, mine.logprobs) for one, other in alike]
    if len(mine.losses) < _FEWEST:
        reason = f"it answered {len(mine.losses)} of {len(groups)} contexts, too few to compare"
        return Verdict(mine, nulls[0], 100.0, (reason,), ())
    counted = [one for rows in mine.divergences.values() for one in rows if one.counts]
    counted.sort(key=lambda one: (-(one.severity or 0.0), one.position))
    reasons = _wrong(nulls, mine)
    if mine.logprobs and (loss := _loss(nulls, mine)) is not None:
        same = "" if reasons else "the answers are the same except for near-ties; "
        reasons.append(f"{same}they are less certain ({loss:.3f} nats per token; limit {LOSS:g})")
    usual = sum(one.counted(group) for one in nulls for group in one.divergences)
    most = _most(mine, mine.total, usual, sum(one.total for one in nulls))
    return Verdict(mine, nulls[0], 100 * (1 - most / mine.total), tuple(reasons), tuple(counted))


def _wrong(nulls: Sequence[Agreement], mine: Agreement) -> list[str]:
    where = {"alone": "sent alone", "load": "under load", "long": "on long contexts"}
    kind = "different from the baseline's"
    if mine.logprobs:
        kind = f"wrong by {SEVERE:g} nats or more"
    reasons = []
    for group, ours in mine.positions.items():
        theirs = sum(one.positions.get(group, 0) for one in nulls)
        usual = sum(one.counted(group) for one in nulls)
        count = mine.counted(group)
        if theirs and count > _most(mine, ours, usual, theirs):
            reasons.append(
                f"{count} of {ours} tokens {where[group]} are {kind} ({100 * count / ours:.2f} %, "
                f"between launches of the baseline {100 * usual / theirs:.2f} %)"
            )
    return reasons


def _most(mine: Agreement, positions: int, usual: int, usual_positions: int) -> int:
    """Return the differences explained by chance: of the tolerated share, and of `ORDINARY` times
    the null's."""
    from scipy.stats import poisson  # a second, which only this check should cost

    tolerated = TOLERATED_WRONG if mine.logprobs else TOLERATED_DIVERGENCE
    null = ORDINARY * (usual + 1.64 * math.sqrt(usual)) / max(usual_positions, 1)
    return int(poisson.isf(WRONG_LEVEL, positions * (tolerated + null)))


def _loss(nulls: Sequence[Agreement], mine: Agreement) -> float | None:
    """Return nats per token lost by the baseline's tokens, beyond the loss between its launches;
    None: no more."""
    from scipy.stats import ttest_1samp

    both = [name for name in mine.losses if all(name in one.losses for one in nulls)]
    if len(both) < _FEWEST:
        return None
    differences = [mine.losses[name] - fmean(one.losses[name] for one in nulls) for name in both]
    mean = fmean(differences)
    if mean <= LOSS:
        return None
    found = ttest_1samp(differences, LOSS, alternative="greater")
    return None if found.pvalue >= LOSS_LEVEL else mean


def score(marks: Sequence[bool]) -> tuple[float, Interval]:
    """Return the share of right answers in percent, with its 95 % interval (Wilson)."""
    from scipy.stats import binomtest  # a second to import

    interval = binomtest(sum(marks), len(marks)).proportion_ci(0.95, method="wilson")
    return 100 * sum(marks) / len(marks), (100 * float(interval.low), 100 * float(interval.high))
