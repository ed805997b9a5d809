"""How many launches a search needs: ``python benchmarks/tuner/search.py [--landscape NAME …] [--sampler
NAME …]``.

Every sampler searches every landscape (`landscapes.py`) with every seed; a seed fixes the noise of
each launch and the sampler's own dice. Counted are launches, the baseline as the first, until one
is made that truly is 90, 95 or 98 % of the best; what the best one visited falls short of the best
after 10, 20 and 40; and what the *recommended* one falls short in a study of so many launches. Ours
runs through the product's own path, `Study` and `recommend`, finals included; the others, which
have none, recommend what looked best. ``ours-bare`` and ``ours-bare-no-prior`` are the sampler
alone, for tuning it.

Tables of simulated landscapes are computed on the first run (minutes) and kept in ``--cache``. Data
that is not there is skipped and said so: kernel tables (``--kernel-tables``, see
`kernel_tables.py`), the documents' measurements (``--measured``), torch for Optuna's GPSampler,
which takes half a minute for a run and so gets fewer (``--gp-seeds``), and shorter ones if asked
(``--gp-launches``). ``--base`` runs our samplers of another checkout on the same landscapes, seeds
and noise, as ``base`` and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from landscape import Absent, Landscape, Sources
from landscapes import NAMES, build
from search_figures import as_markdown, as_text, summarised
from search_loops import COMPARED, LOOPS, missing, play

from autotune.base.errors import BadInput

BUDGETS = (10, 20, 40)

_landscapes: dict[str, Landscape] = {}
"""What the forked processes inherit."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = f"default: {', '.join(NAMES)}; also toy, and e.g. walled:r1 or noisy:kernels-v32"
    add("--landscape", nargs="+", default=list(NAMES), metavar="NAME", help=names)
    add(
        "--sampler",
        nargs="+",
        default=list(COMPARED),
        choices=list(LOOPS),
        metavar="NAME",
        help=", ".join(LOOPS),
    )
    add("--seeds", type=int, default=20)
    add(
        "--budgets",
        type=int,
        nargs="+",
        default=list(BUDGETS),
        help="launches; a study of the product's for each",
    )
    add("--gp-seeds", type=int, default=5, help="of Optuna's GPSampler")
    add("--gp-launches", type=int, default=max(BUDGETS), help="of Optuna's GPSampler")
    add("--jobs", type=int, default=2, help="processes")
    add(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "autotune-search-benchmark",
        help="for tables",
    )
    add(
        "--kernel-tables",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="kernels-r1.csv, kernels-v32.csv",
    )
    add(
        "--tuning-tables",
        type=Path,
        metavar="FOLDER",
        help="measured tuning tables of another field",
    )
    add("--measured", type=Path, metavar="FILE", help="the documents' measurements as a table")
    add("--base", type=Path, metavar="CHECKOUT", help="another one, with its own .venv")
    add("--json", type=Path, metavar="FILE", help="every run, with seeds and versions")
    add(
        "--read",
        type=Path,
        metavar="FILE",
        help="print and draw what --json wrote, and run nothing",
    )
    add("--plot", type=Path, metavar="FILE", help="e.g. docs/search.png; needs matplotlib")
    add("--markdown", action="store_true", help="the tables of docs/search.md")
    return parser.parse_args()


def _built(names: Sequence[str], sources: Sources, skipped: dict[str, str]) -> dict[str, Landscape]:
    found: dict[str, Landscape] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = build(name, sources)
        except Absent as why:
            skipped[name] = str(why)
        except KeyError:
            raise SystemExit(f"--landscape {name}: known are toy, {', '.join(NAMES)}") from None
        except (BadInput, OSError) as error:
            raise SystemExit(f"--landscape {name}: {error}") from error
    return found


