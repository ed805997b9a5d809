"""``report.md``, ``report.html`` and their pictures: the sections in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

from autotune.outputs.report import StudyRecord, curves, outcome, setup, tables, text
from autotune.outputs.report.page import page
from autotune.outputs.report.pictures import Part, Picture, launches
from autotune.outputs.report.pictures import outcome as before_after
from autotune.study.recommendation import Verdict
from autotune.trial import Evidence

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

PICTURES = "report"
"""The folder of a study in which the pictures that ``report.md`` shows lie."""

_Shown = Iterable[Part] | Picture | None
_SECTIONS: tuple[tuple[str, tuple[Callable[[StudyRecord], _Shown], ...]], ...] = (
    ("Conclusion", (outcome.conclusion,)),
    ("Did the predictions hold?", (outcome.predictions,)),
    ("What was tried?", (launches.tried,)),
    ("Best configuration per engine", (tables.engines,)),
    ("How fast for each user, and how much for all?", (before_after.speed,)),
    ("Front of {objective} against {second}", (outcome.front,)),
    ("Is the gain more than chance?", (launches.finals, tables.finals)),
    ("Are the answers still right?", (tables.accuracy,)),
    ("What does each setting add?", (before_after.contributions, outcome.contributions)),
    ("What did nothing", (outcome.inert,)),
    ("How long do users wait?", (before_after.latencies,)),
    ("Before and after", (outcome.comparison,)),
    ("What load does it carry within the limits?", (tables.capacities,)),
    ("What happens under other loads?", (before_after.curves, curves.curves)),
    ("Does it hold on every workload?", (before_after.workloads, outcome.matrix)),
    ("What failed, and what would help?", (launches.failures, tables.failures)),
    ("Where did the node's hours go?", (launches.hours,)),
    ("Nodes", (tables.nodes,)),
    ("Launches", (tables.launches,)),
    ("What the engines made of it", (tables.resolutions,)),
    ("Setup", (setup.setup,)),
    ("What the numbers do not say", (setup.limits,)),
    ("Reproduction", (setup.reproduction,)),
)
"""Heading and contents of each; a section without contents is left out."""


def render(study: StudyRecord, format: Literal["md", "html"]) -> str:
    """The study's report as Markdown with GitHub's tables (``md``) or as one self-contained page (``html``).

    Secrets are masked.
    """
    parts = _parts(study)
    if format == "html":
        return page(parts, partial(_drawn, study))
    unfinished = study.recommendation.verdict is Verdict.UNFINISHED
    # No picture lies in the folder of an unfinished study.
    return _markdown(part.told if unfinished and isinstance(part, Picture) else part for part in parts)


def files_of(study: StudyRecord) -> dict[str, str]:
    """Every file of the report, path within the study's folder to content; each picture is drawn once."""
    from autotune.outputs.report.pictures import draw

    parts = _parts(study)
    elements = {part.name: _drawn(study, part) for part in parts if isinstance(part, Picture)}
    files = {"report.md": _markdown(parts), "report.html": page(parts, lambda picture: elements[picture.name])}
    return files | {f"{PICTURES}/{name}.svg": draw.alone(element) for name, element in elements.items()}


def _parts(study: StudyRecord) -> list[Part]:
    goals = {"objective": text.title(study.spec.objective), "second": text.title(study.spec.pareto or "")}
    parts: list[Part] = [*outcome.opening(study)]
    for heading, sections in _SECTIONS:
        shown = [part for section in sections for part in _listed(section(study)) if part]
        if shown:
            parts += [f"## {heading.format(**goals)}", *shown]
    return parts


def _listed(shown: _Shown) -> Iterable[Part]:
    if shown is None:
        return ()
    return (shown,) if isinstance(shown, Picture) else shown


def _markdown(parts: Iterable[Part]) -> str:
    return text.printable("\n\n".join(map(_as_text, parts)) + "\n")


def _as_text(part: Part) -> str:
    if isinstance(part, text.Facts):
        return text.table(list(part.rows), [list(part.rows.values())])
    if isinstance(part, Picture):
        image = f"![{text.plain(part.question)}]({PICTURES}/{part.name}.svg)"
        return f"{part.told}\n\n{image}" if part.told else image
    return part


def _drawn(study: StudyRecord, picture: Picture) -> Element:
    # matplotlib takes a second to load.
    from autotune.outputs.report.pictures import draw

    evidence = study.recommendation.evidence
    return draw.drawn(picture, "" if evidence is Evidence.MEASURED else study.recommendation.label)
