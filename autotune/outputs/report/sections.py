"""Write the sections of the report from their templates in ``sections.yaml``."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain

import yaml
from jinja2 import Environment, StrictUndefined, Template

from autotune.base import JsonObject, beside, redact
from autotune.load.metrics import readable
from autotune.load.metrics.table import COSTS, curve_of, is_valid_row, shown_in, title_of
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

_TEMPLATES = yaml.safe_load(beside(__file__, "sections.yaml"))
FOLDED = {section["heading"] for section in _TEMPLATES["sections"] if "folded" in section}
"""Headings of the sections of details, folded on the page."""


def parts_of(study: StudyRecord) -> Iterator[Part]:
    """Return title, evidence and the sections that are not empty, in their order."""
    known = _known(study)

    def write(template: str) -> str:
        return _compiled(template).render(known).strip()

    yield write(_TEMPLATES["opening"])
    for section in _TEMPLATES["sections"]:
        draw = getattr(pictures, section.get("picture", ""), None)
        parts = [draw and draw(study)]
        if _JINJA.compile_expression(section.get("when", "true"))(**known):
            facts = {write(name): write(fact) for name, fact in section.get("facts", {}).items()}
            shown = {name: fact for name, fact in facts.items() if fact}
            parts += [shown and text.Facts(shown), *map(write, section.get("parts", ()))]
        if any(parts):
            yield from (f"## {write(section['heading'])}", *filter(None, parts))


@cache
def _compiled(template: str) -> Template:
    return _JINJA.from_string(template)


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


def _bash(command: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    return text.block(redact.text(command, redact.secrets_in(argv, env)), "bash")


def _repeat(study: StudyRecord) -> str:
    """Return the command that repeats the study."""
    passed_through = chain.from_iterable(map(shlex.split, study.spec.engine_args.values()))
    again = command_line(study.spec, backend_of(study.spec).unused_options)
    return redact.text(again, redact.secrets_in(list(passed_through), {}))


_JINJA = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
_JINJA.filters |= {
    "code": text.code,
    "command": _command,
    "escape": text.escape,
    "title": text.title,
}
_JINJA.globals |= {
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
    "readable": readable,
    "redact": redact,
    "repeat": _repeat,
    "row": text.row,
    "rows_of": rows_of,
    "sentences": sentences,
    "shown": list(shown_in("report")),
    "statistics": statistics,
    "tables": tables,
    "text": text,
    "title_of": title_of,
    "ui_command": ui_command,
    "without_credentials": without_credentials,
}
