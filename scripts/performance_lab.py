"""Replays the launches that GPUStack's performance lab published, and writes what studies of them
come to.

    python scripts/performance_lab.py seed_measurements.json --home mlruns --out
    docs/performance-lab.md

The file has the layout that ``scripts/calibration_table.py`` describes. What stands in the output
from the heading `KEPT` on stays as it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines.command import Configuration
from autotune.engines.context import Context, normalised
from autotune.engines.library import Library
from autotune.engines.registry import recognise, split_command
from autotune.load.metrics.readable import percent
from autotune.outputs.report.text import table
from autotune.tuner.study.home import Home
from autotune.tuner.study.recommendation import Recommendation

MODELS = {"r1": "deepseek-ai/DeepSeek-R1-0528", "v32": "deepseek-ai/DeepSeek-V3.2"}
"""Name of a document's study to its model."""
STEPS = {
    "r1": (("engine", 1, 2), ("parallelism", 2, 4)),
    "v32": (
        *(
            ("parallelism", 1, 14),
            ("tool calls", 14, 18),
            ("context length", 18, 19),
            ("attention backend", 19, 21),
        ),
        ("all of it", 1, 21),
    ),
}
"""The steps of a document: name, and the numbers of the commands before and after."""
LAUNCHES = 60
"""More than there are commands: with ``--sampler random`` every one is launched."""
KEPT = "\n## H200 against MI300X"
"""The heading from which on the output is kept."""
_METRICS = {
    "total_throughput": "total_token_throughput",
    "output_throughput": "output_throughput",
    "peak_output_throughput": "max_output_tokens_per_s",
    **{
        f"{s}_{kind}_ms": f"{s}_{kind}_ms"
        for kind in ("ttft", "tpot", "itl")
        for s in ("mean", "median", "p99")
    },
}
"""The lab's names of metrics to ours."""
_NO_OPTIONS = {"--host", "--port", "--model", "--model-path", "--model-tag"}
_INTRO = """\
# The performance lab's documents, replayed

GPUStack's performance lab (gpustack/gpustack, `docs/performance-lab`, Apache-2.0) published serving commands of
DeepSeek-R1 and DeepSeek-V3.2 on 8×H200 with their benchmarks. The figures here are its measurements, single runs each,
replayed by a study (`--on replay:FILE`); gains, configurations and comments are ours. The page is written
by `python scripts/performance_lab.py seed_measurements.json --home mlruns --out docs/performance-lab.md`, and a test
compares every table with the documents. *Ran as*: commands with equal letters resolve to one configuration (twins), and
their difference is launch noise. Gains are over command 1; throughput is total tokens/s. The search launched every
command (`--sampler random`) to fill the tables; the default sampler ends with the same two recommendations, on V3.2
after 20 of the 24 commands.
"""
_NOTES = {
    "v32": "- The document's table of conclusions uses other runs, without benchmarks except 7,351.59 and 3,112.52 "
    "tokens/s; the table above uses the published benchmarks. Its +78.8 % on ShareGPT is over a baseline of "
    "4,113.24, where the one with a benchmark reached 5,713.95."
}
"""What is to be said of a document beyond its figures."""
_LIBRARY = Library()


BEFORE_AND_AFTER = (
    "Workload",
    "Baseline",
    "Baseline TPOT",
    "Recommended",
    "Recommended TPOT",
    "Gain",
)


