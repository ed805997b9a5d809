"""Finals: one finalist against the baseline, in alternating new launches, until the test decides.

The finalist was chosen for its launches in the search, so only its new launches count; the baseline
was not chosen, so all its launches do. After each pair of launches the sequential test has a look
(`sequential_test`).

Where several nodes run a study each pair has its node, and pairs run side by side on different
ones. Launches are compared within a node only (`nodes.contrast`), so that a slow node biases
nothing.

Control runs launch the baseline again during the search while noise or drift could explain the lead
of the best: in studies of `PLENTY` launches first after `FIRST`, so that the noise of the node is
known early, then after every `EVERY`. With several nodes they run whatever the lead, on the
node where the baseline ran longest ago, and on a node that may be slow.

Where answers are checked, the finals check them, the baseline's first: a finalist may differ from
the baseline as much as the baseline's own launches differ. A finalist is checked once. A failed
check is attributed to its settings: to a value marked as lossy before all others, to none that a
launch with right answers had. Candidates that probably share the cause are tested last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from autotune.engines import Scalar

from ...study.spec import StudySpec
from ...trial import Launch, Role
from ..budget import DRIFT, LEAST_FINALS, capacity, lead
from ..entry import Entry
from ..history import BASELINE_ROLES, MAX_UNINFORMATIVE, History
from ..nodes import NodeScore, contrast, planned
from ..spread import CONFIDENCE, Effect, Spread
from . import sequential_test as sequential
from .sequential_test import Look

EVERY = 10
"""Launches after which the baseline is repeated."""
FIRST, PLENTY = 6, 20
"""Launches after which it is first repeated, in studies of at least `PLENTY`."""
CHANGE_ERROR_RATE = 0.01
"""False alarms of a change on a steady node, two-sided."""
_LOSSY, _OTHER, _CHANCE = 1.0, 0.1, 0.1
"""Prior odds of a cause: a value marked as lossy, any other value, and chance."""
_SUSPECT = 0.5


def next_node(history: History, places: Sequence[str]) -> str | None:
    """Return the node of the next control run; None if none is due. One place without a name is
    ``""``."""
    base = history.baseline
    due = _due(history) and (len(places) > 1 or lead(history)[0] < DRIFT)
    if not places:
        return "" if due else None
    on = {node: [e for e in history.at(base) if e.node == node] for node in places}
    for node, offset in history.node_offsets.items():
        runs = on.get(node, ())
        if runs and offset.doubtful and not any(e.pending for e in runs):
            return node
    if not due:
        return None
    return min(on, key=lambda node: max((e.number for e in on[node]), default=-1))


def change(history: History) -> float | None:
    """Return the change of the baseline's score over its launches, by a straight line; None within
    noise.

    Student's t of the line's slope. It is a warning: nothing is corrected for it.
    """
    base = history.adjusted().at(history.baseline)
    # Other prompts change the score.
    alike = [e for e in base if e.score is not None and not e.sent_finals_prompts]
    if len(alike) < 2:
        return None
    x, y = np.array([(e.number, e.score) for e in alike]).T
    x -= x.mean()
    y -= y.mean()
    slope = float(x @ y / (x @ x))
    rest = Spread.from_squares(float(((y - slope * x) ** 2).sum()), len(alike) - 2)
    limit = float(stdtrit(rest.degrees, 1 - CHANGE_ERROR_RATE / 2)) * rest.sd / math.sqrt(x @ x)
    return slope * (alike[-1].number - alike[0].number) if abs(slope) > limit else None


def _due(history: History) -> bool:
    """Return whether enough launches were made since the baseline's last one."""
    base = history.baseline
    last = max((e.number for e in history.at(base)), default=None)
    if last is None or not history.scores(base):
        return False
    early = len(history.at(base)) == 1 and history.most_launches >= PLENTY
    return history.entries[-1].number + 1 - last >= (FIRST if early else EVERY)


MOST_OF_BASELINE = 3
"""Most baseline launches on a node that fill the wait for the end of the search."""
LEAST_DEGREES = 5
"""Least degrees of freedom of the spread before the test may end early: with fewer it would end
wherever the spread is underestimated."""


def finalist(history: History) -> int | None:
    """Return the configuration tested by the finals: the first one that was not eliminated, and is
    not far below another one if there is such a one; None before any.

    Those after it show what the winner's settings add.
    """
    tested = dict.fromkeys(e.position for e in history.of_role(Role.FINAL))
    standing = [p for p in tested if p != history.baseline and not eliminated(history, p)]
    return next((p for p in standing if not is_far_below(history, p)), next(iter(standing), None))


