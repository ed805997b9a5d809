"""``report.md`` and ``report.html``: the sections in their order, and as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Literal

from markdown_it import MarkdownIt

from autotune.outputs.report import StudyRecord, curves, outcome, setup, tables, text, words

_SECTIONS: tuple[tuple[str, Callable[[StudyRecord], list[str]]], ...] = (
    ("Conclusion ({evidence})", outcome.conclusion),
    ("Before and after ({evidence})", outcome.comparison),
    ("Finalists by workload ({evidence})", outcome.matrix),
    ("Front of {objective} against {second} ({evidence})", outcome.front),
    ("Curves over concurrency ({evidence})", curves.curves),
    ("Setup", setup.setup),
    ("Best configuration per engine ({evidence})", tables.engines),
    ("Contribution per setting ({evidence})", outcome.contributions),
    ("What did nothing ({evidence})", outcome.inert),
    ("Believed, not tried ({evidence})", outcome.untried),
    ("What the launches taught of the node ({evidence})", outcome.learned),
    ("Finals ({evidence})", tables.finals),
    ("Nodes ({evidence})", tables.nodes),
    ("Launches ({evidence})", tables.launches),
    ("What the engines made of it ({evidence})", tables.resolutions),
    ("Configurations that failed, and why", tables.failures),
    ("What the numbers do not say", setup.limits),
    ("Reproduction", setup.reproduction),
)
"""Heading and paragraphs of each; a section without paragraphs is left out."""

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #f3f5f7; --text: #1b1f24; --page: #fff; --mark: #0a5bb5; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a424c; --soft: #1c2229; --text: #e4e8ec; --page: #101418; --mark: #6cb0ff; }
}
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.25; margin: 2.2em 0 .6em; }
h1 { margin-top: 0; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: .25em; }
blockquote { margin: 1em 0; padding: .6em 1em; border-left: .3rem solid var(--mark); background: var(--soft); }
blockquote p { margin: 0; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; background: var(--soft); border-radius: .3rem; }
code { padding: .1em .3em; }
pre { padding: .9em 1em; overflow-x: auto; border: 1px solid var(--line); }
pre code { padding: 0; background: none; }
pre code.language-bash { user-select: all; }
.table { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: .94em; }
th, td { border: 1px solid var(--line); padding: .35em .7em; vertical-align: top; }
th { background: var(--soft); text-align: left; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(study: StudyRecord, format: Literal["md", "html"]) -> str:
    """The study's report as Markdown with GitHub's tables (``md``) or as one self-contained page (``html``).

    Secrets are masked.
    """
    goals = {"objective": text.title(study.spec.objective), "second": text.title(study.spec.pareto or "")}
    parts = outcome.opening(study)
    for heading, section in _SECTIONS:
        if shown := [part for part in section(study) if part]:
            parts += [f"## {heading.format(evidence=words.label(study.recommendation.evidence), **goals)}", *shown]
    markdown = "\n\n".join(parts) + "\n"
    return markdown if format == "md" else _page(markdown)


def _page(markdown: str) -> str:
    """A whole HTML page from a report in Markdown; its title is the first heading."""
    title = markdown.partition("\n")[0].removeprefix("# ").replace("\\", "")
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = parser.render(markdown)
    # A wide table scrolls by itself, not the page.
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}</body>
</html>
"""
