"""Render ``report.md``, ``report.html`` and their pictures: the sections in their order."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from typing import Literal

from markdown_it import MarkdownIt

from autotune.base import Evidence, StringDict, beside
from autotune.tuner.study.recommendation import Verdict

from . import StudyRecord, text
from .pictures import Part, Picture
from .sections import FOLDED, parts_of

_STYLE = beside(__file__, "page.css")
_SCRIPT = beside(__file__, "page.js")
_TYPED = re.compile('<pre><code class="language-bash">.*?</pre>', re.DOTALL)
_OPTION = re.compile(r"(?<=\s)(--?[\w-]+)")
"""No line break at the hyphens of an option."""
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def page(parts: Sequence[Part], drawn: Callable[[Picture], str]) -> str:
    """Return a whole HTML page, with its first heading as the title."""
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
{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _body(parts: Iterable[Part], drawn: Callable[[Picture], str]) -> Iterable[str]:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    folded = False
    for part in parts:
        if isinstance(part, str) and part.startswith("## "):
            yield "</details>" if folded else ""
            folded = part.removeprefix("## ") in FOLDED
            yield (
                f"<details><summary>{parser.render(part)}</summary>"
                if folded
                else parser.render(part)
            )
        elif isinstance(part, text.Facts):
            rows = (
                f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
                for name, value in part.rows.items()
            )
            yield f'<dl class="facts">{"".join(rows)}</dl>'
        elif isinstance(part, Picture):
            yield f"{parser.render(part.answer)}<figure id='{part.name}'>{drawn(part)}</figure>"
        else:
            # A wide table scrolls by itself, not the page; what is to be typed can be copied.
            body = parser.render(part).replace("<table>", '<div class="table" tabindex="0"><table>')
            yield _TYPED.sub(_copied, body.replace("</table>", "</table></div>"))
    yield "</details>" if folded else ""


def _copied(typed: re.Match[str]) -> str:
    button = '<button type="button" class="copy">Copy</button>'
    return button + _OPTION.sub(r"<span>\1</span>", typed[0])


PICTURES = "report"
"""Folder of a study that holds the pictures of ``report.md``."""
DRAWN = 'class="drawn"'
"""Mark of every picture that `draw` has made."""


def render(study: StudyRecord, format: Literal["md", "html"]) -> str:
    """Return the study's report, without secrets, as Markdown with GitHub's tables or as one
    self-contained page."""
    parts = list(parts_of(study))
    if format == "html":
        return page(parts, partial(_drawn, study))
    unfinished = study.recommendation.verdict is Verdict.UNFINISHED
    # No picture lies in the folder of an unfinished study.
    return _markdown(
        part.answer if unfinished and isinstance(part, Picture) else part for part in parts
    )


def files_of(study: StudyRecord) -> StringDict:
    """Return every file of the report, path within the study's folder to content; each picture is
    drawn once."""
    from . import draw

    parts = list(parts_of(study))
    drawings = {part.name: _drawn(study, part) for part in parts if isinstance(part, Picture)}
    files = {
        "report.md": _markdown(parts),
        "report.html": page(parts, lambda picture: drawings[picture.name]),
    }
    return files | {
        f"{PICTURES}/{name}.svg": draw.standalone(drawing) for name, drawing in drawings.items()
    }


def _markdown(parts: Iterable[Part]) -> str:
    told: list[str] = []
    for part in parts:
        if isinstance(part, Picture):
            told += filter(
                None, (part.answer, f"![{text.escape(part.question)}]({PICTURES}/{part.name}.svg)")
            )
        else:
            told.append(text.table([part.rows]) if isinstance(part, text.Facts) else part)
    return text.printable("\n\n".join(told) + "\n")


def _drawn(study: StudyRecord, picture: Picture) -> str:
    # matplotlib takes a second to load.
    from . import draw

    evidence = study.recommendation.evidence
    return draw.draw_svg(
        picture, "" if evidence is Evidence.MEASURED else study.recommendation.label
    )
