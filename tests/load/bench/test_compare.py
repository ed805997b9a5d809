"""`autotune compare`: what differs, how sure that is, and whether it may be compared at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.base.errors import BadInput
from autotune.cli.screens import printed
from autotune.load.bench.compare import ONE_RUN, compare
from autotune.load.client.messages import RequestLog
from autotune.load.client.stream import OK
from autotune.load.metrics.formulas import summarize
from autotune.load.metrics.records import RequestRecords
from autotune.load.request_file import LoadLog, requests_path, write_requests
from tests.product.cli import autotune

OURS = {
    "notes": [],
    **{"model_id": "m", "endpoint": "/v1/completions", "backend": "openai", "num_prompts": 200},
    **{
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
        "schema": 1,
        "workload": "random:100:11:200",
    },
    **{
        "load": "8 at a time",
        "lengths_source": "fixed",
        "seed": 0,
        "evidence": "measured",
        "client_bound": False,
    },
}


def log(seed: int, slower: float) -> RequestLog:
    """200 requests whose latencies are so many times as long."""
    rng = np.random.default_rng(seed)
    n, sent = 200, np.arange(200) / 10
    first = sent + slower * (0.2 + rng.exponential(0.05, n))
    records = RequestRecords(
        sent, first, first + slower, np.full(n, 100.0), np.full(n, 11.0), ok=np.ones(n, dtype=bool)
    )
    zeros = np.zeros(n)
    return RequestLog(
        records,
        (OK,) * n,
        zeros.astype(int),
        zeros,
        zeros * np.nan,
        np.ones(n, dtype=int),
        np.ones(n, dtype=int),
    )


def saved(path: Path, draw: int, slower: float, **changes: Any) -> Path:
    """A result of `autotune bench`, with its requests."""
    made = log(draw, slower)
    write_requests(requests_path(path), [LoadLog("", 0, made)], OURS)
    result = {
        **OURS,
        **summarize(made.records),
        "requests_file": requests_path(path).name,
        **changes,
    }
    path.write_text(json.dumps(result))
    return path


def measured(path: Path, draws: range, slower: float, **changes: Any) -> Path:
    """A result of as many repeats as there are draws."""
    runs = [{"seed": draw, **summarize(log(draw, slower).records)} for draw in draws]
    return saved(path, draws[0], slower, repeats=runs, **changes)


def test_better_and_worse_go_by_the_metric_and_by_its_interval_over_repeats(tmp_path: Path):
    a, b = (
        measured(tmp_path / "a.json", range(1, 5), 1.0),
        measured(tmp_path / "b.json", range(5, 9), 1.3),
    )
    changes = {change.metric: change for change in compare(a, b).changes}
    for name in ("mean_ttft_ms", "median_ttft_ms", "mean_e2el_ms"):
        interval = changes[name].interval
        assert interval is not None
        assert 20 < interval[0] < 30 < interval[1] < 40
        assert changes[name].verdict == "worse"
    assert {c.verdict for c in compare(b, a).changes if c.metric == "mean_ttft_ms"} == {"better"}
    same = measured(tmp_path / "c.json", range(9, 13), 1.0)
    assert {c.verdict for c in compare(a, same).changes if c.metric == "mean_ttft_ms"} == {
        "unclear"
    }
    assert {c.verdict for c in compare(a, a).changes} == {"equal"}


def test_one_run_each_has_a_direction_and_no_verdict(tmp_path: Path):
    found = compare(saved(tmp_path / "a.json", 1, 1.0), saved(tmp_path / "b.json", 2, 1.3))
    assert {change.verdict for change in found.changes} <= {None, "equal"}
    assert {change.interval for change in found.changes} == {None}
    assert next(c.percent for c in found.changes if c.metric == "mean_ttft_ms") == pytest.approx(
        30, abs=5
    )


def test_two_runs_that_may_be_compared_get_no_warning_but_are_called_single(tmp_path: Path):
    found = compare(saved(tmp_path / "a.json", 1, 1.0), saved(tmp_path / "b.json", 2, 1.1))
    assert found.warnings == ()
    assert ONE_RUN in found.notes


def test_repeats_give_the_throughput_an_interval(tmp_path: Path):
    def repeats(*values: float) -> dict[str, Any]:
        return {"repeats": [{"seed": i, "total_token_throughput": v} for i, v in enumerate(values)]}

    a = saved(tmp_path / "a.json", 1, 1.0, **repeats(100, 101, 99))
    b = saved(tmp_path / "b.json", 1, 1.0, total_token_throughput=120.0, **repeats(120, 121, 119))
    found = compare(a, b)
    throughput = next(c for c in found.changes if c.metric == "total_token_throughput")
    assert throughput.interval is not None
    assert 15 < throughput.interval[0] < 20 < throughput.interval[1] < 25
    assert ONE_RUN not in found.notes


def test_an_invalid_measurement_is_refused(tmp_path: Path):
    sound = saved(tmp_path / "a.json", 1, 1.0, invalid=None)
    warm = saved(
        tmp_path / "b.json", 2, 1.3, invalid="99% of the prompt tokens came from the prefix cache"
    )
    with pytest.raises(
        BadInput, match=r"b\.json: its measurement is invalid \(99% of the prompt tokens"
    ):
        compare(sound, warm)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"workload": "random:100:12:200"},
            "different workload: random:100:11:200 in A, random:100:12:200 in B",
        ),
        ({"load": "16 at a time"}, "different load: 8 at a time in A, 16 at a time in B"),
        ({"model_id": "n"}, "different model: m in A, n in B"),
        (
            {"endpoint": "/v1/chat/completions"},
            "different endpoint: completions in A, chat completions in B",
        ),
        ({"num_prompts": 400}, "different number of prompts per repeat: 200 in A, 400 in B"),
        ({"lengths_source": "jsonl:x"}, "different source of lengths"),
        (
            {"total_output_tokens": 9_000},
            "different lengths: 11.0 output tokens per request in A, 45.0 in B",
        ),
        (
            {"notes": ["sent without ignore_eos"]},
            "different form of the requests: all fields in A, sent without ignore_eos in B",
        ),
        ({"evidence": "emulated"}, "EVIDENCE DIFFERS: A is MEASURED, B is EMULATED"),
        ({"failed": 3}, "B: 3 requests failed"),
        ({"client_bound": True}, "B: the client did not keep up"),
        ({"stopped": {"percent": 40}}, "B: stopped before its end"),
    ],
)
def test_what_may_not_be_compared_is_said(tmp_path: Path, changes: dict[str, Any], words: str):
    found = compare(
        saved(tmp_path / "a.json", 1, 1.0), saved(tmp_path / "b.json", 1, 1.0, **changes)
    )
    assert any(words in warning for warning in found.warnings), found.warnings
    assert found.to_json()["comparable"] is False
    assert f"WARNING: {found.warnings[0]}" in printed("compared_results", found=found)


def sweep(path: Path, slower: dict[int, float]) -> Path:
    """A result of several concurrencies, each slower by its factor."""
    logs = {f"c{n}": log(n, factor) for n, factor in slower.items()}
    write_requests(
        requests_path(path), [LoadLog(label, 0, made) for label, made in logs.items()], OURS
    )
    points = [
        {"label": label, "load": f"{label[1:]} at a time", "metrics": summarize(made.records)}
        for label, made in logs.items()
    ]
    whole = summarize(RequestRecords.one_after_another([made.records for made in logs.values()]))
    result = {
        **OURS,
        **whole,
        "load": "2 load points",
        "points": points,
        "requests_file": requests_path(path).name,
    }
    path.write_text(json.dumps(result))
    return path


def test_sweeps_are_compared_load_by_load(tmp_path: Path):
    """B is slower at 4 and faster at 16: together they would be about equal."""
    a, b = (
        sweep(tmp_path / "a.json", {4: 1.0, 16: 1.0}),
        sweep(tmp_path / "b.json", {4: 1.5, 16: 0.6}),
    )
    found = compare(a, b)
    assert (list(found.points), found.changes, found.warnings) == (
        ["4 at a time", "16 at a time"],
        (),
        (),
    )
    ttft = {
        load: next(c for c in changes if c.metric == "mean_ttft_ms")
        for load, changes in found.points.items()
    }
    assert ttft["4 at a time"].percent == pytest.approx(50, abs=10)
    assert ttft["16 at a time"].percent == pytest.approx(-40, abs=10)


# The keys of vLLM 0.13.0, numbers of our own.
VLLM = {
    **{
        "date": "20260101-120000",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "m",
    },
    **{
        "tokenizer_id": "m",
        "num_prompts": 200,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
    },
    **{
        "duration": 25.0,
        "completed": 200,
        "failed": 0,
        "total_input_tokens": 20000,
        "total_output_tokens": 2200,
    },
    **{"request_throughput": 8.0, "request_goodput": None, "output_throughput": 88.0},
    **{
        "total_token_throughput": 888.0,
        "max_output_tokens_per_s": 110.0,
        "max_concurrent_requests": 12,
    },
    **{"mean_ttft_ms": 180.0, "median_ttft_ms": 175.0, "std_ttft_ms": 20.0, "p99_ttft_ms": 260.0},
    **{"mean_tpot_ms": 80.0, "median_tpot_ms": 79.0, "std_tpot_ms": 4.0, "p99_tpot_ms": 95.0},
    **{"mean_itl_ms": 80.0, "median_itl_ms": 78.0, "std_itl_ms": 9.0, "p99_itl_ms": 130.0},
}


def test_a_file_of_vllm_s_own_is_compared(tmp_path: Path):
    ours = saved(tmp_path / "ours.json", 1, 1.0)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    done = autotune(
        "compare", "vllm.json", "ours.json", "--json", home=tmp_path / "mlruns", cwd=tmp_path
    )
    assert done.code == 0, done.err
    found = done.json
    assert found["metrics"]["total_token_throughput"]["a"] == 888.0
    assert "p99_itl_ms" in found["metrics"]
    assert "p99_e2el_ms" not in found["metrics"]
    assert found["metrics"]["mean_ttft_ms"]["interval95"] is None
    assert not any(warning.startswith(("another", "other")) for warning in found["warnings"])
    assert any(
        "A does not state its workload, seed, evidence" in warning for warning in found["warnings"]
    )
    printed = autotune("compare", str(ours), "vllm.json", home=tmp_path / "mlruns", cwd=tmp_path)
    assert printed.code == 0, printed.err
    assert printed.out.index("WARNING:") < printed.out.index("total_token_throughput")
    assert ONE_RUN in printed.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("not JSON", "not a result"),
        ("[]", "not a result"),
        ('{"duration": 3}', "no number under 'completed'"),
        (
            json.dumps({**VLLM, "total_token_throughput": "fast"}),
            "no number under 'total_token_throughput'",
        ),
        (json.dumps(VLLM) + "\n" + '{"duration": 3}', "no number under 'completed'"),
        (json.dumps([VLLM, {**VLLM, "model_id": "n"}]), "its 2 runs differ in model_id (m, n)"),
        (json.dumps([VLLM, {**VLLM, "tp": "8"}]), "its 2 runs differ in tp (None, 8)"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str | None, words: str):
    (tmp_path / "a.json").write_text(json.dumps(VLLM))
    if text is not None:
        (tmp_path / "b.json").write_text(text)
    done = autotune("compare", "a.json", "b.json", home=tmp_path / "mlruns", cwd=tmp_path)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def run_of(path: Path, *runs: dict[str, Any]) -> Path:
    """A file as ``vllm bench serve --append-result`` writes it."""
    path.write_text("\n".join(json.dumps({**VLLM, **run}) for run in runs))
    return path


def test_runs_of_one_load_are_repeats_and_of_several_a_curve(tmp_path: Path):
    rates = [{"total_token_throughput": 880.0 + i} for i in range(3)]
    faster = [{"total_token_throughput": 980.0 + i} for i in range(3)]
    a, b = run_of(tmp_path / "a.json", *rates), run_of(tmp_path / "b.json", *faster)
    found = compare(a, b)
    interval = next(c for c in found.changes if c.metric == "total_token_throughput").interval
    assert interval is not None
    assert interval[0] < 100 * (981 / 881 - 1) < interval[1]
    more = [{**run, "max_concurrency": 16} for run in rates]
    curve = compare(run_of(tmp_path / "c.json", *rates, *more), run_of(b, *more))
    assert list(curve.points) == ["16 at a time"]
    assert {change.verdict for change in curve.points["16 at a time"]} == {"equal"}
    assert any("only A has the load 8 at a time" in warning for warning in curve.warnings)


def test_a_metric_is_compared_with_one_of_its_definition_alone(tmp_path: Path):
    """GuideLLM's mean TPOT counts the first token: of an answer of 1 s, 11 tokens and 50 ms between
    them it is 90.9 ms. Its latencies are in seconds."""
    figures = {
        "requests_per_second": 8.0,
        "request_latency": 1.0,
        "time_to_first_token_ms": 180.0,
        "time_per_output_token_ms": 90.9,
        "prompt_token_count": 100.0,
        "output_token_count": 11.0,
    }
    metrics: dict[str, Any] = {
        name: {"successful": {"mean": mean, "percentiles": {"p99": mean}}}
        for name, mean in figures.items()
    }
    metrics["request_totals"] = {"successful": 200, "errored": 0, "incomplete": 0}
    run = {"config": {"strategy": {"type_": "concurrent", "streams": 8}}, "metrics": metrics}
    guide = tmp_path / "guide.json"
    guide.write_text(json.dumps({"metadata": {}, "benchmarks": [run]}))
    vllm = run_of(tmp_path / "vllm.json", {"mean_e2el_ms": 1000.0})
    found = compare(vllm, guide)
    changes = {change.metric: change.b for change in found.changes}
    assert changes["mean_e2el_ms"] == 1000.0
    assert changes["total_token_throughput"] == pytest.approx(888.0)
    assert "mean_tpot_ms" not in changes
    assert any("mean_tpot_ms" in note and "first included" in note for note in found.notes)
    assert not any("different load" in warning for warning in found.warnings)
    same = {change.metric for change in compare(guide, guide).changes}
    assert {"mean_tpot_ms (guidellm)", "p99_ttft_ms (guidellm)", "mean_ttft_ms"} <= same


def test_aiperf_s_inter_token_latency_is_our_tpot(tmp_path: Path):
    table = tmp_path / "profile_export_aiperf.csv"
    table.write_text(
        "Metric,avg,p50,p99\nInter Token Latency (ms),62.48,49.99,98.52\n"
        "Inter Chunk Latency (ms),69.99,50.61,100.54\nRequest Latency (ms),1578.39,1154.75,2948.02\n"
        "Input Sequence Length (tokens),16.00,16.00,16.00\n\nMetric,Value\nRequest Count,4.00\n"
        "Request Throughput (requests/sec),0.63\nOutput Token Throughput (tokens/sec),8.54\n"
        "Total Token Throughput (tokens/sec),18.65\nTotal Output Sequence Length (tokens),54.00\n"
        "Total Usage Completion Tokens (tokens),108.00\n"
    )
    found = compare(table, run_of(tmp_path / "vllm.json", {}))
    changes = {change.metric: change.a for change in found.changes}
    assert (changes["mean_tpot_ms"], changes["mean_itl_ms"]) == (62.48, 69.99)
    assert any("of 54 output tokens" in warning and "108" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"duration": 1, "completed": 1, "request_throughput": 1' + "0" * 400 + "}"],
)
def test_odd_files_are_no_result(tmp_path: Path, text: str):
    (tmp_path / "odd.json").write_text(text)
    done = autotune("compare", "odd.json", "odd.json", home=tmp_path / "home")
    assert done.code == 2
    assert "Traceback" not in done.err
