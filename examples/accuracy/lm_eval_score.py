"""Runs lm-eval against a server and prints one task's score with its standard error, as
``--accuracy`` wants it.

    autotune run … --accuracy 'python examples/accuracy/lm_eval_score.py {url} {model} --task gsm8k
    --limit 200'

Needs lm-eval beside it (``pip install 'lm-eval[api]'``), in whose environment it is run, and the
task's data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Score of one lm-eval task, and its standard error."
    )
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument(
        "--metric",
        help="as in lm-eval's results, e.g. 'exact_match,strict-match'; default: the first",
    )
    parser.add_argument("--limit", type=int, default=200, help="items")
    parser.add_argument("--tokenizer", help="folder or name, where it is not the model's name")
    asked = parser.parse_args()
    server = {
        "base_url": f"{asked.url}/v1/completions",
        "model": asked.model,
        "tokenizer": asked.tokenizer or asked.model,
        "num_concurrent": 64,
        "max_retries": 3,
        "tokenized_requests": False,
    }
    with TemporaryDirectory() as folder:
        command = [
            "lm_eval",
            "--model",
            "local-completions",
            "--tasks",
            asked.task,
            "--limit",
            str(asked.limit),
        ]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in server.items())]
        # Its own tables go to stderr: stdout is the score's.
        subprocess.run([*command, "--output_path", folder], stdout=sys.stderr, check=True)
        written = max(Path(folder).rglob("results*.json"), key=lambda path: path.stat().st_mtime)
        results = json.loads(written.read_text())["results"][asked.task]
    print(*score_of(results, asked.metric))


def score_of(results: dict[str, Any], metric: str | None) -> tuple[float, float] | tuple[float]:
    """The score of a task's results, and its standard error where there is one."""
    names = [
        name
        for name, value in results.items()
        if isinstance(value, float) and "_stderr" not in name
    ]
    name = metric or names[0]
    base, comma, variant = name.partition(",")
    error = results.get(f"{base}_stderr{comma}{variant}")
    return (results[name], error) if isinstance(error, float) else (results[name],)


if __name__ == "__main__":
    main()
