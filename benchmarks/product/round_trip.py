"""Tunes deployments of public projects and writes each recommended command into its own file.

    python -m benchmarks.product.round_trip --out ROUND [--launches 16] [--seeds 3] [FILE …]

For each file of ``tests/outputs/manifests``: `run --baseline FILE` on the simulator, `export --onto
FILE`, the checks that the file is valid and that nothing else changed, then `run --from FIRST
--baseline NEWFILE` with each seed. A second study must end *indistinguishable*, or name a gain
whose interval excludes 0. What is in ``--out`` already is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.outputs.manifests import HERE, SOURCES, check_nothing_else, check_valid

PROGRAM = Path(sys.executable).with_name("autotune")
HEAD = ["file", "gain", "lines", "reasons", "valid", "nothing else", "second studies", "fulfilled"]


def autotune(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


def study(
    source: dict[str, Any], file: Path, name: str, asked: argparse.Namespace, *more: str
) -> Any:
    """The recommendation of a study with that file as its baseline, or the refusal."""
    place = asked.out / "studies" / name / "recommendation.json"
    if not place.exists():
        part = f"#{source['part']}" if "part" in source else ""
        options = ["--hw", source["hw"], "--gpus", str(source["gpus"]), "--on", "simulator"]
        options += ["--model", source["model"], "--engine", source["engine"]]
        options += source.get("options", [])
        options += ["--launches", str(asked.launches), "--study", name, "--home", str(asked.out)]
        done = autotune("run", *options, "--baseline", f"{file}{part}", *more)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return json.loads(place.read_text())


def fulfilled(row: dict[str, Any]) -> bool:
    ends = row["gain_ci95"]
    return row["verdict"] == "indistinguishable" or bool(ends and (ends[0] > 0 or ends[1] < 0))


def said(row: dict[str, Any]) -> str:
    if row["verdict"] == "indistinguishable" or row["gain_percent"] is None:
        return str(row["verdict"])
    low, high = row["gain_ci95"]
    return f"{row['verdict']} {row['gain_percent']:+.1f} ({low:+.1f} to {high:+.1f})"


def holds(check: Any, *arguments: Any) -> str:
    try:
        check(*arguments)
    except Exception as error:
        return f"no: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}"
    return "yes"


def round_trip(source: dict[str, Any], asked: argparse.Namespace) -> list[str]:
    file, stem = HERE / source["file"], source["file"].partition(".")[0]
    first = study(source, file, f"{stem}-first", asked, "--seed", "0")
    if isinstance(first, str):
        return [source["file"], first]
    part = f"#{source['part']}" if "part" in source else ""
    new = asked.out / source["file"]
    done = autotune(
        "export",
        f"{stem}-first",
        "--onto",
        f"{file}{part}",
        "-o",
        new,
        "--json",
        "--home",
        asked.out,
    )
    print(f"\n## {source['file']}\n{done.stderr}", flush=True)
    if done.returncode:
        return [source["file"], said(first), done.stderr.strip().splitlines()[-1]]
    answer = json.loads(done.stdout)
    reasons = sum(bool(one["reason"]) for one in answer["changes"])
    # One of several servers that the new file starts.
    each = source["gpus"] // (first["config"].get("replicas") or 1)
    rows = [
        study(
            {**source, "gpus": each},
            new,
            f"{stem}-{seed}",
            asked,
            "--from",
            f"{stem}-first",
            "--seed",
            str(seed),
        )
        for seed in range(1, asked.seeds + 1)
    ]
    ends = [one if isinstance(one, str) else said(one) for one in rows]
    good = sum(not isinstance(one, str) and fulfilled(one) for one in rows)
    return [
        source["file"],
        said(first),
        str(len(answer["changes"])),
        str(reasons),
        holds(check_valid, new),
        holds(check_nothing_else, new, file.read_text(), new.read_text()),
        "; ".join(ends),
        f"{good} of {len(rows)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--launches", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.out = asked.out.resolve()
    rows = [
        round_trip(one, asked) for one in SOURCES if one["file"] in asked.files or not asked.files
    ]
    for row in [HEAD, ["---"] * len(HEAD), *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