@dataclass(frozen=True)
class Command:
    """A command of a document.

    Attributes:
        options: as typed, by their long names, and settings in front of it.
        ran: the configuration that the engine makes of it.
        capped: the requests in flight that the engine caps it at by itself; 0: it does not.
        metrics: workload to its figures.
    """

    engine: str
    version: str
    options: dict[str, str]
    ran: Configuration
    capped: int
    metrics: dict[str, dict[str, float]]
    failure: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Command:
        """Read a row of the file as the engine's version reads its command."""
        split = split_command(row["command"])
        kind = recognise(split.argv)
        version = kind.version(row["engine_version"])
        parsed = kind.parse(split, version)
        given = {
            f"--{name.replace('_', '-')}": parsed.args.get(name) for name in sorted(parsed.given)
        }
        options = {name: cell(value) for name, value in given.items() if name not in _NO_OPTIONS}
        context = Context(_LIBRARY.model(row["model"]), _LIBRARY.node("h200"), 8, version, 0)
        made, effects = normalised(kind.card, kind.knobs(parsed, context), context)
        capped = next(
            (
                int(e.set["max_running_requests"])
                for e in effects
                if "max_running_requests" in e.set
            ),
            0,
        )
        options |= parsed.env
        return cls(
            kind.name, row["engine_version"], options, made, capped, {}, row.get("failure", "")
        )

    def line(self) -> dict[str, str]:
        """A line of a replay file."""
        cells = {
            "engine": self.engine,
            "engine_version": self.version,
            "failure": self.failure,
            **self.options,
        }
        for name, metrics in self.metrics.items():
            prefix = "" if name == "sharegpt" else f"{name}:"
            cells |= {f"{prefix}{metric}": str(value) for metric, value in metrics.items()}
        return cells


def cell(value: object) -> str:
    """A value as a table has it."""
    return value if isinstance(value, str) else json.dumps(value)


def workload(row: Mapping[str, Any]) -> str:
    """The name of a row's workload."""
    load = row["workload"]
    if load["dataset"] == "sharegpt":
        return (
            "sharegpt"
            if load["max_concurrency"] is None
            else f"sharegpt-c{load['max_concurrency']:.0f}"
        )
    return f"random:{load['input_len']}:{load['output_len']}:{load['num_prompts']}"


def commands(path: Path, model: str) -> list[Command]:
    """The commands of a document in its order, each with the figures of all of its workloads."""
    found: dict[str, Command] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        if row["model"] == model:
            command = Command.of(row)
            same = found.setdefault(
                json.dumps([command.version, command.options], sort_keys=True), command
            )
            known = {
                ours: row[theirs]
                for theirs, ours in _METRICS.items()
                if row.get(theirs) is not None
            }
            same.metrics.setdefault(workload(row), known)
    return list(found.values())


def replay(home: Path, study: str, model: str, document: Sequence[Command]) -> None:
    """Replay a document as a study that launches all of its commands."""
    home.mkdir(parents=True, exist_ok=True)
    lines, path = [command.line() for command in document], home / f"{study}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
        writer.writeheader()
        writer.writerows(lines)
    words = [
        "run",
        "--model",
        model,
        "--hw",
        "h200",
        "--on",
        f"replay:{path}",
        "--study",
        study,
        "--home",
        str(home),
    ]
    for load in dict.fromkeys(load for command in document for load in command.metrics):
        words += ["--workload", load]
    words += ["--sampler", "random", "--launches", str(LAUNCHES)]
    subprocess.run([sys.executable, "-m", "autotune", *words], check=True, stdout=sys.stderr)


def figures(home: Path, study: str, document: Sequence[Command]) -> dict[int, dict[str, Any]]:
    """The metrics of each command's launch by workload, by the command's number; {} of one that
    failed."""
    asked = [{"engine_version": command.version, **command.options} for command in document]
    rows = {}
    for launch in Home(home).launches(study):
        given = {
            name: cell(value)
            for name, value in launch.trial.configuration.knobs.items()
            if value is not None
        }
        engine = launch.trial.configuration.engine
        number = next(
            i for i, one in enumerate(asked, 1) if one == given and document[i - 1].engine == engine
        )
        # A final has more workloads than the launches of the search.
        rows[number] = {**rows.get(number, {}), **launch.result.metrics}
    return rows


def twins(document: Sequence[Command]) -> dict[int, str]:
    """A letter for each command that comes to a configuration of another one, too, by number."""
    numbers: dict[str, list[int]] = {}
    for number, command in enumerate(document, 1):
        numbers.setdefault(command.version + command.ran.fingerprint, []).append(number)
    groups = [group for group in numbers.values() if len(group) > 1]
    return {
        number: letter for letter, group in zip("ABCDEF", groups, strict=False) for number in group
    }


def _rows(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(headings, line, strict=True)) for line in lines]


