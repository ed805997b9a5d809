#!/usr/bin/env bash
# safetensors 0.8.0: save_file() makes a new file of mode 0600 and renames it over the old one.
#
# Guess: as up to 0.7.0, the file is written in place: its mode follows the umask (0644), an existing mode stays, a
# symbolic link is written through, a hard link sees the new bytes.
# Seen with 0.8.0: the mode is 0600 whatever the umask or the old mode; a symbolic link (as of a Hub cache's snapshot) becomes a
# file of its own, and what it pointed to keeps the old tensors; a hard link keeps them too.
# Who meets it: weights that one user saves and a server in a container, or of another user, reads ("Permission denied"); a
# link to a shared copy; a program that takes mode 0600 for "private to the process that made it".
#
# Output seen (2026-11-27, CPython 3.11, Linux):
#   0.7.0 new 0644, over 0640 0640, link kept True, target new True, hard link new True
#   0.8.0 new 0600, over 0640 0600, link kept False, target new False, hard link new False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
cat > ask.py <<'PYTHON'
import os
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file


def mode(path):
    return f"{os.stat(path).st_mode & 0o777:04o}"


def fresh(name):
    for path in (name, f"{name}.link", f"{name}.hard"):
        Path(path).unlink(missing_ok=True)
    return name


def is_new(path):
    return bool((load_file(path)["a"] == 1).all())


os.umask(0o022)
old, new = {"a": np.zeros(4)}, {"a": np.ones(4)}
save_file(old, fresh("plain"))
made = mode("plain")
os.chmod("plain", 0o640)
save_file(new, "plain")
over = mode("plain")
save_file(old, fresh("target"))
os.symlink("target", "target.link")
save_file(new, "target.link")
link, target = os.path.islink("target.link"), is_new("target")
save_file(old, fresh("shared"))
os.link("shared", "shared.hard")
save_file(new, "shared")
hard = is_new("shared.hard")
print(safetensors.__version__, f"new {made}, over 0640 {over}, link kept {link}, target new {target}, hard link new {hard}")
PYTHON
for version in 0.7.0 0.8.0; do
  venv/bin/pip install --quiet "numpy==2.4.6" "safetensors==$version" 2>/dev/null
  venv/bin/python ask.py | tee -a seen
done
diff - seen <<'SEEN'
0.7.0 new 0644, over 0640 0640, link kept True, target new True, hard link new True
0.8.0 new 0600, over 0640 0600, link kept False, target new False, hard link new False
SEEN
echo "as stated"
