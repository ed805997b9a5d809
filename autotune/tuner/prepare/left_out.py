"""Leave out configurations that a study does not launch: refused, contradicted, with a trade-off that
nobody allowed, or with drafts that random tokens cannot judge."""

from autotune.engines import CONTRADICTS, RULE, Configuration, EngineSpace, Library, admitted
from autotune.engines.engine import accepted
from autotune.engines.promises import UNASKED, promises_of

from ..backends import backend_of
from ..study.spec import StudySpec

PROMISES = "promises"
"""Name of the removals for trade-offs that are not allowed."""
UNJUDGED = "drafts on random tokens"
"""Name of the removals for a draft acceptance that is not that of real prompts."""
FORCED_WITHIN = 0.05
"""Relative error up to which a forced acceptance length represents the model's."""


def leave_out_refused(space: EngineSpace) -> dict[str, int]:
    """Remove what the version's parser refuses, or passed options contradict; count the first by
    its message."""
    found = space.space
    kept, counts = accepted(space.engine, space.context, found.configurations)
    found.keep(kept, RULE)
    found.keep(_agreeing(space), CONTRADICTS)
    return counts


def leave_out_unasked(spec: StudySpec, space: EngineSpace) -> None:
    """Remove candidates below ``--min-context``, and those with a trade-off of `UNASKED` that is
    not allowed."""
    unasked, floor = UNASKED - frozenset(spec.allowed), spec.min_context or 0
    given_up = promises_of(space.card, space.context, space.held, space.chosen, unasked, space.own)
    long = [c for c in space.space.configurations if admitted(c, space.context) >= floor]
    kept = [c for c in long if not any(one.kind in unasked for one in given_up(c))]
    space.space.keep(kept, PROMISES)


def leave_out_unjudged(spec: StudySpec, space: EngineSpace, library: Library) -> list[str]:
    """Remove drafts of random tokens with another acceptance than on text, except pinned ones; with
    a note."""
    configurations, version = space.space.configurations, space.context.version
    speculation, drafts = backend_of(spec).speculation, "speculative_tokens"
    values = {one.knobs.get(drafts) for one in configurations}
    asked = [speculation(spec, space.engine, version, drafted, library) for drafted in values]
    # An engine that takes whole numbers may only come near.
    out = sorted(
        {
            o.drafted
            for o in asked
            if o and o.random and abs((o.forced or 0) / o.stated - 1) > FORCED_WITHIN
        }
    )
    if not out or drafts in space.chosen:
        return []
    space.space.keep([c for c in configurations if c.knobs.get(drafts) not in out], UNJUDGED)
    return [
        f"{', '.join(map(str, out))} drafted tokens are not tried: almost no random token is "
        "accepted, and the engine cannot force the acceptance on text; --workload prose or code "
        "compares them"
    ]


def _agreeing(space: EngineSpace) -> list[Configuration]:
    """Return the configurations that the engine runs unchanged under the passed options."""
    passed, configurations = space.passed, space.space.configurations
    if not passed.related:
        return configurations
    values = [tuple([one.knobs[name] for name in passed.related]) for one in configurations]
    contradicted = {
        value: passed.contradicts(space.engine, one, space.context)
        for value, one in dict(zip(values, configurations, strict=True)).items()
    }
    return [
        one for one, value in zip(configurations, values, strict=True) if not contradicted[value]
    ]
