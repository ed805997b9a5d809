#!/usr/bin/env bash
# vLLM 0.33.0: --disable-log-requests, refused from 0.17.0 to 0.32.0, is taken again, and so is --disable-x for each switch --enable-x.
#
# Guess: an option that was deprecated for months and removed in 0.17.0 stays removed; scripts that still have it fail on 0.33.0 as on 0.32.0
# ("unrecognized arguments"), and the only way to switch --enable-prefix-caching off is --no-enable-prefix-caching.
# Seen: 0.33.0's parser replaces argparse's BooleanOptionalAction by an action of its own that pairs --enable-x with --disable-x, both ways:
# --disable-log-requests and --disable-prefix-caching switch off what --enable-… switches on, and --enable-cascade-attn unsets
# --disable-cascade-attn. The spelling --no-enable-x still works and is left out of the help. A plain switch (store_true), such as
# --disable-log-stats, has no counterpart. The word --disable-log-requests stands nowhere in arg_utils.py of either release.
# Who meets it: whoever upgrades scripts by the errors of one release, or keeps a list of removed options: it is right for 0.32.0 and wrong
# for 0.33.0. A command that 0.33.0 takes is refused one release earlier, with no hint of the version.
#
# Output seen (2026-11-28, CPython 3.11, Linux; one file of each wheel, without vLLM's dependencies):
#   0.32.0 --disable-log-requests: refused
#   0.32.0 --disable-prefix-caching: refused
#   0.32.0 --enable-cascade-attn: refused
#   0.32.0 --enable-log-stats: refused
#   0.32.0 --no-enable-log-requests: log_requests=False
#   0.33.0 --disable-log-requests: log_requests=False
#   0.33.0 --disable-prefix-caching: prefix_caching=False
#   0.33.0 --enable-cascade-attn: disable_cascade_attn=False
#   0.33.0 --enable-log-stats: refused
#   0.33.0 --no-enable-log-requests: log_requests=False
# Needs 1 GB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check regex pyyaml
for version in 0.32.0 0.33.0; do
    "$folder/env/bin/pip" download -q --disable-pip-version-check --no-deps -d "$folder/$version" "vllm==$version"
done

cat >"$folder/ask.py" <<'PYTHON'
"""Give one release's own parser five switches, declared as that release declares them."""

import argparse
import contextlib
import importlib.util
import io
import logging
import sys
import types
import zipfile
from pathlib import Path

folder, version = Path(sys.argv[1]), sys.argv[2]
(wheel,) = (folder / version).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    parser_file = Path(archive.extract("vllm/utils/argparse_utils.py", folder / version))
    declared = archive.read("vllm/engine/arg_utils.py").decode()
assert '"--enable-log-requests"' in declared
assert "--disable-log-requests" not in declared

# The file needs nothing of vLLM but a logger.
sys.modules["vllm"] = types.ModuleType("vllm")
sys.modules["vllm.logger"] = types.ModuleType("vllm.logger")
sys.modules["vllm.logger"].init_logger = logging.getLogger
spec = importlib.util.spec_from_file_location("argparse_utils", parser_file)
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)

for word in (
    "--disable-log-requests",
    "--disable-prefix-caching",
    "--enable-cascade-attn",
    "--enable-log-stats",
    "--no-enable-log-requests",
):
    parser = utils.FlexibleArgumentParser()
    for flag, dest in (
        ("--enable-log-requests", "log_requests"),
        ("--enable-prefix-caching", "prefix_caching"),
        ("--disable-cascade-attn", "disable_cascade_attn"),
    ):
        parser.add_argument(flag, dest=dest, action=argparse.BooleanOptionalAction)
    parser.add_argument("--disable-log-stats", action="store_true", default=None)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            found = {k: v for k, v in vars(parser.parse_args([word])).items() if v is not None}
            told = ", ".join(f"{name}={value}" for name, value in found.items())
        except SystemExit:
            told = "refused"
    print(f"{version} {word}: {told}")
PYTHON

for version in 0.32.0 0.33.0; do
    "$folder/env/bin/python" "$folder/ask.py" "$folder" "$version"
done >"$folder/told"
cat "$folder/told"
sed -n 's/^#   \(0\.3[23]\.0 .*\)/\1/p' "$0" | diff - "$folder/told"