def eliminated(history: History, position: int) -> bool:
    """Return whether the finals eliminated a configuration: it failed, violated a limit or could
    not be measured.

    Or its servers hold shorter requests than was predicted, and it breaks a promise.
    """
    if position in history.ineligible:
        return True
    mute = [e for e in history.at(position) if e.role is Role.FINAL and e.uninformative]
    if history.broke(position) or len(mute) > MAX_UNINFORMATIVE:
        return True
    return bool(history.scores(position, Role.FINAL)) and not history.feasible(position, Role.FINAL)


FAR = 0.05
"""Least shortfall, score units, of a configuration that makes room for another one in the finals."""


def is_far_below(history: History, position: int) -> bool:
    """Return whether its finals show a configuration to be worse by `FAR` than one that the search
    launched, and leave enough launches for that one.

    As a command without settings that were not expected to help may be, which no launch had. Their
    gains over the baseline are compared, as the finals may send other prompts.
    """
    begun = next((e.number for e in history.at(position) if e.role is Role.FINAL), None)
    if begun is None or capacity(history) < begun + 2 + LEAST_FINALS:
        return False
    base = history.baseline
    searched = history.before_finals()
    mine, theirs = _compared(history, position)
    before = searched.node_scores(base)
    if not (mine and theirs and before):
        return False
    gain, information = contrast(mine, theirs)
    for other in searched.challengers:
        gain_before, known = contrast(searched.node_scores(other), before)
        out = other == position or eliminated(history, other) or suspected(history, other)
        if out or not (known and information):
            continue
        both = 1 / (1 / information + 1 / known)
        shortfall = Effect.of_launches(gain_before - gain, both, history.spread)
        if shortfall.odds(FAR) >= (1 + CONFIDENCE) / 2:
            return True
    return False


def looks(history: History, position: int) -> list[Look]:
    """Return the looks at a finalist against the baseline: after each pair of launches and after
    the last.

    The first one waits for `LEAST_DEGREES`, unless no more launches follow. Looks end before the
    first launch that still runs, as launches on several nodes end in any order.
    """
    base = history.baseline
    start = len(history.before_finals().entries)
    found: list[Look] = []
    pairs = fresh = 0
    for count, entry in enumerate(history.entries[start:], start=start + 1):
        if entry.pending:
            break
        fresh += entry.measured and entry.position in (base, position)
        so_far = history.upto(count)
        whole = sum(
            min(mine, theirs) for mine, theirs in _by_node(so_far, position, start).values()
        )
        last = capacity(so_far) <= count and fresh > 0 and _comparable(so_far, position)
        if last or (
            whole > pairs and ((spread := so_far.spread).sd == 0 or spread.degrees >= LEAST_DEGREES)
        ):
            pairs = whole
            fresh = 0
            look = _look(so_far, position, capacity(so_far) - count)
            # A launch on a node where the other of the two never ran has no information on their
            # difference.
            if not found or look.information > found[-1].information:
                found.append(look)
    return found


def looks_at_end(history: History, position: int) -> list[Look]:
    """Return `looks` at the end of a study: an open test has one more look, which spends the rest
    of the error."""
    found = looks(history, position)
    if found and sequential.outcome(found)[0] is not sequential.Outcome.OPEN:
        return found
    if not _comparable(history, position):
        return found
    last = _look(history, position, 0)
    return [*(look for look in found if look.information < last.information), last]


def _look(history: History, position: int, left: int) -> Look:
    """Return one look, where this number of further launches is planned for the test."""
    mine, theirs = _compared(history, position)
    difference, now = contrast(mine, theirs)
    at_end = planned(
        [node for node, _ in mine], [node for node, _ in theirs], left, history.off_nodes
    )
    spread = history.spread
    return Look(now / at_end, now, difference, spread.sd, spread.degrees)


def _compared(history: History, position: int) -> tuple[list[NodeScore], list[NodeScore]]:
    """Return the valid launches of a finalist and of the baseline."""
    base = history.baseline
    return history.node_scores(position, Role.FINAL), history.deciding_scores(base)


def _comparable(history: History, position: int) -> bool:
    """Return whether a difference exists, with more than one launch of the baseline."""
    mine, theirs = _compared(history, position)
    return bool({node for node, _ in mine} & {node for node, _ in theirs}) and len(theirs) >= 2


def finals_of(history: History, position: int) -> Sequence[Entry]:
    """Return the launches of a configuration in the finals that are valid or still running."""
    return [e for e in history.at(position) if e.role is Role.FINAL and not e.uninformative]


