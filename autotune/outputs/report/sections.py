"""Write the sections of the report from their templates in ``sections.yaml``."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import chain

from autotune.base import JsonObject, StringMap, redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import COSTS, curve_of, is_valid_row, shown_in
from autotune.tuner.backends import backend_of
from autotune.tuner.search import objective
from autotune.tuner.study.home import (
    Home,
    is_server,
    tracking_uri,
    ui_command,
    without_credentials,
)
from autotune.tuner.study.options import command_line, rows_of
from autotune.tuner.study.recommendation import Choice, NearestMiss, Verdict, WorkloadComparison
from autotune.tuner.study.results import is_held

from . import StudyRecord, pictures, sentences, tables, text
from .pictures import Part
from .templates import JINJA, templates_of, write

_TEMPLATES = templates_of("sections.yaml")
FOLDED = {section["heading"] for section in _TEMPLATES["sections"] if "folded" in section}
"""Headings of the sections of details, folded on the page."""


def parts_of(study: StudyRecord) -> Iterator[Part]:
    """Return title, evidence and the sections that are not empty, in their order."""
    known = _known(study)

    def made(template: str) -> str:
        return write(template, **known)

    yield made(_TEMPLATES["opening"])
    for section in _TEMPLATES["sections"]:
        draw = getattr(pictures, section.get("picture", ""), None)
        parts = [draw and draw(study)]
        if JINJA.compile_expression(section.get("when", "true"))(**known):
            facts = {made(name): made(fact) for name, fact in section.get("facts", {}).items()}
            shown = {name: fact for name, fact in facts.items() if fact}
            parts += [shown and text.Facts(shown), *map(made, section.get("parts", ()))]
        if any(parts):
            yield from (f"## {made(section['heading'])}", *filter(None, parts))


def _known(study: StudyRecord) -> JsonObject:
    """Return the variables of the templates."""
    spec = study.spec
    outcome = study.recommendation
    choice = outcome.recommended
    goal = choice.objective if choice else None
    home = study.folder.resolve().parent.parent
    several = " (weighted geometric mean)" if len(objective.weights(spec)) > 1 else ""
    return {
        "study": study,
        "spec": spec,
        "outcome": outcome,
        "metric": spec.objective,
        "aim": f"{text.code(objective.on_workloads(spec))}{several}",
        "choice": choice,
        "goal": goal,
        "main": outcome.workloads.get(goal.workload) if goal else None,
        "unfinished": outcome.verdict is Verdict.UNFINISHED,
        "usual": tables.references(study.launches),
        "home": home,
        "uri": tracking_uri(home),
    }


def _pair(both: WorkloadComparison | None, metric: str) -> list[object]:
    """Return a metric of the baseline and of the recommended command."""
    sides = (both.baseline, both.recommended) if both else (None, None)
    return [(side or {}).get(metric) for side in sides]


def _against(value: float, baseline: float | None) -> str:
    """Format a figure and the baseline's."""
    return " from ".join(readable.numbers([value] if baseline is None else [value, baseline]))


def _command(choice: Choice | NearestMiss) -> str:
    return _bash(choice.command, choice.argv, choice.env)


def _bash(command: str, argv: Sequence[str], env: StringMap) -> str:
    return text.block(redact.text(command, redact.secrets_in(argv, env)), "bash")


def _repeat(study: StudyRecord) -> str:
    """Return the command that repeats the study."""
    passed_through = chain.from_iterable(map(shlex.split, study.spec.engine_args.values()))
    again = command_line(study.spec, backend_of(study.spec).unused_options)
    return redact.text(again, redact.secrets_in(list(passed_through), {}))


JINJA.filters["command"] = _command
JINJA.globals |= {
    "Home": Home,
    "against": _against,
    "bash": _bash,
    "command": _command,
    "costs": list(COSTS),
    "curve_of": curve_of,
    "is_held": is_held,
    "is_server": is_server,
    "is_valid_row": is_valid_row,
    "maximises": objective.maximises,
    "pair": _pair,
    "repeat": _repeat,
    "row": text.row,
    "rows_of": rows_of,
    "sentences": sentences,
    "shown": list(shown_in("report")),
    "tables": tables,
    "ui_command": ui_command,
    "without_credentials": without_credentials,
}
