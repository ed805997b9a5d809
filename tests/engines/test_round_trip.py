"""Any combination of values that may be searched comes back from its own command line, for every known version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune.engines import Engine, engine, names
from autotune.errors import BadInput
from autotune.space.context import Context
from autotune.space.expression import evaluate
from autotune.space.fingerprint import broken_rules, effective
from autotune.space.knobs import search_values
from autotune.trial import Configuration
from tests.engines.settings import settings_of

REAL = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def draw_configuration(draw: Any, kind: Engine, context: Context) -> Configuration:
    """One value of every knob, in the file's order, as enumeration walks it; the layout uses every GPU."""
    knobs = kind.default_knobs(context)
    for name, knob in kind.card.knobs.items():
        scope = context.scope(knobs)
        values = search_values(knob, scope, context.version)
        if name == "data_parallel":
            values = (context.gpus // int(str(knobs["tensor_parallel"])),)
        elif name == "expert_parallel":
            values = (1, context.gpus)
        if evaluate(knob.active, scope):
            knobs[name] = draw(st.sampled_from(values), label=name)
    return effective(kind.card, Configuration(kind.name, knobs), context).configuration


@pytest.mark.parametrize("name", names())
@REAL
@given(data=st.data())
def test_a_command_says_what_the_configuration_is(name: str, data: st.DataObject) -> None:
    kind, context = data.draw(st.sampled_from(settings_of(name)), label="setting")
    configuration = draw_configuration(data.draw, kind, context)
    # Rules also forbid what an engine cannot express, e.g. an expert-parallel size other than TP x DP.
    assume(not broken_rules(kind.card, configuration, context))
    command = kind.command(configuration, context)
    parsed = kind.parse(command, context.version)
    again = effective(kind.card, kind.knobs(parsed, context), context).configuration
    assert dict(again.knobs) == dict(configuration.knobs), command.shell()
    assert kind.command(again, context) == command


@pytest.mark.parametrize("name", names())
def test_every_value_of_every_knob_can_be_written_and_read_alone(name: str) -> None:
    """Each search value and each choice, one knob at a time; a choice must be writable in at least one setting."""
    kind = engine(name)
    written: set[tuple[str, str]] = set()
    for _, context in settings_of(name):
        base = kind.default_knobs(context)
        for knob, entry in kind.card.knobs.items():
            values = [*search_values(entry, context.scope(base), context.version), *(entry.choices or [])]
            for value in values:
                if _comes_back(kind, context, {knob: value}):
                    written.add((knob, str(value)))
    missing = {
        (knob, str(value))
        for knob, entry in kind.card.knobs.items()
        for value in entry.choices or []
        # null is a default ("the engine decides"), never something to write.
        if value is not None and (knob, str(value)) not in written
    }
    assert not missing


# What must be set beside a knob to make it active.
COMPANIONS: dict[str, dict[str, Any]] = {
    "moe_all_to_all": {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8},
    "deepep_mode": {"expert_parallel": 8, "moe_all_to_all": "deepep"},
    "enable_eplb": {"expert_parallel": 8},
    "enable_dbo": {"tensor_parallel": 1, "data_parallel": 8},
    "enable_dp_lm_head": {"tensor_parallel": 1, "data_parallel": 8},
    "relaxed_acceptance": {"speculative_tokens": 1},
}


def _comes_back(kind: Engine, context: Context, changes: dict[str, Any]) -> bool:
    """Whether a setting can be written in this version and is read back as it was."""
    (name,) = changes
    companions = {k: v for k, v in COMPANIONS.get(name, {}).items() if k in kind.card.knobs}
    knobs = kind.default_knobs(context, {**companions, **changes})
    if not evaluate(kind.card.knobs[name].active, context.scope(knobs)):
        return False
    try:
        parsed = kind.parse(kind.command(Configuration(kind.name, knobs), context), context.version)
    except BadInput:
        return False
    return kind.knobs(parsed, context).knobs[name] == knobs[name]
