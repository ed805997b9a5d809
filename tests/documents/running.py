"""What is done with each documented command line: run, looked up, or counted as one that a test
machine cannot run."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path

from autotune.engines.registry import recognise, split_command
from tests.documents.pages import NEEDS, ROOT, Example, all_examples
from tests.documents.world import World, check_mention, completed, is_mention


class Treatment(StrEnum):
    """What a test does with a documented command line."""

    RUN = "run"
    MARKED = "marked"
    MENTION = "mention"
    SCRIPT = "script"


def treatment(example: Example) -> Treatment:
    """Decide what is done with an example."""
    if example.needs is not None:
        return Treatment.MARKED
    if is_mention(example):
        return Treatment.MENTION
    if example.inline and not example.text.startswith("autotune "):
        return Treatment.SCRIPT
    return Treatment.RUN


def pages_of(found: Iterable[Example], chosen: Callable[[str], bool]) -> dict[str, list[Example]]:
    """Group examples by page."""
    pages: dict[str, list[Example]] = defaultdict(list)
    for example in found:
        if chosen(example.page):
            pages[example.page].append(example)
    return dict(pages)


def check_page(page: list[Example], world: World, folder: Path) -> None:
    """Run the examples of a page one after the other in one folder, each once."""
    shell = world.shell(page[0].page, folder)
    for example in page:
        match treatment(example):
            case Treatment.MARKED:
                assert example.needs in NEEDS, example
            case Treatment.MENTION:
                if example.text.startswith("autotune "):
                    check_mention(example)
            case Treatment.SCRIPT:
                check_script(example)
            case Treatment.RUN if example in first_places():
                ended = shell.run(world.text(example, shell), interrupted=example.exit_code == 130)
                shown = "\n".join([str(example), *ended.written.splitlines()[-40:]])
                assert ended.code == example.exit_code, shown
                assert "Traceback" not in ended.written, shown


@cache
def first_places() -> frozenset[Example]:
    """Return the first of the examples that come to one command line: it has the same outcome on
    each page."""
    found = [example for example in all_examples() if treatment(example) is Treatment.RUN]
    return frozenset(
        {completed(example.text).strip(): example for example in reversed(found)}.values()
    )


def check_script(example: Example) -> None:
    """Check that a script of the repository exists and has the options that a sentence names.

    The benchmarks take minutes to hours, so they are not run.
    """
    if example.text.startswith("python3 -m "):
        recognise(split_command(example.text).argv)
        return
    words = shlex.split(re.sub(r"[…\[\]]", "", example.text))[1:]
    if words[0] == "-m":
        module, words = words[1].replace(".", "/"), words[1:]
        path = next(
            (p for p in (ROOT / f"{module}.py", ROOT / module / "__main__.py") if p.exists()), None
        )
        assert path is not None or module == "pytest", example
    else:
        path = ROOT / words[0]
        assert path.suffix != ".py" or path.exists(), example
    for option in (word for word in words[1:] if word.startswith("--")):
        assert path is not None, example
        assert f'"{option}"' in path.read_text(), f"{example}: {path} has no {option}"