def page(
    name: str,
    document: Sequence[Command],
    rows: Mapping[int, Mapping[str, Any]],
    done: Recommendation,
) -> str:
    """A document's section."""
    loads = {n: row["sharegpt"] for n, row in rows.items() if row}
    tps = {n: load["total_token_throughput"] for n, load in loads.items()}
    same, lines = twins(document), []
    for number, command in enumerate(document, 1):
        asked = " ".join(f"{option}={value}" for option, value in command.options.items())
        ran = [same.get(number, ""), f"at most {command.capped} requests" if command.capped else ""]
        figure = (
            [f"{tps[number]:,.2f}", percent(_gain(tps, 1, number))]
            if number in tps
            else ["failed", ""]
        )
        tpot = f"{loads[number]['mean_tpot_ms']:,.2f}" if number in tps else ""
        engine = f"{command.engine} {command.version}"
        lines.append([str(number), engine, asked, *figure, tpot, "; ".join(filter(None, ran))])
    headings = ["#", "Engine", "Options", "ShareGPT", "Gain", "Mean TPOT (ms)", "Ran as"]
    steps = [
        [
            step,
            f"{a} → {b}",
            percent(_gain(tps, a, b)),
            "between twins" if a in same and same[a] == same.get(b) else "",
        ]
        for step, a, b in STEPS[name]
    ]
    return "\n\n".join(
        [
            f"## {MODELS[name].partition('/')[2]}",
            table(_rows(headings, lines), "r--rrr-"),
            table(_rows(["Step", "Commands", "Gain", "What it is"], steps), "--r-"),
            table(_rows(BEFORE_AND_AFTER, _before_and_after(done)), "-rrrrr"),
            "\n".join(
                [*_conclusions(document, loads, same, done), *filter(None, [_NOTES.get(name)])]
            ),
        ]
    )


def _gain(tps: Mapping[int, float], before: int, after: int) -> float:
    return 100 * (tps[after] / tps[before] - 1)


def _before_and_after(done: Recommendation) -> list[list[str]]:
    lines = []
    for load, both in done.workloads.items():
        cells = []
        for one in (both.baseline, both.recommended):
            cells += (
                ["–", "–"]
                if not one
                else [f"{one['total_token_throughput']:,.2f}", f"{one['mean_tpot_ms']:,.2f}"]
            )
        lines.append([f"`{load}`", *cells, percent(both.gain_percent)])
    return lines


def _conclusions(
    document: Sequence[Command],
    loads: Mapping[int, Mapping[str, float]],
    same: Mapping[int, str],
    done: Recommendation,
) -> list[str]:
    """What is ours to say: the recommended command, how far twins lie apart, and what a cap
    explains."""
    assert done.recommended is not None
    assert done.gain_percent is not None
    lines = [
        f"- Recommended, {percent(done.gain_percent)} (REPLAYED): `{done.recommended.command}`"
    ]
    for letter in dict.fromkeys(same.values()):
        group = [number for number in same if same[number] == letter]
        values = [loads[number]["total_token_throughput"] for number in group]
        lines.append(
            f"- Twins {letter}, commands {' and '.join(map(str, group))}: one configuration, "
            f"{100 * (max(values) / min(values) - 1):.1f} % apart; mean {sum(values) / len(values):,.2f}."
        )
    for number, command in enumerate(document, 1):
        if command.capped:
            load = loads[number]
            carried = 1000 * command.capped / load["mean_tpot_ms"]
            lines.append(
                f"- Command {number} measures the engine's cap and not MTP: {command.capped} requests at "
                f"{load['mean_tpot_ms']:.2f} ms per token are {carried:,.0f} output tokens/s; "
                f"{load['output_throughput']:,.2f} were measured, and the others waited, "
                f"{load['mean_ttft_ms'] / 1000:.0f} s on average."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    parts = [_INTRO]
    for name, model in MODELS.items():
        document = commands(options.file, model)
        replay(options.home, name, model, document)
        done = Home(options.home).recommendation(name)
        assert done is not None
        parts.append(page(name, document, figures(options.home, name, document), done) + "\n")
    before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    kept = before[before.index(KEPT) :] if KEPT in before else ""
    options.out.write_text("\n".join(parts) + kept, encoding="utf-8")


if __name__ == "__main__":
    main()
