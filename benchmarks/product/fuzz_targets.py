"""The readers that `benchmarks.product.fuzz` tries, each with valid inputs to begin with."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from autotune.base.errors import BadInput
from autotune.cli.main import main
from autotune.cli.spaces import space_check
from autotune.engines.config_json import model_from_file
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine, names, split_command
from autotune.load.client.stream import EventStream
from autotune.load.prefix_cache import counters, known_metrics, samples
from autotune.load.workloads import load_workload
from autotune.node.resolve_command import model_of, resolve_command
from autotune.servers.logs import known_failure, last_line, patterns_of, read_head, unknown_exit
from autotune.tuner.accuracy.builtin import contexts
from autotune.tuner.accuracy.check import Builtin, ScoreCommand, Task, TaskFile, read_evidence
from autotune.tuner.replay.bundle import read_bundle
from autotune.tuner.replay.table import read_table
from autotune.tuner.study.home import credentials, database_file, is_server, without_credentials
from autotune.tuner.study.results import parse_rows, row_of
from benchmarks.product.fuzz import Target

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = _ROOT / "examples"
EXIT_CODES = (0, 2, 3, 4, 130)


@lru_cache(maxsize=1)
def _library() -> Library:
    return Library()


def _as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode(errors="surrogatepass")


def _as_yaml(tree: Any) -> bytes:
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=True).encode(
        errors="surrogatepass"
    )


def _lines(content: bytes) -> Any:
    return [json.loads(line) for line in content.splitlines()]


def _as_lines(tree: Any) -> bytes:
    rows = tree if isinstance(tree, list) else [tree]
    return b"\n".join(map(_as_json, rows))


_JSON = (json.loads, _as_json)
_YAML = (partial(yaml.load, Loader=yaml.CSafeLoader), _as_yaml)
_JSONL = (_lines, _as_lines)


_numbers = count()


@contextmanager
def _file(content: bytes, folder: Path, ending: str) -> Iterator[Path]:
    """A file of a name of its own, as what is read may be kept by path and time."""
    path = folder / f"{next(_numbers)}{ending}"
    path.write_bytes(content)
    try:
        yield path
    finally:
        path.unlink()


def _space(kind: str) -> Callable[[bytes, Path], object]:
    """A file of a space folder: read, and checked as ``autotune space check`` does."""

    def read(content: bytes, folder: Path) -> None:
        (folder / kind).mkdir(exist_ok=True)
        with _file(content, folder / kind, ".yaml") as file, redirect_stdout(io.StringIO()):
            space_check(file, [], as_json=True)

    return read


def _workload(form: str, ending: str) -> Callable[[bytes, Path], object]:
    """A workload's file: read, and its requests drawn."""

    def read(content: bytes, folder: Path) -> None:
        with _file(content, folder, ending) as file:
            workload = load_workload(f"{form}:{file}{':3' if form == 'sharegpt' else ''}")
            for position in range(len(workload.points)):
                workload.draw(position, 0)

    return read


def _engine_command(content: bytes, _: Path) -> None:
    command = split_command(content.decode(errors="replace"))
    library = _library()
    model = model_of(command, library, model_id="deepseek-ai/DeepSeek-V3.2")
    context = Context(model, library.node("h200"), 8, "", 4000)
    resolve_command(command, library, context)


def _events(content: bytes, _: Path) -> None:
    stream = EventStream()
    step = 1 + len(content) % 97
    for at in range(0, len(content), step):
        stream.feed(content[at : at + step], at)
    stream.finish(len(content))
    stream.usage()
    assert stream.ended in (True, False)
    stream.outcome()
    stream.release()


def _metrics(content: bytes, _: Path) -> None:
    page = {name: sum(values) for name, values in samples(content.decode(errors="replace")).items()}
    for name in names():
        for metrics in known_metrics(engine(name).card):
            counters(metrics, page)


def _log(content: bytes, folder: Path) -> None:
    with _file(content, folder, ".log") as log:
        read_head(log)
        for name in names():
            known_failure(log, patterns_of(engine(name).card))
            unknown_exit(log, -9, name)
        last_line(log)


def _table(ending: str) -> Callable[[bytes, Path], object]:
    def read(content: bytes, folder: Path) -> None:
        with _file(content, folder, ending) as file:
            read_table(file, _library())

    return read


def _uri(content: bytes, _: Path) -> None:
    uri = content.decode(errors="replace")
    credentials(uri), database_file(uri), is_server(uri)
    if re.match(r"[\w+.-]*://[^/]*:hunter2@", uri) and "hunter2" in without_credentials(
        uri[: uri.rindex("@") + 1]
    ):
        raise AssertionError("a password is shown")


