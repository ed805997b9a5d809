"""Every documented file form at its smallest: the required columns or keys alone, then each
optional one with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from autotune.engines.cards import HardwareCard, ModelCard
from autotune.load.workloads import Workload
from autotune.node.fit.reading import points_of, read_file
from tests.documents.pages import ROOT
from tests.product.cli import Finished, autotune, here, new_home

MODEL = "deepseek-ai/DeepSeek-V3.2"
NODE = ["--model", MODEL, "--hw", "h200"]
SPACES = ROOT / "search_spaces"


def ends(done: Finished) -> Finished:
    """Check that a command ended well."""
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give one home to all."""
    return new_home(tmp_path_factory.mktemp("formats"))


REPLAY = {
    "engine": ("vllm", "vllm"),
    "max_num_seqs": (128, 256),
    "total_token_throughput": (5000, 6000),
}
REPLAY_OPTIONAL: dict[str, tuple[tuple[object, object], list[str]]] = {
    "failure": (("", "out_of_memory"), []),
    "engine_version": (("0.32.0", "0.32.0"), []),
    "another_knob": (("a", "b"), []),
    "client_bound": ((0, 0), []),
    "p99_ttft_ms": ((900, 800), ["--slo", "p99_ttft_ms<=1000"]),
    "long:total_token_throughput": ((700, 800), ["--workload", "sharegpt", "--workload", "long"]),
    "workload": (("mine", "mine"), []),
    "concurrency": ((4, 4), []),
}


REPLAYED = (None, "failure", "long:total_token_throughput")
"""Of these tables a study is made; of the others it is told what would be."""


def table_of(columns: dict[str, tuple[object, object]]) -> str:
    """Write columns of two rows as CSV."""
    rows = [columns, *({name: cells[i] for name, cells in columns.items()} for i in (0, 1))]
    return "".join(
        ",".join(str(cell) for cell in row) + "\n"
        for row in (rows[0], *(r.values() for r in rows[1:]))
    )


@pytest.mark.parametrize("column", [None, *REPLAY_OPTIONAL])
def test_a_replay_table(home: Path, column: str | None) -> None:
    cells, words = REPLAY_OPTIONAL[column] if column else ((0, 0), [])
    path = home.parent / "table.csv"
    path.write_text(table_of({**REPLAY, **({column: cells} if column else {})}))
    question = ["run", *NODE, "--on", f"replay:{path}", *words, "--json"]
    if column not in REPLAYED:
        assert ends(autotune(*question, "--dry-run", home=home)).json["candidates"] == {"vllm": 2}
        return
    done = ends(autotune(*question, "--study", f"table-{column}".replace(":", "-"), home=home))
    assert done.json["engine"] == "vllm"
    assert done.json["config"]["max_num_seqs"] == (128 if column == "failure" else 256)


CALIBRATION = {
    "command": f"vllm serve {MODEL} -tp 8",
    "engine_version": "0.32.0",
    "hardware": "h200",
    "workload": "random:1000:100:200",
    "total_token_throughput": 9000.0,
}
LENGTHS = {"input_len": 1000, "output_len": 100, "num_prompts": 200}
CALIBRATION_OPTIONAL: dict[str, object] = {
    "gpus": 8,
    "model": MODEL,
    "env": "VLLM_USE_DEEP_GEMM=0",
    "label": "first",
    "note": "by hand",
    "max_concurrency": 64,
    "request_rate": 5.0,
    "duration": 24.4,
    "completed": 200,
    "mean_ttft_ms": 9000.0,
    "p99_ttft_ms": 19000.0,
    "mean_tpot_ms": 40.0,
    "failure": "torch.OutOfMemoryError: CUDA out of memory.",
}


def measured(folder: Path, form: str, *rows: dict[str, object]) -> Path:
    """Write a table of measurements in one of its forms."""
    path = folder / f"measured.{form}"
    if form == "json":
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    else:
        columns = list(dict.fromkeys(name for one in rows for name in one))
        lines = [columns, *([one.get(name, "") for name in columns] for one in rows)]
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("column", [None, "lengths", *CALIBRATION_OPTIONAL])
def test_a_table_of_measurements(tmp_path: Path, column: str | None, form: str) -> None:
    row: dict[str, object] = dict(CALIBRATION)
    if column == "lengths":
        del row["workload"]
        row |= LENGTHS
    elif column is not None:
        row[column] = CALIBRATION_OPTIONAL[column]
    if column == "failure":
        del row["total_token_throughput"]
    found = read_file(measured(tmp_path, form, row))
    assert (len(found.rows), found.left_out) == (1, ())
    assert len(points_of(found.rows)) == 1


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_calibration_reads_all_columns_at_once(home: Path, form: str) -> None:
    whole = {**CALIBRATION, **CALIBRATION_OPTIONAL}
    del whole["request_rate"]  # A load is closed or open.
    failed = {name: cell for name, cell in whole.items() if name != "total_token_throughput"}
    del whole["failure"]
    path = measured(home.parent, form, CALIBRATION, whole, failed)
    done = ends(autotune("calibrate", "--data", str(path), "--compare", "--json", home=home))
    assert done.json["read"]["left_out"] == [], done.json