def _baseline_leads(history: History) -> bool:
    """Return whether the finals start with the baseline: a finalist's answers are compared with its
    answers."""
    begun = history.of_role(Role.FINAL)
    if begun:
        return begun[0].position == history.baseline
    asked = [e for e in history.at(history.baseline) if e.answered or e.pending]
    return len(asked) < history.spec.reference_checks


def next_of_pair(
    history: History, position: int, left: int, places: Sequence[str]
) -> tuple[int, str] | None:
    """Return the next of finalist and baseline, and the node; None if no node has work.

    The order is finalist, baseline, baseline, finalist …, so that drift biases nothing; on a place
    without a name the baseline is first where its answers are checked. A last launch without its
    partner is the finalist's, which has fewer. At most one pair runs on a node. Begun pairs are
    completed first; a node where no launch of a pair runs comes before one where the first still
    does.

    Args:
        left: launches that may still be made.
        places: the nodes that may run it; one place without a name is ``""``.
    """
    counts = _by_node(history, position, len(history.before_finals().entries))
    base = history.baseline
    busy = {e.node for e in history.pending}
    unequal = {node for node, (mine, theirs) in counts.items() if mine != theirs}
    unpaired = [node for node in places if node in unequal]
    owed_pairs = len(unequal & {*places, *busy})
    fresh = [node for node in places if node not in unpaired and node not in busy]
    waiting = [node for node in unpaired if node not in busy]
    if waiting or (unpaired and left <= owed_pairs):
        node = (waiting or unpaired)[0]
    elif fresh and left > owed_pairs:
        node = min(fresh, key=lambda name: sum(counts.get(name, (0, 0))))
    elif unpaired:
        node = unpaired[0]
    else:
        return None
    mine, theirs = counts.get(node, (0, 0))
    if mine != theirs:
        return (position if mine < theirs else base), node
    first = not node and _baseline_leads(history)
    return (position if mine % 2 == first or left - owed_pairs < 2 else base), node


def next_control_node(history: History, places: Sequence[str]) -> str | None:
    """Return a node on which the baseline may be launched for the finals while the search ends on
    others; None for none."""
    if Role.CONTROL not in history.spec.deciding_roles:
        return None  # A control sends the search's prompts.
    start = len(history.before_finals().entries)
    base = history.at(history.baseline)
    taken = {e.node for e in history.entries[start:] if e.role is Role.CONTROL} | {
        e.node for e in history.pending
    }
    often = {node for node in places if sum(e.node == node for e in base) >= MOST_OF_BASELINE}
    return next((node for node in places if node not in taken | often), None)


def _by_node(history: History, position: int, start: int) -> dict[str, tuple[int, int]]:
    """Count by node the valid or running launches from `start` on: of a finalist, of the
    baseline."""
    base = history.baseline
    counts = dict[str, tuple[int, int]]()
    for entry in history.entries[start:]:
        if entry.position in (base, position) and not entry.uninformative:
            mine, theirs = counts.get(entry.node, (0, 0))
            counts[entry.node] = (
                mine + (entry.position != base),
                theirs + (entry.position == base),
            )
    return counts


def wants_answers(
    spec: StudySpec, role: Role, fingerprint: str, baseline: str, launches: Sequence[Launch]
) -> bool:
    """Return whether a launch needs checked answers, after finished ones; it and the baseline are
    given by their fingerprints."""
    mine = (one.result for one in launches if one.fingerprint == fingerprint)
    done = [result for result in mine if result.answers_checked]
    if fingerprint == baseline:
        return role in BASELINE_ROLES and len(done) < spec.reference_checks
    return (
        spec.reference_checks > 0
        and role is Role.FINAL
        and all(one.answers_right is None for one in done)
    )


def suspected(history: History, position: int) -> bool:
    """Return whether a candidate probably shares the cause of a finalist's worse answers."""
    right = {history.baseline, *(e.position for e in history if e.right)}
    cleared = {setting for other in right for setting in _settings(history, other)}
    mine = _settings(history, position)
    odds = 1.0
    for failed in dict.fromkeys(e.position for e in history if e.right is False):
        lossy = {one.knob for one in history.trade_offs(failed) if one.kind == "lossy"}
        causes = {
            s: _LOSSY if s[1] in lossy else _OTHER for s in _settings(history, failed) - cleared
        }
        shared = sum(weight for setting, weight in causes.items() if setting in mine)
        odds *= 1 - shared / (sum(causes.values()) + _CHANCE)
    return odds < _SUSPECT


def _settings(history: History, position: int) -> set[tuple[str, str, Scalar]]:
    configuration = history.configuration(position)
    return {(configuration.engine, name, value) for name, value in configuration.knobs.items()}
