"""A table is read as the measured version reads its commands; what cannot be right is refused with
file and row."""

from __future__ import annotations

import json
import runpy
import zipfile
from pathlib import Path

import pytest

from autotune.base.errors import BadInput, MalformedFile
from autotune.load.workloads import load_workload
from autotune.node.fit.reading import points_of, read_file
from autotune.tuner.study.home import Home
from autotune.tuner.study.measured import read
from tests.data import BESIDE, LAB, SWEEP
from tests.node.fit.files import SGLANG, VLLM, csv_file, lines_file, own_row, run_row, sweep_row


def knobs(row):
    return row.resolved.effective.knobs


def test_rows_are_understood_as_the_version_that_was_measured(tmp_path):
    about = (
        "command",
        "model",
        "hardware",
        "engine_version",
        "input_len",
        "output_len",
        "num_prompts",
    )
    failed = {
        key: run_row(VLLM, env="VLLM_ATTENTION_BACKEND=FLASHMLA")[key] for key in (*about, "env")
    }
    failed["failure"] = "ValueError: sparse"
    found = read_file(
        lines_file(tmp_path, run_row(f"{SGLANG} --dp-size 8 --enable-dp-attention"), failed)
    )
    ran, refused = found.rows
    assert (ran.label, ran.source, ran.failure, ran.evidence) == (
        "1",
        "lab.jsonl",
        None,
        "measured",
    )
    assert (knobs(ran)["tensor_parallel"], knobs(ran)["data_parallel"]) == (1, 8)
    assert ran.resolved.context.version == "0.5.6.post2"
    assert ran.workload == load_workload("short")
    assert ran.metrics["total_token_throughput"] == 13200
    assert ran.metrics["duration"] == 10
    assert (refused.failure, dict(refused.metrics)) == ("ValueError: sparse", {})
    assert knobs(refused)["attention_backend"] == "FLASHMLA"


def test_a_version_that_is_in_no_card_keeps_its_number(tmp_path):
    (row,) = read_file(csv_file(tmp_path, sweep_row())).rows
    assert row.resolved.context.version == "0.7.3.dev138+g21f6ca217"
    assert row.workload.points[0].arrival.concurrency == 64
    # The V0 engine: 256 sequences, whole prompts, no prefix cache.
    assert knobs(row)["max_running_requests"] == 256
    assert knobs(row)["max_batched_tokens"] == 32768
    assert knobs(row)["prefix_caching"] is False


def test_dp_attention_of_early_sglang_is_as_wide_as_tensor_parallelism(tmp_path):
    command = "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp 8 --enable-dp-attention"
    early = sweep_row(engine_version="0.4.3.post2", hardware="H200", command=command, env="")
    late = {**early, "engine_version": "0.5.3", "max_concurrency": 32}
    first, second = read_file(csv_file(tmp_path, early, late)).rows
    assert (knobs(first)["tensor_parallel"], knobs(first)["data_parallel"]) == (1, 8)
    assert (knobs(second)["tensor_parallel"], knobs(second)["data_parallel"]) == (8, 1)


