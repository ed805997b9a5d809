"""The report as one page that needs nothing else: no network, no script but the one that stands in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from xml.etree.ElementTree import Element

from markdown_it import MarkdownIt

from autotune.outputs.report import text
from autotune.outputs.report.pictures import DARK, LIGHT, Part, Picture

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
