"""Read many configurations by the engines' own code and by the product, compare, and write
docs/configurations.md.

    python -m tests.real_engines.environment ENVIRONMENT
    python -m tests.real_engines.configs ENVIRONMENT FOLDER --page docs/configurations.md

What an engine is asked: `read_configs`; the product: `read_by_product`; which files: `config_sets`;
what is compared: `config_compare`. An engine's answers are kept in the folder, a line for each
model, and not asked for again; the product is asked every time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from autotune.engines import Library
from tests.real_engines.config_compare import Comparison, Row, Rows, compare, read_rows
from tests.real_engines.config_page import page
from tests.real_engines.config_sets import SETS, write_sets
from tests.real_engines.conformance import node_of
from tests.real_engines.environment import VERSIONS, sources
from tests.real_engines.process import JsonProcess, engine_environment

HERE = Path(__file__).parent
RANKS = {"published": (1, 2, 4, 8), "sizes": (1, 2, 4, 8), "defaults": (1, 8)}
SECONDS = 60
"""Of one answer; a model's class of many layers takes up to a minute on a busy machine."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Whom files are put to: an engine in a version, or the product about it."""

    engine: str
    version: str
    environment: Path
    work: Path
    product: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.version}"

    def start(self, number: int) -> JsonProcess:
        """Start one of its processes."""
        node = node_of(Library().node("h200"), 8)
        if self.product is not None:
            script = self.product / "tests" / "real_engines" / "read_by_product.py"
            argv = [sys.executable, str(script), self.engine, self.version]
            environment = {**os.environ, "PYTHONPATH": str(self.product)}
            log = self.work / f"product-{self.name}.log"
            return JsonProcess(argv, environment, self.work, log, node)
        scratch = self.work / f"{self.name}-{number}"
        scratch.mkdir(exist_ok=True)
        argv = [str(self.environment / "bin" / "python"), str(HERE / "read_configs.py")]
        return JsonProcess(
            [*argv, self.engine, str(scratch)],
            engine_environment(sources(self.environment, self.engine, self.version), scratch)
            | {"VLLM_HAS_FLASHINFER_CUBIN": "1"},
            scratch,
            scratch / "log",
            node,
        )

    def read(self, process: JsonProcess, group: str, folder: Path) -> Row:
        """Facts of a file; then, where these are given, a layout for each number of ranks."""
        about = {"folder": str(folder), "seconds": SECONDS}
        began = time.monotonic()
        row: Row = {"set": group, "name": folder.name, "of": digest(folder)}
        row |= {"facts": process.tell(about), "ranks": {}}
        built = self.engine == "vllm" or self.product is not None
        if built and row["facts"].get("known", "refused" not in row["facts"]):
            for ranks in RANKS[group]:
                row["ranks"][str(ranks)] = layout = process.tell({**about, "ranks": ranks})
                if "slow" in layout:
                    break
            else:
                row["fp8"] = process.tell({**about, "ranks": 1, "cache": "fp8"})
        return {**row, "seconds": round(time.monotonic() - began, 2)}


def digest(folder: Path) -> int:
    """Tell a model's files from what they were when they were asked about."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(folder.glob("*.json"))))


def unasked(files: Sequence[tuple[str, Path]], rows: Rows) -> list[tuple[str, Path]]:
    """Files without an answer to what they are now."""
    there = {key: row["of"] for key, row in rows.items()}
    return [one for one in files if there.get((one[0], one[1].name)) != digest(one[1])]


def ask(asker: Asker, files: Sequence[tuple[str, Path]], rows: Path, jobs: int) -> None:
    """Put files to some processes side by side; each answer is added to the rows as it comes."""
    waiting, lock = iter(files), Lock()

    def work(number: int) -> None:
        with closing(asker.start(number)) as process, rows.open("a") as out:
            while True:
                with lock:
                    one = next(waiting, None)
                if one is None:
                    return
                row = asker.read(process, *one)
                with lock:
                    out.write(json.dumps(row) + "\n")
                    out.flush()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))


def _asked(given: argparse.Namespace) -> Iterator[tuple[Comparison, Comparison | None]]:
    work: Path = given.folder.resolve()
    environment: Path = given.environment.resolve()
    sets = write_sets(work / "configs", environment)
    files = [(group, one) for group in given.set or SETS for one in sets[group]]
    wanted = {(group, one.name) for group, one in files}
    for engine, version in given.engine or VERSIONS.items():
        asker = Asker(engine, version, environment, work)
        rows = work / f"{asker.name}.jsonl"
        rows.touch()
        left = unasked(files, read_rows(rows))
        began = time.monotonic()
        if left:
            ask(asker, left, rows, given.jobs)
        print(f"{asker.name}: {len(left)} files asked in {time.monotonic() - began:.0f} s")
        product = Asker(engine, version, environment, work, given.product.resolve())
        ours = work / f"{given.name}-{asker.name}.jsonl"
        ours.unlink(missing_ok=True)
        ask(product, files, ours, 1)
        theirs = {key: row for key, row in read_rows(rows).items() if key in wanted}
        earlier = work / f"{given.before}-{asker.name}.jsonl"
        before = compare(engine, version, read_rows(earlier), theirs) if given.before else None
        yield compare(engine, version, read_rows(ours), theirs), before


def _engine(text: str) -> tuple[str, str]:
    engine, _, version = text.partition("==")
    return engine, version or VERSIONS[engine]


def main(words: Sequence[str] | None = None) -> int:
    """Ask, compare, print what differs, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment", type=Path, help="of tests.real_engines.environment")
    parser.add_argument("folder", type=Path, help="where configurations and answers are kept")
    parser.add_argument("--engine", action="append", type=_engine, help="vllm==0.32.0; default all")
    parser.add_argument("--set", action="append", choices=SETS, help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes of an engine (%(default)s)")
    parser.add_argument(
        "--product", type=Path, default=HERE.parents[1], help="checkout that reads (this one)"
    )
    parser.add_argument("--name", default="product", help="of the file with the product's answers")
    parser.add_argument("--before", help="name of an older product's answers, to count beside")
    parser.add_argument("--page", type=Path, help="write the page")
    given = parser.parse_args(words)
    now, before = [], []
    for one, earlier in _asked(given):
        now.append(one)
        before += [earlier] if earlier else []
        print(*one.lines(), sep="\n", flush=True)
    if given.page:
        given.page.write_text(page(now, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