LONG = "A spade cuts straight edges, a shovel moves loose earth."
TURN = {"user": "What is a spade?", "output_tokens": 12}
WORKLOADS: dict[str, tuple[str, list[object]]] = {
    "jsonl, text": ("jsonl", [{"prompt": "Why?", "output_tokens": 20}]),
    "jsonl, ids": ("jsonl", [{"prompt": [1042, 77, 9001], "output_tokens": 5}]),
    "jsonl, messages": (
        "jsonl",
        [{"messages": [{"role": "user", "content": "Why?"}], "output_tokens": 20}],
    ),
    "jsonl, random": ("jsonl", [{"input_tokens": 320, "output_tokens": 80}]),
    "jsonl, counted text": ("jsonl", [{"prompt": "Why?", "input_tokens": 3, "output_tokens": 20}]),
    "trace": ("trace", [{"timestamp": 0, "input_length": 600, "output_length": 52}]),
    "trace, prefixes": (
        "trace",
        [{"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}],
    ),
    "trace, Azure": (
        "trace",
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"],
    ),
    "sessions": ("sessions", [{"turns": [TURN]}]),
    "sessions, id": ("sessions", [{"session_id": "a", "turns": [TURN]}]),
    "sessions, system": ("sessions", [{"system": "Be brief.", "turns": [TURN]}]),
    "sessions, system of all": ("sessions", [{"system": "Be brief."}, {"turns": [TURN]}]),
    "sessions, tools": (
        "sessions",
        [{"tools": [{"type": "function", "function": {"name": "price"}}], "turns": [TURN]}],
    ),
    "sessions, random": ("sessions", [{"turns": [{"input_tokens": 40, "output_tokens": 9}]}]),
    "sessions, think": ("sessions", [{"turns": [TURN, {**TURN, "think_s": 0.5}]}]),
    "sessions, AIPerf": (
        "sessions",
        [{"turns": [{"text": "Hi", "output_length": 9}, {**TURN, "delay": 500}]}],
    ),
    "sessions, delay_ms": ("sessions", [{"turns": [TURN, {**TURN, "delay_ms": 500}]}]),
    "sharegpt": (
        "sharegpt",
        [{"conversations": [{"from": "human", "value": LONG}, {"from": "gpt", "value": LONG}]}],
    ),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_file_of_requests(home: Path, name: str) -> None:
    form, rows = WORKLOADS[name]
    path = home.parent / "requests.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    workload = f"{form}:{path}" + (":1" if form == "sharegpt" else "")
    words = [
        "--hw",
        "h200",
        "--workload",
        workload,
        "--json",
        "--",
        "vllm",
        "serve",
        MODEL,
        "-tp",
        "8",
    ]
    assert ends(here("simulate", *words, home=home)).json["completed"] >= 1


def test_a_sharegpt_file_may_be_one_list(home: Path) -> None:
    path = home.parent / "list.json"
    path.write_text(json.dumps(WORKLOADS["sharegpt"][1]))
    words = [
        "--hw",
        "h200",
        "--workload",
        f"sharegpt:{path}:1",
        "--json",
        "--",
        "vllm",
        "serve",
        MODEL,
        "-tp",
        "8",
    ]
    assert ends(autotune("simulate", *words, home=home)).json["completed"] == 1


TASK = {"prompt": "17 + 25 =", "answer": "42", "match": "number"}
TASKS: dict[str, dict[str, Any]] = {
    "number": TASK,
    "exact": {**TASK, "match": "exact"},
    "contains": {**TASK, "match": "contains"},
    "answer is a number": {**TASK, "answer": 42},
    "messages": {
        "messages": [{"role": "user", "content": "17 + 25 ="}],
        "answer": "42",
        "match": "exact",
    },
    "max_tokens": {**TASK, "max_tokens": 8},
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_file(home: Path, name: str) -> None:
    from autotune.tuner.accuracy.check import read_tasks

    path = home.parent / "tasks.jsonl"
    path.write_text(json.dumps(TASKS[name]) + "\n")
    (task,) = read_tasks(path)
    assert task.is_right("42")


RESULT = {
    "duration": 3.0,
    "completed": 10,
    "request_throughput": 3.3,
    "total_token_throughput": 9000.0,
}


@pytest.mark.parametrize(
    "more", [{}, {"mean_ttft_ms": 100.0}, {"model_id": "m"}, {"workload": "w"}]
)
def test_a_result_that_is_compared(home: Path, more: dict[str, object]) -> None:
    for name, figure in (("a.json", 9000.0), ("b.json", 9900.0)):
        (home.parent / name).write_text(
            json.dumps({**RESULT, "total_token_throughput": figure, **more})
        )
    done = ends(autotune("compare", "a.json", "b.json", "--json", home=home, cwd=home.parent))
    assert done.json["metrics"]["total_token_throughput"]["change_percent"] == pytest.approx(10)


def shipped(folder: str) -> list[dict[str, Any]]:
    """Read the packaged files of a kind."""
    return [yaml.safe_load(path.read_text()) for path in sorted((SPACES / folder).glob("*.yaml"))]


def variants(model: type[BaseModel], files: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cut packaged files down to the required keys, and to these with each optional key alone."""
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    found = {"smallest": {name: files[0][name] for name in required}}
    for name in sorted(model.model_fields.keys() - required):
        file = next((file for file in files if file.get(name) is not None), None)
        if file is not None:
            found[name] = {key: file[key] for key in (*required, name)}
    return found


CARDS: dict[str, tuple[type[BaseModel], str]] = {
    "hardware": (HardwareCard, "hardware"),
    "model": (ModelCard, "models"),
    "workload": (Workload, "workloads"),
}
VARIANTS = {
    (kind, name): variant
    for kind, (model, folder) in CARDS.items()
    for name, variant in variants(model, shipped(folder)).items()
}


@pytest.mark.parametrize(("kind", "name"), VARIANTS)
def test_a_card(home: Path, kind: str, name: str) -> None:
    folder = home.parent / "space" / CARDS[kind][1]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(VARIANTS[kind, name]))
    try:
        ends(here("space", "check", str(folder.parent), home=home))
    finally:
        path.unlink()