def _command_line(content: bytes, folder: Path) -> None:
    """A line of ours; what would launch, load or fit anything is only asked what it would do."""
    try:
        words = shlex.split(content.decode(errors="replace"))
    except ValueError:
        words = content.decode(errors="replace").split()
    words = [word.replace("\0", "") for word in words]
    if words[:1] == ["run"]:
        words.append("--dry-run")
    elif words[:1] not in (
        ["simulate"],
        ["list"],
        ["compare"],
        ["report"],
        ["export"],
        ["space"],
        ["bundle"],
    ):
        return
    sys.argv = ["autotune", *words[:1], "--home", str(folder), *words[1:]]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            if ended.code not in (None, *EXIT_CODES):
                raise AssertionError(f"exit {ended.code}") from None
            if ended.code:
                raise BadInput("refused") from None


def _seed_files(*patterns: str) -> list[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(_ROOT.glob(pattern))]


def _golden(name: str) -> list[bytes]:
    lines = (_ROOT / "tests/engines" / name).read_text().splitlines()
    return [line.encode() for line in lines if line.strip() and not line.startswith("#")][::7]


_TRACE = [
    {
        "timestamp": number * 300,
        "input_length": 1500 + number,
        "output_length": 80,
        "hash_ids": [0, 1, 2 + number],
    }
    for number in range(6)
]
_AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
_SESSIONS = [
    {
        "system": "Be brief.",
        "turns": [{"user": "Hello", "output_tokens": 5}, {"user": "More", "output_tokens": 9}],
    },
    {
        "turns": [
            {"input_tokens": 12, "output_tokens": 3, "think_s": 1.5},
            {"input_tokens": 4, "output_tokens": 2},
        ]
    },
]
_PROMPTS = [
    {"prompt": "Tell me of the sea", "output_tokens": 20},
    {"input_tokens": 40, "output_tokens": 4},
]
_TURNS = [("human", "What is a bird that cannot fly?"), ("gpt", "An emu is, and so is a kiwi.")]
_CONVERSATIONS = [{"conversations": [{"from": who, "value": text} for who, text in _TURNS]}] * 3
_STREAM = (
    b'data: {"choices":[{"index":0,"text":" one","finish_reason":null}]}\n\n'
    b': ping\n\ndata: {"choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"length"}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\ndata: [DONE]\n\n'
)
_PAGE = (
    b'# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{engine="0"} 1200.0\n'
    b'vllm:prefix_cache_hits_total{engine="0"} 800\nsglang:cached_tokens_total{model="a b"} 3e2 1700000000\n'
)
_LOG = (
    b"INFO 11-23 01:00:00 [api_server.py:12] vLLM API server version 0.33.0\n"
    b"Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]\r\n"
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nTraceback (most recent call last):\n"
    b"RuntimeError: Engine core initialization failed.\n"
)
_CSV = b"engine,tensor_parallel,kv_cache_dtype,total_tps,failure\nvllm,8,fp8,9000.5,\nsglang,4,auto,7100,\nvllm,4,,,OOM\n"
_URIS = [
    b"sqlite:////srv/mlflow.db",
    b"http://user:hunter2@mlflow.example:5000/path?x=1",
    b"databricks",
    b"file:///srv/runs",
    b"postgresql://user:hunter2@db/x",
    b"https://mlflow.example",
]
_RUN = b"run --model Qwen/Qwen3-8B --hw h200 --gpus 1 --space {space} "
_LINES = [
    _RUN + b"--launches 5 --slo 'p99_ttft_ms<=2000' --seed 3",
    _RUN + b"--workload random:100:50:20 --set tensor_parallel=1 --hours 2",
    b"simulate --hw h200 --workload random:100:50:8 -- vllm serve Qwen/Qwen3-8B -tp 1 --max-num-seqs 64",
    b"list --json",
    b"compare a.json b.json",
    b"report demo --format md",
    b"export demo --to k8s -o x",
    b"bundle demo -o y",
    b"space check {space}",
]


_TASKS = [
    {"prompt": "17 + 25 =", "answer": "42", "match": "number"},
    {
        "messages": [{"role": "user", "content": "Who?"}],
        "answer": "I",
        "match": "contains",
        "max_tokens": 8,
    },
]
_ITEMS = [Task.model_validate(row) for row in _TASKS]
_TOKENS = [[" one", -0.1, {" one": -0.1, " two": -2.5}], [" two", -0.2, {" two": -0.2}]]
_ANSWERS: list[dict[str, Any]] = [
    {
        "kind": "builtin",
        "logprobs": True,
        "answers": {c.name: _TOKENS for c in contexts()[:12]},
        "seconds": 2.5,
    },
    {
        "kind": "tasks",
        "sha256": "x",
        "marks": [True, False],
        "texts": ["42", "You"],
        "seconds": 1.0,
    },
    {"kind": "command", "score": 0.8, "error": 0.01, "seconds": 1.0},
]