def test_a_table_of_ones_own_is_read_as_csv_and_as_json_lines(tmp_path):
    rows = [
        own_row(label="base"),
        own_row(
            workload="", input_len=1000, output_len=50, num_prompts=200, request_rate=4, gpus=8
        ),
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
        assert failed.resolved.failure is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"total_token_throughput": 0}, ["total_token_throughput is 0"]),
        ({"mean_ttft_ms": float("nan")}, ["mean_ttft_ms", "finite"]),
        ({"mean_tpot_ms": -3.0}, ["mean_tpot_ms", "at least 0"]),
        ({"total_token_throughput": 13.2}, ["13200 per second", "units"]),
        ({"mean_ttft_ms": 5_000_000.0}, ["longer than the run", "units"]),
        ({"command": "vllm serve 'open"}, ["malformed command line"]),
        ({"hardware": ""}, ["no hardware"]),
    ],
)
def test_a_figure_that_cannot_be_right_is_refused_with_its_row(tmp_path, changes, words):
    path = lines_file(tmp_path, run_row(), run_row(**changes))
    with pytest.raises(MalformedFile) as refused:
        read_file(path)
    for word in (f"{path}:2", *words):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (own_row(total_token_throughput="fast"), [":2:", "total_token_throughput is 'fast'"]),
        (own_row(mean_ttf_ms=3), [":2:", "mean_ttft_ms"]),
        (own_row(input_len=100), [":2:", "either workload"]),
        (own_row(total_token_throughput=""), [":2:", "no total_token_throughput"]),
        (
            {key: v for key, v in sweep_row().items() if key != "hardware"},
            [":1:", "no column 'hardware'"],
        ),
        (sweep_row(max_concurrency=0), [":2:", "max_concurrency"]),
    ],
)
def test_a_line_that_cannot_be_right_is_refused_with_its_number(tmp_path, row, words):
    with pytest.raises(MalformedFile) as refused:
        read_file(csv_file(tmp_path, row))
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", "a,b\n1,2\n", "<html>"])
def test_what_is_no_table_is_answered_with_the_columns_of_one(tmp_path, text):
    path = tmp_path / "what.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        MalformedFile, match=r"no (column ')?command.*a table of measurements.*engine_version"
    ):
        read_file(path)


def test_rows_that_are_not_understood_are_left_out_with_the_reason(tmp_path):
    rows = [
        run_row(),
        run_row(model="meta/unknown-model"),
        run_row(f"{SGLANG} --no-such-option 3"),
        run_row(hardware="8xZ100"),
        run_row(hardware="16xH200"),
        run_row(engine_version="nightly"),
        run_row(completed=800.0),
    ]
    found = read_file(lines_file(tmp_path, *rows))
    assert [row.label for row in found.rows] == ["1"]
    reasons = {one.label: one.reason for one in found.left_out}
    words = ["unknown-model", "--no-such-option", "Z100", "16 GPUs", "nightly", "only 800 of 1000"]
    assert list(reasons) == ["2", "3", "4", "5", "6", "7"]
    for word, reason in zip(words, reasons.values(), strict=True):
        assert word in reason


def test_a_row_whose_requests_did_not_wait_for_their_limit_is_of_another_command(tmp_path):
    # Of 256 requests, 64 may run: the others wait three quarters of their time.
    load = {
        "output_len": 1024,
        "total_output_tokens": 1024e3,
        "output_throughput": 102400.0,
        "total_token_throughput": 115200.0,
        "max_concurrency": 256,
        "mean_tpot_ms": 8.0,
    }
    limited = f"{SGLANG} --max-running-requests 64"
    rows = [
        run_row(limited, mean_ttft_ms=900.0, **load),
        run_row(limited, mean_ttft_ms=9000.0, **load),
        run_row(mean_ttft_ms=900.0, **load),
    ]
    found = read_file(lines_file(tmp_path, *rows))
    assert [row.label for row in found.rows] == ["2", "3"]
    (left_out,) = found.left_out
    assert left_out.reason.startswith("256 requests in flight, of which its command lets 64 run")
    assert "another command was measured" in left_out.reason


def test_requests_that_a_client_lost_were_no_load(tmp_path):
    (row,) = read_file(lines_file(tmp_path, run_row(completed=984.0))).rows
    assert row.workload.points[0].prompts == 984
    assert row.workload.name == "short"


def test_nothing_usable_is_said_with_the_first_reason(tmp_path):
    with pytest.raises(BadInput, match="no measurements"):
        read([], [], Home(tmp_path))
    with pytest.raises(BadInput, match=r"no row with measured metrics.*unknown-model"):
        read([lines_file(tmp_path, run_row(model="meta/unknown-model"))], [], Home(tmp_path))
    with pytest.raises(BadInput, match=r"nowhere\.csv: cannot be read"):
        read_file(tmp_path / "nowhere.csv")


