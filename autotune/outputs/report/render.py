"""``report.md``, ``report.html`` and their pictures: the sections in their order."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Literal
from xml.etree.ElementTree import Element

from markdown_it import MarkdownIt

from autotune.outputs.report import StudyRecord, curves, outcome, setup, tables, text
from autotune.outputs.report.pictures import DARK, LIGHT, Part, Picture, launches
from autotune.outputs.report.pictures import outcome as before_after
from autotune.study.recommendation import Verdict
from autotune.trial import Evidence

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


_STYLE = """
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { display: block; margin: 0 auto; max-width: 60rem; padding: 1.5rem 1.25rem 4rem; }
h1, h2, h3 { line-height: 1.25; margin: 2.2em 0 .6em; overflow-wrap: anywhere; }
h1 { margin: 0 0 .6em; font-size: 1.6rem; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: .25em; }
blockquote { margin: 1em 0; padding: .6em 1em; border-left: .3rem solid var(--second); background: var(--band); }
blockquote p { margin: 0; }
blockquote + h2 { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; background: var(--band); border-radius: .3rem; }
code { padding: .1em .3em; overflow-wrap: anywhere; }
pre { margin: 0 0 1em; padding: .9em 1em; border: 1px solid var(--line); white-space: pre-wrap; }
pre code { padding: 0; background: none; }
pre span { white-space: nowrap; }
.copy { display: block; margin: 0 0 0 auto; padding: .3em 1em; font: inherit; color: var(--page);
  background: var(--chosen); border: 0; border-radius: .3rem .3rem 0 0; cursor: pointer; }
.table { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: .94em; }
th, td { border: 1px solid var(--line); padding: .35em .7em; vertical-align: top; }
td[style*="right"] { white-space: nowrap; }
th { background: var(--band); text-align: left; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(17rem, 45%), 1fr)); gap: .6rem;
  margin: 1em 0; }
.facts div { padding: .5em .9em; background: var(--band); border-radius: .3rem; }
.facts dt { font-size: .85em; }
.facts dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
figure { margin: 1em 0; overflow-x: auto; }
.drawn { display: block; width: 100%; max-width: 44rem; height: auto; font-family: inherit; }
.mark { cursor: pointer; }
.mark:hover, .mark:focus { outline: 2px solid var(--ink); outline-offset: 2px; }
figcaption { position: sticky; left: 0; box-sizing: border-box; height: 3.4em; overflow: auto; padding: .5em .8em;
  font: .85em/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--band); }
.commands { height: 7.5em; }
:focus-visible { outline: 2px solid var(--ink); outline-offset: 2px; }
@media screen and (max-width: 40rem) { figure { margin: 1em -1.25rem; } }
@media print {
  main { max-width: none; padding: 0; }
  .copy, figcaption { display: none; }
  .mark:focus { outline: none; }
  figure, pre, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .table, figure { overflow: visible; }
}
"""
_SCRIPT = """
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", async () => {
  const code = button.nextElementSibling;
  getSelection().selectAllChildren(code);
  let copied = true;
  try { await navigator.clipboard.writeText(code.textContent.trimEnd()); }
  catch { copied = document.execCommand("copy"); }
  button.textContent = copied ? "Copied" : "Selected: copy it by hand";
});
for (const figure of document.querySelectorAll("figure")) {
  const marks = [...figure.querySelectorAll(".mark")], told = figure.querySelector("figcaption");
  const tell = event => {
    const mark = event.target.closest(".mark");
    if (mark) told.textContent = mark.querySelector("title").textContent;
  };
  for (const kind of ["mouseover", "focusin", "click"]) figure.addEventListener(kind, tell);
  figure.addEventListener("keydown", event => {
    const at = marks.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: marks.length - 1 }[event.key];
    if (at < 0 || !marks[to]) return;
    event.preventDefault();
    marks[at].tabIndex = -1;
    marks[to].tabIndex = 0;
    marks[to].focus();
  });
}
"""
_TYPED = '<pre><code class="language-bash">'
_OPTION = re.compile(r"(?<=\s)(--?[\w-]+)")
"""The hyphens of an option are no places to break a line."""
_HINT = "Point at a mark, tap it, or press Tab and then the arrow keys: what it is stands here."
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
)


def page(parts: Sequence[Part], drawn: Callable[[Picture], Element]) -> str:
    """A whole HTML page; its title is the first heading.

    Args:
        drawn: draws a picture.
    """
    title = str(parts[0]).partition("\n")[0].removeprefix("# ").replace("\\", "")
    body = text.printable("\n".join(_body(parts, drawn)))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(text.printable(title))}</title>
<style>
:root {{ color-scheme: light; {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {_variables(DARK)} }} }}{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{look}: {colour};" for look, colour in colours.items())


def _body(parts: Iterable[Part], drawn: Callable[[Picture], Element]) -> Iterable[str]:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    for part in parts:
        if isinstance(part, text.Facts):
            rows = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in part.rows.items())
            yield f'<dl class="facts">{"".join(rows)}</dl>'
        elif isinstance(part, Picture):
            # Loaded with matplotlib, by who draws.
            from autotune.outputs.report.pictures.draw import inline

            long = any("\n" in mark.told for panel in part.panels for mark in panel.marks)
            kind = "commands" if long else "words"
            hint = f'<figcaption class="{kind}" tabindex="0" aria-live="polite">{_HINT}</figcaption>'
            yield f"{parser.render(part.told)}<figure>{inline(drawn(part))}{hint}</figure>"
        else:
            # A wide table scrolls by itself, not the page; what is to be typed can be copied.
            body = parser.render(part).replace("<table>", '<div class="table" tabindex="0"><table>')
            body = body.replace("</table>", "</table></div>")
            typed = _OPTION.sub(r"<span>\1</span>", body) if _TYPED in body else body
            yield typed.replace(_TYPED, f'<button type="button" class="copy">Copy</button>{_TYPED}')


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
