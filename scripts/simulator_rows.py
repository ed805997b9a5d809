"""Prints the measured rows beside what the simulator says of them, or rewrites their file.

    python scripts/simulator_rows.py [WORD …] [--worst N]
    python scripts/simulator_rows.py --from FILE

``docs/simulator-rows.csv`` has a line per point of a fit that began at physics: total tokens per
second measured (*warm*: less the seconds in which a cold server answered no request), predicted
with the 90 % interval, and their ratio; the ratio by a fit that has not seen the point's engine,
GPU, workload, curve, model or version; ratios of mean TTFT and TPOT; the spread of equivalent rows
in percent. A row is printed where it holds every word. ``--from`` takes what ``autotune calibrate
--cross-validate`` printed.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "docs" / "simulator-rows.csv"
_THOUSANDS = re.compile(r"(?<=\d)[\s\u202f\u00a0](?=\d{3}\b)")
_SHOWN = (
    "point",
    "model",
    "engine",
    "GPUs",
    "configuration",
    "workload",
    "measured",
    "predicted",
    "ratio",
    "inside",
)


def from_markdown(text: str) -> list[dict[str, str]]:
    """Read the table that ``autotune calibrate`` prints; its intervals become the columns ``low``
    and ``high``."""
    lines = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| ")
    ]
    if not lines:
        raise SystemExit("no table: give what `autotune calibrate --cross-validate` printed")
    header = [cell.strip() for cell in lines[0]]
    rows = []
    for line in lines[1:]:
        cells = (cell.strip().replace("\\|", "|").replace("–", "") for cell in line)
        row = dict(zip(header, (_THOUSANDS.sub("", cell) for cell in cells), strict=True))
        low, _, high = row.pop("90 % interval").partition(" to ")
        rows.append({**row, "low": low, "high": high})
    return rows


def holding(
    rows: Sequence[dict[str, str]], words: Sequence[str], worst: int | None
) -> list[dict[str, str]]:
    """Choose the rows that hold every word; of `worst` that many, those furthest off first."""
    found = [
        row for row in rows if all(any(word in cell for cell in row.values()) for word in words)
    ]
    if worst is None:
        return found
    return sorted(
        (row for row in found if row["ratio"]), key=lambda row: -abs(math.log(float(row["ratio"])))
    )[:worst]


def main() -> None:
    """Print rows, or write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="print rows that hold it")
    parser.add_argument(
        "--worst", type=int, metavar="N", help="print the N rows that are furthest off"
    )
    parser.add_argument(
        "--from", type=Path, dest="table", metavar="FILE", help="rewrite the file from it"
    )
    asked = parser.parse_args()
    if asked.table is not None:
        rows = from_markdown(asked.table.read_text(encoding="utf-8"))
        with FILE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {FILE}, {len(rows)} rows")
        return
    with FILE.open(newline="", encoding="utf-8") as file:
        found = holding(list(csv.DictReader(file)), asked.words, asked.worst)
    widths = {name: max([len(name), *(len(row[name][:48]) for row in found)]) for name in _SHOWN}
    for row in ({name: name for name in _SHOWN}, *found):
        print("  ".join(f"{row[name][:48]:<{width}}" for name, width in widths.items()).rstrip())
    print(f"{len(found)} rows")


if __name__ == "__main__":
    main()
