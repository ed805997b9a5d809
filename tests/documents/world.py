"""The folder in which documented command lines run: what the pages name exists there, under other
names if need be."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.cli.main import cli
from tests.documents.pages import ROOT, Example
from tests.documents.shell import Shell
from tests.product.cli import autotune, new_home
from tests.product.server import emulated

MODEL = "deepseek-ai/DeepSeek-V3.2"
SMALL = f"--model {MODEL} --hw h200 --space examples/small-space.yaml"
EMULATED = f"--model {MODEL} --hw h200 --space examples/emulated-space.yaml --workload random:256:16:32 --on emulator"
TABLE = (
    "engine,max_num_seqs,total_token_throughput\nvllm,128,5000\nvllm,256,6000\nsglang,256,5500\n"
)
MEASURED = (
    "command,engine_version,hardware,workload,total_token_throughput\n"
    f"vllm serve {MODEL} -tp 8,0.32.0,h200,random:1000:100:200,9000\n"
)
SCORE = "import sys\nprint(sys.argv[1:])\nprint(0.5)\n"

SUBSTITUTES = [
    # What a sentence leaves out, by the command that it is about.
    (r"autotune run … --accuracy", f"autotune run {EMULATED} --accuracy"),
    (r"autotune run … --on emulator", f"autotune run {EMULATED}"),
    (r"autotune run …", f"autotune run {SMALL}"),
    (r"(?<=--url )(URL|http://127\.0\.0\.1:\d+)", "@URL@"),
    (r"(?<=external:)(URL|http://127\.0\.0\.1:\d+)", "@URL@"),
    (r"--model M --hw H\b", f"--model {MODEL} --hw h200"),
    (r"--model M --workload W\b", f"--model {MODEL} --workload random:64:8:16"),
    (r"vllm serve … -tp 8|vllm serve …", f"vllm serve {MODEL} -tp 8"),
    (
        r"'<another command line>' -- …",
        f"'vllm serve {MODEL} -tp 8' -- vllm serve {MODEL} -tp 8 --max-num-seqs 128",
    ),
    # Names of what is the reader's own.
    (r"replay:FILE", "replay:recorded.bundle"),
    (r"space check FILE", "space check examples/small-space.yaml"),
    (r"--data FILE", "--data measured.csv"),
    (r"-o FILE", "-o study.bundle"),
    (r"compare A B\b", "compare demo my-study"),
    (r"calibrate(.*) --study STUDY", r"calibrate\1 --study my-study"),
    (r"\bSTUDY\b", "demo"),
    (r"<id>", "Qwen/Qwen3-8B"),
    (r"<engine>", "vllm"),
    (r"/data/other/studies/v32-h100", "@HOME@/studies/my-study"),
    (r"r1-last-week", "demo"),
    (r"--model DIR", f"--model {MODEL}"),
    (r"autotune emulate", "autotune emulate --startup-s 0 --port @PORT@"),
    (r"--workload trace:…", "--workload trace:trace.jsonl"),
]
"""Pattern to what stands in its place, applied in this order; ``@URL@`` is a running server."""


@dataclass(frozen=True)
class World:
    """What all pages share: a finished study, one that counts as measured, and a server."""

    home: Path
    files: dict[str, str]
    bundle: bytes
    url: str

    def shell(self, page: str, folder: Path) -> Shell:
        """Make the folder of one page, with a home folder of its own."""
        home = new_home(folder)
        shutil.copytree(self.home / "studies", home / "studies")
        for name, text in self.files.items():
            (folder / name).write_text(text)
        (folder / "recorded.bundle").write_bytes(self.bundle)
        # An example's page is about the files beside it.
        beside = ROOT / page if page.startswith("examples/") else ROOT / "README.md"
        for path in beside.parent.iterdir():
            if not (
                path.name.startswith(".")
                or path.name in ("mlruns", "build")
                or (folder / path.name).exists()
            ):
                (folder / path.name).symlink_to(path)
        return Shell(folder, home)

    def text(self, example: Example, shell: Shell) -> str:
        """Return a documented command line with what it leaves out."""
        text = completed(example.text)
        return (
            text.replace("@URL@", self.url)
            .replace("@HOME@", str(shell.home))
            .replace("@PORT@", str(shell.port))
        )


def completed(text: str) -> str:
    """Fill in what a documented command line leaves open, but for addresses and folders."""
    for pattern, instead in SUBSTITUTES:
        text = re.sub(pattern, instead, text)
    return text


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Make the studies and files that pages name, and start the server."""
    home = new_home(folder)
    question = [
        "--model",
        MODEL,
        "--hw",
        "h200",
        "--space",
        str(ROOT / "examples" / "small-space.yaml"),
    ]
    done = autotune("run", *question, "--launches", "5", "--study", "demo", home=home)
    assert done.code == 0, done.err
    as_if_measured(home)
    assert autotune("bundle", "demo", "-o", "recorded.bundle", home=home, cwd=folder).code == 0
    bundle = (folder / "recorded.bundle").read_bytes()
    bench = ["--model", MODEL, "--workload", "random:64:8:16", "--save-result"]
    # Faster than the node, so that a load takes no minute.
    with emulated("--speed", "8") as url:
        for name in ("A.json", "B.json"):
            done = autotune(
                "bench",
                "--url",
                url,
                *bench,
                name,
                "--seed",
                str(ord(name[0])),
                home=home,
                cwd=folder,
            )
            assert done.code == 0, done.err
        files = {name: (folder / name).read_text() for name in ("A.json", "B.json")}
        files |= {"table.csv": TABLE, "measured.csv": MEASURED, "eval.py": SCORE}
        files["tasks.jsonl"] = (ROOT / "examples" / "accuracy" / "tasks.jsonl").read_text()
        files["trace.jsonl"] = (
            json.dumps({"timestamp": 0, "input_length": 64, "output_length": 4}) + "\n"
        )
        yield World(home, files, bundle, url)


def as_if_measured(home: Path) -> None:
    """Copy the study as ``my-study``, with rows that say that they were measured."""
    copy = home / "studies" / "my-study"
    shutil.copytree(home / "studies" / "demo", copy)
    for name in ("study.yaml", "results.jsonl", "recommendation.json"):
        text = (
            (copy / name)
            .read_text()
            .replace('"simulated"', '"measured"')
            .replace("study: demo", "study: my-study")
        )
        (copy / name).write_text(text.replace('"study": "demo"', '"study": "my-study"'))


def is_mention(example: Example) -> bool:
    """Return True for a command that a sentence names, with no arguments or without those that it
    needs."""
    words = example.text.split()
    if not example.inline or "…" in words or words[0] != "autotune":
        return example.inline and words[0] in ("ray", "pip")
    if any(word.startswith("replay:") for word in words):
        return False
    needs = {"run": "--model", "bench": "--model", "simulate": "--", "emulate": "--"}
    takes_a_study = words[1] in (
        "report",
        "export",
        "bundle",
        "compare",
        "resume",
        "verify",
        "regress",
        "calibrate",
    )
    return (words[1] in needs and needs[words[1]] not in words) or (
        takes_a_study and len(words) == 2
    )


def check_mention(example: Example) -> None:
    """Check that a command which a sentence names exists, with its options."""
    words = example.text.split()
    command = cli.commands[words[1]]
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known, example


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Give one world to the tests of a module."""
    with world(tmp_path_factory.mktemp("world")) as made:
        yield made
