"""Each format is told by its content, and what cannot be right is refused with file and row."""

from __future__ import annotations

import json

import pytest

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.workloads import load_workload
from autotune.simulator.fit.points import points_of
from autotune.simulator.fit.readers import read, read_file
from autotune.study.home import Home

from .files import DATA, SGLANG, VLLM, csv_file, lab_file, lab_row, own_row, sweep_row


def knobs(row):
    return row.understood.effective.configuration.knobs


def test_the_performance_labs_rows_are_understood_as_the_version_that_was_measured(tmp_path):
    failed = {key: lab_row(f"VLLM_ATTENTION_BACKEND=FLASHMLA {VLLM}")[key] for key in ("command", "model", "hardware")}
    failed |= {"engine_version": "0.13.0", "workload": lab_row()["workload"], "failure": "ValueError: sparse"}
    found = read_file(lab_file(tmp_path, lab_row(f"{SGLANG} --dp-size 8 --enable-dp-attention"), failed))
    ran, refused = found.rows
    assert (ran.label, ran.source, ran.failure, ran.evidence) == ("0", "lab.json", None, "measured")
    assert (knobs(ran)["tensor_parallel"], knobs(ran)["data_parallel"]) == (1, 8)
    assert ran.understood.context.version == "0.5.6.post2"
    assert ran.workload == load_workload("short")
    assert ran.metrics["total_token_throughput"] == 13200
    assert ran.metrics["duration"] == 10
    assert (refused.failure, dict(refused.metrics)) == ("ValueError: sparse", {})
    assert knobs(refused)["attention_backend"] == "FLASHMLA"


def test_a_sweeps_environment_and_unknown_version_are_kept(tmp_path):
    (row,) = read_file(csv_file(tmp_path, sweep_row())).rows
    assert row.label == "MI300X vllm c64"
    assert row.command.env == {"VLLM_FP8_PADDING": "0", "VLLM_USE_TRITON_FLASH_ATTN": "0"}
    assert row.understood.context.version == "0.7.3.dev138+g21f6ca217"
    assert row.workload.points[0].arrival.concurrency == 64
    # The V0 engine: 256 sequences, whole prompts, no prefix cache.
    assert knobs(row)["max_running_requests"] == 256
    assert knobs(row)["max_batched_tokens"] == 32768
    assert knobs(row)["prefix_caching"] is False


def test_dp_attention_of_early_sglang_is_as_wide_as_tensor_parallelism(tmp_path):
    command = "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp 8 --enable-dp-attention"
    early = sweep_row(engine="sglang", engine_version="0.4.3.post2", gpu_type="H200", command=command, env="")
    late = {**early, "engine_version": "0.5.3", "max_concurrency": 32}
    first, second = read_file(csv_file(tmp_path, early, late)).rows
    assert (knobs(first)["tensor_parallel"], knobs(first)["data_parallel"]) == (1, 8)
    assert (knobs(second)["tensor_parallel"], knobs(second)["data_parallel"]) == (8, 1)