def _run(task: tuple[str, str, int, tuple[int, ...]]) -> dict[str, Any] | None:
    """One run as JSON: the quality of each launch, and of what is recommended by budget."""
    name, sampler, seed, budgets = task
    landscape, began = _landscapes[name], perf_counter()
    run = play(sampler, landscape, seed, budgets)
    if run is None:
        return None
    served = {k: 0.0 if p is None else landscape.quality(p) for k, p in run.recommended.items()}
    return {
        "landscape": name,
        "sampler": sampler,
        "seed": seed,
        "qualities": [round(landscape.quality(position), 5) for position in run.visited],
        "recommended": {str(budget): round(quality, 5) for budget, quality in served.items()},
        "seconds": round(perf_counter() - began, 2),
    }


def _runs_of_base(asked: argparse.Namespace, samplers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the runs of another checkout's own script, with ``base`` in place of ``ours``."""
    folder = asked.base.resolve()
    options: dict[str, Sequence[Any]] = {
        "landscape": list(_landscapes),
        "sampler": samplers,
        "seeds": [asked.seeds],
        "budgets": asked.budgets,
        "jobs": [asked.jobs],
        "kernel-tables": [path.resolve() for path in asked.kernel_tables],
        "tuning-tables": [asked.tuning_tables.resolve()] if asked.tuning_tables else [],
        "measured": [asked.measured.resolve()] if asked.measured else [],
    }
    with tempfile.TemporaryDirectory(prefix="autotune-search-") as scratch:
        written = Path(scratch) / "base.json"
        command = [folder / ".venv/bin/python", "benchmarks/tuner/search.py", "--json", written]
        for name, values in options.items():
            command += [f"--{name}", *values] if values else []
        # A path to this package would be found before the checkout's own.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = [str(word) for word in command]
        subprocess.run(words, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
        runs = json.loads(written.read_text())["runs"]
    return [{**run, "sampler": run["sampler"].replace("ours", "base", 1)} for run in runs]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("autotune", "optuna", "numpy", "scipy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Every run."""
    skipped = {name: why for name in asked.sampler if (why := missing(name)) is not None}
    sources = Sources(
        asked.cache, tuple(asked.kernel_tables), asked.measured, asked.jobs, asked.tuning_tables
    )
    _landscapes.update(_built(asked.landscape, sources, skipped))
    for name, why in skipped.items():
        print(f"skipped {name}: {why}", flush=True)
    samplers = [name for name in dict.fromkeys(asked.sampler) if name not in skipped]
    seeds = {
        name: min(asked.gp_seeds, asked.seeds) if name == "gp" else asked.seeds for name in samplers
    }
    launches = {
        name: asked.gp_launches if name == "gp" else max(asked.budgets) for name in samplers
    }
    budgets = {
        name: tuple(budget for budget in asked.budgets if budget <= launches[name])
        for name in samplers
    }
    tasks = [
        (name, s, seed, budgets[s])
        for name in _landscapes
        for s in samplers
        for seed in range(seeds[s])
    ]
    runs = []
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        for number, run in enumerate(pool.map(_run, tasks), 1):
            runs += [run] if run is not None else []
            if number == len(tasks) or tasks[number][0] != tasks[number - 1][0]:
                print(f"{number} of {len(tasks)} runs, {tasks[number - 1][0]} is done", flush=True)
    ours = [name for name in samplers if name.startswith("ours")]
    if asked.base and ours:
        runs += _runs_of_base(asked, ours)
        for name in ours:
            base = name.replace("ours", "base", 1)
            seeds[base], launches[base] = seeds[name], launches[name]
    return {
        "seeds": seeds,
        "launches": launches,
        "budgets": asked.budgets,
        "versions": _versions(),
        "skipped": skipped,
        "landscapes": {
            name: {"words": one.words, "kind": one.kind, "figures": one.figures()}
            for name, one in _landscapes.items()
        },
        "runs": runs,
    }


def main() -> None:
    """Run, print the tables, and keep what was asked for."""
    asked = _arguments()
    told = json.loads(asked.read.read_text()) if asked.read else _measured(asked)
    told["summary"] = summarised(told)
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    print(as_markdown(told) if asked.markdown else as_text(told))
    if asked.plot:
        from search_plot import draw

        draw(told, asked.plot)


if __name__ == "__main__":
    main()
