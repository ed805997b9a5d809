"""``python -m tests.product.public_cases [public|given]``: the table of the cases, and the figure."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.product.public_cases import cases, outcome_of

_WIDEST = 200

name = sys.argv[1] if len(sys.argv) > 1 else "public"
right = 0
listed = cases(name)
print("| case | what | verdict | read |\n|---|---|---|---|")
with TemporaryDirectory() as home:
    for case in listed:
        outcome = outcome_of(case, Path(home))
        right += outcome.verdict == "right"
        read = outcome.read.replace("|", "\\|")
        short = read if len(read) <= _WIDEST else f"{read[:_WIDEST]}…"
        print(f"| {case.id} | {case.about} | {outcome.verdict} | {short} |")
print(f"\n{right} of {len(listed)} right")