def test_a_table_of_ones_own_is_read_as_csv_and_as_json_lines(tmp_path):
    rows = [
        own_row(label="base"),
        own_row(workload="", input_len=1000, output_len=50, num_prompts=200, request_rate=4, gpus=8),
        own_row(command=f"{VLLM} -dcp 8", total_token_throughput="", failure="no LSE"),
    ]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    for path in (csv_file(tmp_path, *rows), lines):
        base, made, failed = read_file(path).rows
        assert (base.label, base.workload.name) == ("base", "sharegpt")
        assert made.workload.name == "random:1000:50:200 4/s"
        assert made.workload.points[0].arrival.request_rate == 4
        assert failed.failure == "no LSE"
        assert failed.understood.failure is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total_throughput": 0}, ["row 1", "total_token_throughput is 0"]),
        ({"mean_ttft_ms": float("nan")}, ["row 1", "mean_ttft_ms", "finite"]),
        ({"mean_tpot_ms": -3.0}, ["row 1", "mean_tpot_ms", "at least 0"]),
        ({"mean_tpot_ms": None}, ["row 1", "no mean_tpot_ms"]),
        ({"total_throughput": 13.2}, ["row 1", "13200 per second", "units"]),
        ({"mean_ttft_ms": 5_000_000.0}, ["row 1", "longer than the run", "units"]),
        ({"workload": {"dataset": "gsm8k"}}, ["row 1", "gsm8k", "sharegpt"]),
        ({"workload": "sharegpt"}, ["row 1", "workload"]),
        ({"command": "vllm serve 'open"}, ["row 1", "malformed command line"]),
        ({"hardware": ""}, ["row 1", "no hardware"]),
    ],
)
def test_a_figure_that_cannot_be_right_is_refused_with_its_row(tmp_path, changes, words):
    path = lab_file(tmp_path, lab_row(), lab_row(**changes))
    with pytest.raises(MalformedFile) as refused:
        read_file(path)
    for word in (str(path), *words):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (own_row(total_token_throughput="fast"), [":2:", "total_token_throughput is 'fast'"]),
        (own_row(mean_ttf_ms=3), [":2:", "mean_ttft_ms"]),
        (own_row(input_len=100), [":2:", "either workload"]),
        (own_row(total_token_throughput=""), [":2:", "no total_token_throughput"]),
        ({key: v for key, v in sweep_row().items() if key != "mean_tpot_ms"}, [":1:", "no column mean_tpot_ms"]),
        (sweep_row(max_concurrency=0), [":2:", "max_concurrency"]),
    ],
)
def test_a_line_that_cannot_be_right_is_refused_with_its_number(tmp_path, row, words):
    with pytest.raises(MalformedFile) as refused:
        read_file(csv_file(tmp_path, row))
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", "a,b\n1,2\n", "<html>"])
def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path, text):
    path = tmp_path / "what.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"no format that is known.*performance lab.*dstack.*table of your own"):
        read_file(path)


def test_rows_that_are_not_understood_are_left_out_with_the_reason(tmp_path):
    rows = [
        lab_row(),
        lab_row(model="meta/unknown-model"),
        lab_row(f"{SGLANG} --no-such-option 3"),
        lab_row(hardware="8xZ100"),
        lab_row(hardware="16xH200"),
        lab_row(engine_version="nightly"),
        lab_row(completed=800.0),
    ]
    found = read_file(lab_file(tmp_path, *rows))
    assert [row.label for row in found.rows] == ["0"]
    reasons = {one.label: one.reason for one in found.left_out}
    words = ["unknown-model", "--no-such-option", "Z100", "16 GPUs", "nightly", "only 800 of 1000"]
    assert list(reasons) == ["1", "2", "3", "4", "5", "6"]
    for word, reason in zip(words, reasons.values(), strict=True):
        assert word in reason


def test_requests_that_a_client_lost_were_no_load(tmp_path):
    (row,) = read_file(lab_file(tmp_path, lab_row(completed=984.0))).rows
    assert row.workload.points[0].prompts == 984
    assert row.workload.name == "short"


def test_nothing_usable_is_said_with_the_first_reason(tmp_path):
    with pytest.raises(BadInput, match="nothing to learn from"):
        read([], [], Home(tmp_path))
    with pytest.raises(BadInput, match=r"no row with measured metrics.*unknown-model"):
        read([lab_file(tmp_path, lab_row(model="meta/unknown-model"))], [], Home(tmp_path))
    with pytest.raises(BadInput, match=r"nowhere\.csv: cannot be read"):
        read_file(tmp_path / "nowhere.csv")


@pytest.mark.skipif(not DATA.is_dir(), reason="the measured rows (../shared/data) are not here")
def test_every_published_row_is_understood_and_only_those_that_failed_are_refused():
    lab = read_file(DATA / "seed_measurements.json")
    sweep = read_file(DATA / "dstack_r1_concurrency_sweep.csv")
    assert (len(lab.rows), len(sweep.rows), lab.left_out, sweep.left_out) == (49, 30, (), ())
    for row in (*lab.rows, *sweep.rows):
        assert (row.failure is not None) == (row.understood.failure is not None), row.label
    assert {row.label for row in lab.rows if row.silent_s} == {"0", "2", "9"}
    assert not any(row.silent_s for row in sweep.rows)
    twins = [point.label for point in points_of(lab.rows) if len(point.members) > 1]
    assert twins == ["1+3", "15+22", "16+27", "28+32"]
