"""``report.md``: the sections in their order."""

from __future__ import annotations

from autotune.outputs.report import StudyRecord, explained, nodes, outcome, setup, tables, workloads

_SECTIONS = (
    outcome.opening,
    outcome.conclusion,
    outcome.comparison,
    workloads.matrix,
    workloads.front,
    setup.setup,
    tables.engines,
    explained.contributions,
    explained.inert,
    explained.untried,
    tables.finals,
    nodes.nodes,
    tables.launches,
    tables.resolutions,
    tables.failures,
    setup.limits,
    setup.reproduction,
)


def render(study: StudyRecord) -> str:
    """The report as Markdown with GitHub's tables."""
    sections = (section(study) for section in _SECTIONS)
    return "\n\n".join(section for section in sections if section) + "\n"