def test_a_load_generator_s_result_needs_the_server_that_it_measured(tmp_path):
    """SGLang's: 1000 prompts of 128 tokens and answers of 4, sent at once in 10 s."""
    run = {
        **{"backend": "sglang", "request_rate": float("inf"), "max_concurrency": None},
        **{"completed": 1000, "duration": 10.0, "total_output_tokens_retokenized": 4000},
        **{"total_input_tokens": 128000, "total_output_tokens": 4000, "mean_ttft_ms": 5000.0},
    }
    path = lines_file(tmp_path, run, {**run, "max_concurrency": 64})
    with pytest.raises(BadInput, match=r"sglang.*add --command, --hw, --engine-version"):
        read([path], [], Home(tmp_path))
    server = {"command": SGLANG, "hardware": "8xh200", "engine_version": "0.5.6.post2"}
    at_once, closed = read([path], [], Home(tmp_path), server=server).rows
    assert at_once.workload == load_workload("short")
    assert closed.workload.points[0].arrival.concurrency == 64
    assert at_once.metrics["total_token_throughput"] == pytest.approx(13200)
    assert knobs(at_once)["tensor_parallel"] == 8


ROOT = Path(__file__).resolve().parents[3]
converted = runpy.run_path(str(ROOT / "scripts" / "calibration_table.py"))["converted"]
PUBLISHED = {LAB: "seed_measurements.json", SWEEP: "dstack_r1_concurrency_sweep.csv"}


@pytest.mark.parametrize("table", PUBLISHED, ids=lambda table: table.stem)
def test_the_tables_here_say_what_the_published_files_say(table, tmp_path):
    if not (BESIDE / PUBLISHED[table]).is_file():
        pytest.skip(f"{BESIDE / PUBLISHED[table]}: the published file is not beside the repository")
    theirs = read_file(lines_file(tmp_path, *converted(BESIDE / PUBLISHED[table], tmp_path))).rows
    assert theirs
    for mine, row in zip(read_file(table).rows, theirs, strict=True):
        assert (mine.label, mine.resolved, mine.workload) == (row.label, row.resolved, row.workload)
        assert (mine.failure is None) == (row.failure is None)
        assert mine.metrics == pytest.approx(
            {name: row.metrics[name] for name in mine.metrics}, rel=1e-3
        )


def test_a_bundle_makes_a_table_of_its_complete_launches_with_its_model_s_card(tmp_path):
    bundle = ROOT / "examples" / "vllm_gpu" / "measured" / "study.bundle"
    with zipfile.ZipFile(bundle) as study:
        launches = [json.loads(line) for line in study.read("results.jsonl").splitlines()]
    ran = [launch for launch in launches if launch["state"] == "complete"]
    found = read_file(lines_file(tmp_path, *converted(bundle, tmp_path / "mine.jsonl")))
    assert found.left_out == ()
    assert len(found.rows) == len(ran) > 1
    for row, launch in zip(found.rows, ran, strict=True):
        (metrics,) = launch["metrics"].values()
        assert row.metrics["total_token_throughput"] == metrics["total_token_throughput"]
        assert row.resolved.context.model.id == "mine"
        assert row.resolved.context.version == launch["engine_version"]


def test_every_published_row_is_understood_and_only_those_that_failed_are_refused():
    lab, sweep = map(read_file, (LAB, SWEEP))
    assert (len(lab.rows), len(sweep.rows), lab.left_out, sweep.left_out) == (49, 30, (), ())
    for row in (*lab.rows, *sweep.rows):
        assert (row.failure is not None) == (row.resolved.failure is not None), row.label
    assert sweep.rows[0].label == "MI300X vllm c128"
    assert {row.label for row in lab.rows if row.cold_start_s} == {"0", "2", "9"}
    assert not any(row.cold_start_s for row in sweep.rows)
    equivalent = [point.label for point in points_of(lab.rows) if len(point.members) > 1]
    assert equivalent == ["1+3", "15+22", "16+27", "28+32"]
