#!/usr/bin/env bash
# SGLang 0.4.3 to 0.5.23: --num-continuous-decode-steps, which recipes for AMD's GPUs tune, does nothing.
#
# Guess: with 8 in place of 4 the scheduler runs more decoding steps before it looks for new requests, as the help says
# ("Run multiple continuous decoding steps to reduce scheduling overhead"); a changelog of launch scripts tells 4.7 % more
# throughput of it (https://github.com/SemiAnalysisAI/InferenceX/pull/1243, SGLang's cookbook sets 4).
# Seen: the parser takes the option, and its value is stored; no other line of the package's Python reads it, in the oldest
# version asked (0.4.3.post2) as in the newest.
# Who meets it: whoever copies a recipe, or tunes this option: its trials measure noise.
#
# Output seen (2026-11-28, CPython 3.11, Linux):
#   sglang 0.4.3.post2: 2 lines, both where the option is declared
#   sglang 0.5.12.post1: 4 lines, all where the option is declared or listed
#   sglang 0.5.23: 2 lines, both where the option is declared
# Needs 200 MB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/ask.py" <<'PYTHON'
"""Print the lines of a package's Python that name the option, and fail if one of them reads it."""

import re
import sys
from pathlib import Path

DECLARED = re.compile(
    r"num_continuous_decode_steps: (?:int = 1$|A\[$)"  # a field
    r"|default=ServerArgs\.num_continuous_decode_steps,$"  # its option
    r'|^\s*"num_continuous_decode_steps"(?:,$|: "decode_steps",$)'  # a list of fields' names
)
lines = [
    (path, line)
    for path in sorted(Path(sys.argv[1]).rglob("*.py"))
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    if "num_continuous_decode_steps" in line
]
readers = [f"{path}: {line.strip()}" for path, line in lines if not DECLARED.search(line)]
print(f"{len(lines)} lines, {len(lines) - len(readers)} where the option is declared or listed")
sys.exit("\n".join(readers) if readers or not lines else 0)
PYTHON

for version in 0.4.3.post2 0.5.12.post1 0.5.23; do
  python3 -m pip install -q --disable-pip-version-check --no-deps --target "$folder/$version" "sglang==$version"
  printf 'sglang %s: ' "$version"
  python3 "$folder/ask.py" "$folder/$version"
done
echo "as described: nothing reads --num-continuous-decode-steps"
