"""Runs in an environment that has GPUStack: reads documents as its server does, and tells what came
of them.

Arguments: files. Prints one JSON object per file: the errors of GPUStack's own loader, and the
parsed deployment with its parameters taken apart by the code that hands them to the engine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpustack.schemas.deployment_document import load_deployments
from gpustack.utils.command import flatten_to_argv

for path in sys.argv[1:]:
    (loaded,) = load_deployments(Path(path).read_text())
    entry = loaded.entry.model_dump(mode="json", exclude_none=True) if loaded.entry else {}
    words = flatten_to_argv(entry.get("backend_parameters") or [])
    print(json.dumps({"errors": loaded.errors, "entry": entry, "words": words}))