def _row() -> dict[str, Any]:
    from tests import small_study

    return json.loads(json.dumps(row_of(small_study.launches()[0])))


def _rows(content: bytes, _: Path) -> None:
    parse_rows(Path("results.jsonl"), content)


def _written_csv(tree: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(
        row if isinstance(row, list) else [row] for row in (tree if isinstance(tree, list) else [])
    )
    return text.getvalue().encode(errors="surrogatepass")


def _read_csv(content: bytes) -> Any:
    return list(csv.reader(io.StringIO(content.decode())))


@lru_cache(maxsize=1)
def targets() -> list[Target]:
    """Every target."""
    space = _EXAMPLES / "small-space.yaml"
    row = _as_json(_row())
    rows = b"\n".join([row] * 3)
    return [
        Target(
            "engine card",
            lambda: _seed_files("examples/llama_server/*/llama_server.yaml"),
            _space("engines"),
            _YAML,
        ),
        Target(
            "model card",
            lambda: _seed_files("search_spaces/models/*.yaml"),
            _space("models"),
            _YAML,
        ),
        Target(
            "hardware card",
            lambda: _seed_files("search_spaces/hardware/*.yaml"),
            _space("hardware"),
            _YAML,
        ),
        Target(
            "workload",
            lambda: _seed_files("search_spaces/workloads/*.yaml"),
            _space("workloads"),
            _YAML,
        ),
        Target(
            "narrowing", lambda: _seed_files("examples/*space*.yaml"), _space("narrowings"), _YAML
        ),
        Target("trace", lambda: [_as_lines(_TRACE), _AZURE], _workload("trace", ".jsonl")),
        Target("mooncake trace", lambda: [_as_lines(_TRACE)], _workload("trace", ".jsonl"), _JSONL),
        Target("sessions", lambda: [_as_lines(_SESSIONS)], _workload("sessions", ".jsonl"), _JSONL),
        Target("prompts", lambda: [_as_lines(_PROMPTS)], _workload("jsonl", ".jsonl"), _JSONL),
        Target(
            "sharegpt", lambda: [_as_json(_CONVERSATIONS)], _workload("sharegpt", ".json"), _JSON
        ),
        Target("config.json", lambda: _configs(), _config, _JSON),
        Target("engine command", lambda: _golden("golden_commands.txt"), _engine_command),
        Target("event stream", lambda: [_STREAM], _events),
        Target("metrics page", lambda: [_PAGE], _metrics),
        Target("server log", lambda: [_LOG], _log),
        Target("results.jsonl", lambda: [rows], _rows, _JSONL),
        Target("replayed rows", lambda: [rows], _table(".jsonl"), _JSONL),
        Target("replayed table", lambda: [_CSV], _table(".csv"), (_read_csv, _written_csv)),
        Target("bundle", lambda: [_bundle()], lambda content, _: read_bundle(Path("b"), content)),
        Target("MLflow URI", lambda: _URIS, _uri),
        Target("task file", lambda: [_as_lines(_TASKS)], _tasks, _JSONL),
        Target(
            "earlier answers", lambda: [_as_json(one) for one in _ANSWERS], _earlier_answers, _JSON
        ),
        Target(
            "command line",
            lambda: [line.replace(b"{space}", bytes(space)) for line in _LINES],
            _command_line,
        ),
    ]


def _tasks(content: bytes, folder: Path) -> None:
    with _file(content, folder, ".jsonl") as file:
        TaskFile.read(file)


def _earlier_answers(content: bytes, folder: Path) -> None:
    """Answers of an earlier run: read, and others are compared with them."""
    with _file(content, folder, ".json") as file:
        for check, right in zip(
            (Builtin(), TaskFile(_ITEMS, "x"), ScoreCommand("x {url}")), _ANSWERS, strict=True
        ):
            with suppress(BadInput):
                evidence = read_evidence(file, check.kind)
                check.judge([evidence, right], right)
                check.judge([right, evidence], evidence)


def _config(content: bytes, folder: Path) -> None:
    with _file(content, folder, ".json") as file:
        model_from_file(file)


def _configs() -> list[bytes]:
    from tests.engines.space.published import PUBLISHED

    return [_as_json(config) for config, *_ in PUBLISHED.values()]


def _bundle() -> bytes:
    from tests.tuner.replay.bundles import bundled, study_in

    with TemporaryDirectory() as folder:
        return bundled(study_in(Path(folder)))
