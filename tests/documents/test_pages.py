"""The pages as a whole: how many command lines they have, which cannot run here and why, and that
options exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from autotune.cli.main import cli
from scripts import cli_reference, prose
from tests.documents.pages import NEEDS, PAGES, ROOT, all_examples, examples, spans
from tests.documents.running import Treatment, treatment

OTHERS = {
    *(
        "--cpus-per-task",
        "--disable-usage-stats",
        "--num-gpus",
    ),  # Slurm's and Ray's: tests/documents/test_cluster_page.py
    *(
        "--rm",
        "--shm-size",
        "--volumes",
        "--save-detailed",
        "-e",
        "-m",
        "---",
        "--",
    ),  # docker, vLLM bench, pip, sh
}
"""What the pages say of other programs' options."""


def test_every_command_line_is_run_or_says_what_it_needs() -> None:
    found = all_examples()
    assert len({example.page for example in found}) > 25
    treated = Counter(treatment(example) for example in found)
    assert treated[Treatment.RUN] >= 75
    needs = Counter(example.needs for example in found if example.needs is not None)
    assert set(needs) <= set(NEEDS)
    # A mark more is a documented command fewer that a test runs: raise a count only for what truly
    # cannot run.
    most = {"GPUs": 2, "Docker": 2, "a cluster": 8, "a network": 9, "an engine": 11, "hours": 5}
    assert {need: count for need, count in needs.items() if count > most[need]} == {}


def test_a_mark_is_for_the_next_block_alone() -> None:
    page = ROOT / "docs" / "containers.md"
    here = [(example.needs, "--dry-run" in example.text) for example in examples(page)]
    assert (None, True) in here
    assert ("Docker", False) in here


def test_every_option_that_a_page_names_exists() -> None:
    known = set(options(cli)) | {"--help", "--version"} | OTHERS
    for path in (ROOT / "search_spaces").glob("*/options/*.json"):
        known |= set(re.findall(r'"(--?[\w.-]+)"', path.read_text()))
    for folder in ("benchmarks", "scripts", "examples", "tests/real_engines"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml") and ".venv" not in path.parts:
                known |= set(re.findall(r"--?[a-z][\w-]*", path.read_text()))
    named = {
        (str(path.relative_to(ROOT)), line, re.split(r"[ =]", text)[0])
        for path in PAGES
        for line, text in spans(path)
        if re.match(r"-\S", text)
    }
    assert len(named) > 200
    assert sorted(one for one in named if one[2] not in known) == []


def test_every_module_that_a_search_space_names_exists() -> None:
    named = {
        (path.name, module)
        for path in (ROOT / "search_spaces").rglob("*.yaml")
        for module in re.findall(r"autotune/[\w/]+\.py", path.read_text())
    }
    assert len(named) > 5
    assert [one for one in sorted(named) if not (ROOT / one[1]).is_file()] == []


def test_every_link_to_a_file_leads_to_it_and_to_its_heading() -> None:
    links = [(page, target) for page in PAGES for target in links_of(page)]
    assert len(links) > 150
    assert [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in links
        if not leads_somewhere(page, target)
    ] == []
    assert not leads_somewhere(ROOT / "README.md", "docs/index.md#no-such-heading")


def test_every_path_of_the_repository_that_a_page_names_exists() -> None:
    folders = "autotune|benchmarks|docs|examples|scripts|search_spaces|tests"
    named = {
        (str(path.relative_to(ROOT)), line, found[0])
        for path in PAGES
        for line, text in spans(path)
        if (found := re.match(rf"(?:{folders})/[\w./-]+(?=$|[ ,:;])", text))
    }
    assert len(named) > 80
    others = {
        "autotune/tuner/backends/numactl.py",
        "docs/performance-lab",
    }  # to be written; a folder of GPUStack's
    assert (
        sorted(one for one in named if not (ROOT / one[2]).exists() and one[2] not in others) == []
    )


def links_of(page: Path) -> list[str]:
    """Return the targets of a page's links that are no addresses."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def leads_somewhere(page: Path, target: str) -> bool:
    """Return True if a link's file exists and has its heading."""
    name, _, heading = target.partition("#")
    file = (page.parent / name) if name else page
    return file.exists() and (not heading or heading in headings(file))


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site make them of its headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    shown = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one)
        for one in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in shown}


def test_the_reference_of_commands_is_what_the_command_line_says() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.page(), (
        "python scripts/cli_reference.py writes it again"
    )
    assert "\n## autotune run\n" in cli_reference.page()


def test_the_check_of_the_pages_english_finds_what_nobody_says(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "Told are the median\nand the quartiles. It gives nothing up. What fails is `told` in a row.\n"
    page.write_text(f"# Title\n\n{text}\n```text\nit is told\n```\n\nWhat is a node? It runs.\n")
    found = [
        re.sub(r"^.*page.md:(\d+): ('.*'); write.*$", r"\1 \2", one) for one in prose.findings(page)
    ]
    assert found == ["3 'Told'", "3 'Told are'", "3 'gives nothing up'", "3 'What '"]


def test_the_check_of_english_reads_the_first_lines_of_docstrings_and_the_messages(
    tmp_path: Path,
) -> None:
    module = tmp_path / "module.py"
    body = [
        "def f(told):",
        '    """Return a `told`.',
        "",
        "    It is told.",
        '    """',
        '    return f"{told} may be given up"',
    ]
    module.write_text(
        "\n".join(['"""What a module does."""', 'TOLD = "told"  # is told', "", *body, ""])
    )
    found = [
        re.sub(r"^.*module.py:(\d+): ('.*'); write.*$", r"\1 \2", one)
        for one in prose.findings(module)
    ]
    assert sorted(found) == ["1 'What '", "9 'given up'"]


def test_the_check_of_english_reads_how_a_comment_begins(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "# What is kept: all.\n\n# Because it is\n# What it is.\nx = 1  # Of course\ny = 2  # A sum\n"
    )
    found = [
        re.sub(r"^.*module.py:(\d+): (# '.*'); begin.*$", r"\1 \2", one)
        for one in prose.findings(module)
    ]
    assert found == ["1 # 'What is kept: all.'", "5 # 'Of course'"]


def options(command: click.Command) -> Iterator[str]:
    """Yield the options of a command and of those below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options(below)


def table() -> str:
    """Count the command lines of all pages, as JSON."""
    found = all_examples()
    counted = Counter(treatment(example).value for example in found)
    needs = Counter(example.needs for example in found if example.needs is not None)
    return json.dumps({"command lines": len(found), **counted, "marked for": dict(needs)}, indent=2)


if __name__ == "__main__":
    print(table())
