"""`autotune bench` as a user runs it: exit codes, the result file, the table, bad input."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.load.server import Call, Server, good
from tests.product.cli import PROGRAM, Finished, autotune
from tests.product.processes import start
from tests.request_files import read_requests

WORKLOAD = ["--model", "m", "--workload", "random:12:5:10"]


def bench(tmp_path: Path, url: str, *more: str) -> Finished:
    return autotune("bench", "--url", url, *WORKLOAD, *more, home=tmp_path / "mlruns")


def test_a_result_that_readers_of_vllm_s_know(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--concurrency", "3", "--save-result", "result.json")
        assert server.most_at_once <= 3
    assert done.code == 0, done.err
    assert "Successful requests:                     10\n" in done.out
    assert "Median TTFT (ms):" in done.out
    assert "Share of a core:" in done.out
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], result["total_input_tokens"]) == (10, 0, 120)
    assert (result["max_concurrency"], result["num_prompts"], result["request_rate"]) == (
        3,
        10,
        "inf",
    )
    assert result["outcomes"] == {"ok": 10}
    assert result["client_bound"] is False
    assert result["requests_file"] == "result.requests.parquet"
    requests = read_requests(tmp_path / "result.requests.parquet")
    assert requests.columns["output_tokens"].tolist() == [5] * 10
    assert [len(gaps) for gaps in requests.columns["itl_ms"]] == [4] * 10
    about = {"workload": "random:12:5:10", "seed": str(result["seed"]), "evidence": "measured"}
    assert about.items() <= requests.metadata.items()
    assert not (tmp_path / "mlruns").exists()


VLLM_KEYS = {
    # What vLLM 0.13.0 and 0.32.0 write with --save-result for a generative model, without
    # --save-detailed.
    *(
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
    ),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *(
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
    ),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *(
        f"{statistic}_{name}_ms"
        for statistic in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl")
    ),
}
OUR_KEYS = {
    *(
        "schema",
        "workload",
        "load",
        "lengths_source",
        "seed",
        "evidence",
        "client",
        "client_bound",
        "outcomes",
    ),
    *("failure", "points", "steady", "cache", "repeats", "requests_file"),
}


def test_a_sweep_and_repeats_are_one_result(tmp_path: Path):
    with Server() as server:
        many = ["--concurrency", "2", "--concurrency", "4", "--repeats", "3", "--seed", "7"]
        done = bench(tmp_path, server.url, *many, "--save-result", "r.json")
        prompts = {
            tuple(call.body["prompt"]) for call in server.posts if call.body["max_tokens"] == 5
        }
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert set(result) >= VLLM_KEYS | OUR_KEYS
    assert (result["completed"], result["num_prompts"], result["outcomes"]) == (60, 60, {"ok": 60})
    assert (result["max_concurrency"], result["burstiness"], result["request_goodput"]) == (
        None,
        1,
        None,
    )
    assert [(p["label"], p["metrics"]["completed"]) for p in result["points"]] == [
        ("c2", 30),
        ("c4", 30),
    ]
    assert [(r["seed"], r["completed"]) for r in result["repeats"]] == [(7, 20), (8, 20), (9, 20)]
    assert result["duration"] == pytest.approx(sum(r["duration"] for r in result["repeats"]))
    assert len(prompts) >= 60, "another seed or load point, new prompts"
    rows = read_requests(tmp_path / "r.requests.parquet").columns
    assert list(dict.fromkeys(zip(rows["seed"].tolist(), rows["point"].tolist(), strict=True))) == [
        (seed, point) for seed in (7, 8, 9) for point in ("c2", "c4")
    ]
    table = done.out.splitlines()
    assert [line.split()[0] for line in table[:3]] == ["load", "c2", "c4"]
    for words in ("Seed 8:", "Mean:", "95 % interval of the mean:"):
        assert words in done.out
    assert "Successful requests:                     60\n" in done.out, (
        "what adds up over load points"
    )
    assert not any(words in done.out for words in ("throughput (tok/s):", "TTFT (ms):")), (
        "what does not"
    )
    with Server() as server:
        bench(
            tmp_path, server.url, "--concurrency", "4", "--seed", "7", "--save-result", "one.json"
        )
    compared = autotune("compare", "r.json", "one.json", "--json", home=tmp_path / "mlruns").json
    assert (list(compared["points"]), compared["metrics"]) == (["4 at a time"], {})
    assert "only A has the load 2 at a time: not compared" in compared["warnings"]
    shown = autotune("compare", "r.json", "one.json", home=tmp_path / "mlruns").out
    assert shown.index("4 at a time:\n") < shown.index("total_token_throughput")


def test_the_server_is_asked_for_its_one_model(tmp_path: Path):
    served = ["only"]

    async def lists(call: Call) -> None:
        if call.path == "/v1/models":
            await call.answer(200, {"data": [{"id": name} for name in served]})
        else:
            await good(call)

    command = ["--workload", "random:12:5:10", "--json"]
    with Server(lists) as server:
        done = autotune("bench", "--url", server.url, *command, home=tmp_path / "mlruns")
        served.append("lora")
        several = autotune("bench", "--url", server.url, *command, home=tmp_path / "mlruns")
    assert done.code == 0, done.err
    assert done.json["model_id"] == "only"
    assert {call.body["model"] for call in server.posts} == {"only"}
    assert (several.code, several.out) == (2, "")
    assert "serves only, lora: name the model with --model" in several.err


def test_the_table_has_the_titles_and_the_order_of_vllm_s(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--concurrency", "3")
    titles = [line.split(":")[0].strip("-= ") for line in done.out.splitlines()]
    begin = titles.index("Successful requests")
    assert titles[begin - 1] == "Serving Benchmark Result"
    latency = "Mean {0} (ms)|Median {0} (ms)|P90 {0} (ms)|P99 {0} (ms)"
    assert titles[begin : begin + 26] == [
        *(
            "Successful requests",
            "Failed requests",
            "Maximum request concurrency",
            "Benchmark duration (s)",
        ),
        *("Total input tokens", "Total generated tokens", "Request throughput (req/s)"),
        *(
            "Output token throughput (tok/s)",
            "Peak output token throughput (tok/s)",
            "Peak concurrent requests",
        ),
        "Total token throughput (tok/s)",
        *("Time to First Token", *latency.format("TTFT").split("|")),
        *("Time per Output Token (excl. 1st token)", *latency.format("TPOT").split("|")),
        *("Inter-token Latency", *latency.format("ITL").split("|")),
    ]


@pytest.mark.e2e
def test_without_a_steady_state_there_is_no_steady_figure(tmp_path: Path):
    with Server() as server:
        two = bench(
            tmp_path, server.url, "--workload", "random:12:5:2", "--save-result", "two.json"
        )
        ten = bench(tmp_path, server.url, "--concurrency", "1", "--save-result", "ten.json")
    assert "no steady state: 2 requests" in two.out
    assert "Total TPS in the steady state" not in two.out
    assert "Total TPS in the steady state" in ten.out
    of_two, of_ten = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("two", "ten")
    )
    for result, known in ((of_two, False), (of_ten, True)):
        metrics = (result, result["points"][0]["metrics"])
        figures = [one["steady_total_token_throughput"] for one in metrics]
        figures.append(result["steady"]["total_token_throughput"])
        assert [figure is not None for figure in figures] == [known] * 3
    compared = autotune(
        "compare", "two.json", "ten.json", "--json", home=tmp_path / "mlruns", cwd=tmp_path
    )
    assert compared.code == 0, compared.err
    assert "total_token_throughput" in compared.json["metrics"]
    assert "steady_total_token_throughput" not in compared.json["metrics"]


def test_ctrl_c_ends_it_at_once_and_leaves_no_file(tmp_path: Path):
    with Server(good) as server:
        load_has_begun = threading.Event()

        async def never_ends(call: Call) -> None:
            if call.method == "GET" or call.body["max_tokens"] != 40:
                await good(call)
                return
            load_has_begun.set()
            await asyncio.Event().wait()

        server.handler = never_ends
        options = ["--model", "m", "--workload", "random:3:40:4", "--save-result", "r.json"]
        with start(
            "bench", "--url", server.url, *options, folder=tmp_path, err=subprocess.PIPE
        ) as process:
            assert load_has_begun.wait(60)
            process.send_signal(signal.SIGINT)
            _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert messages.endswith("autotune: interrupted\n")
    assert "Traceback" not in messages
    assert os.listdir(tmp_path) == []


def test_json_is_one_object_on_stdout(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--request-rate", "200", "--json")
    assert done.code == 0, done.err
    assert (done.json["completed"], done.json["request_rate"], done.json["max_concurrency"]) == (
        10,
        200,
        None,
    )


def test_failed_requests_are_exit_4_with_the_file_written(tmp_path: Path):
    file = tmp_path / "result.json"
    with Server(good) as server:
        warm = 6  # the warm-up's requests come first

        async def fails_late(call: Call) -> None:
            late = len(server.posts) == warm + 2
            await (
                call.answer(503, {"error": {"message": "come back later"}}) if late else good(call)
            )

        server.handler = fails_late
        done = bench(tmp_path, server.url, "--concurrency", "3", "--save-result", str(file))
    assert done.code == 4
    assert "autotune: 1 of 10 requests failed: 1 http_503 (come back later)" in done.err
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], result["outcomes"]) == (
        9,
        1,
        {"ok": 9, "http_503": 1},
    )
    assert "come back later" in result["failure"]


@pytest.mark.e2e
def test_an_invalid_measurement_says_so_in_its_file_and_has_new_prompts_the_next_time(
    tmp_path: Path,
):
    async def brief(call: Call) -> None:
        if call.method == "POST":
            call.body["max_tokens"] = 1
        await good(call)

    files = [tmp_path / "one.json", tmp_path / "two.json"]
    with Server(brief) as server:
        ended = [bench(tmp_path, server.url, "--save-result", str(file)) for file in files]
    assert [done.code for done in ended] == [4, 4]
    results = [json.loads(file.read_text()) for file in files]
    assert all("ignore_eos" in result["invalid"] for result in results)
    assert all(
        f"INVALID: {result['invalid']}" in done.out
        for done, result in zip(ended, results, strict=True)
    )
    assert results[0]["seed"] != results[1]["seed"]
    refused = autotune("compare", *map(str, files), home=tmp_path)
    assert (refused.code, "one.json: its measurement is invalid" in refused.err) == (2, True)


def test_a_server_that_answers_nothing_gets_no_second_repeat(tmp_path: Path):
    async def refuses(call: Call) -> None:
        await (
            good(call)
            if call.method == "GET"
            else call.answer(500, {"error": {"message": "broken"}})
        )

    with Server(refuses) as server:
        done = bench(tmp_path, server.url, "--repeats", "3", "--save-result", "r.json")
        assert len(server.posts) == 10, "one warm-up"
    assert done.code == 4
    assert "10 of 10 requests failed: 10 http_500 (broken)" in done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["completed"], result["failed"], result["points"], len(result["repeats"])) == (
        0,
        10,
        [],
        1,
    )
    assert len(read_requests(tmp_path / "r.requests.parquet").columns["request"]) == 0


def test_nothing_listens_is_exit_2(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = bench(
            tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "--save-result", "result.json"
        )
    assert done.code == 2
    assert done.err.startswith("autotune: nothing answers at http://127.0.0.1:")
    assert not (tmp_path / "result.json").exists()


def test_another_model_is_answered_with_the_one_served(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--model", "n")
        assert server.posts == []
    assert done.code == 2
    assert "unknown model 'n'" in done.err
    assert "Known: m." in done.err


def test_the_api_key_is_asked_for_sent_and_never_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def guarded(call: Call) -> None:
        if call.headers.get("authorization") == "Bearer my-own-key":
            await good(call)
        else:
            await call.answer(401, {"error": "Unauthorized"})

    monkeypatch.setenv("MY_KEY", "my-own-key")
    with Server(guarded) as server:
        without = bench(tmp_path, server.url)
        done = bench(
            tmp_path, server.url, "--api-key-env", "MY_KEY", "--save-result", "result.json"
        )
    assert (without.code, done.code) == (2, 0)
    assert "--api-key-env" in without.err
    assert "my-own-key" not in done.out + done.err + (tmp_path / "result.json").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "ftp://localhost:8000"], "write http://HOST:PORT"),
        (["--concurrency", "2", "--request-rate", "3"], "mutually exclusive"),
        (["--concurrency", "0"], "greater than 0"),
        (["--repeats", "0"], "x>=1"),
        (["--request-rate", "0"], "greater than 0"),
        (["--workload", "shortt"], "did you mean 'short'"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "is not set"),
        (["--save-result", "no/such/folder/r.json"], "existing folder"),
        (["--tokenizer", "no-such-folder"], "tokeniz"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, options: list[str], words: str):
    with Server() as server:
        done = bench(tmp_path, server.url, *options)
        assert server.posts == []
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_more_streams_than_open_files_is_said_before_the_run(tmp_path: Path):
    with Server() as server:
        limited = ["prlimit", "--nofile=150:150", *PROGRAM, "bench", "--url", server.url, *WORKLOAD]
        done = subprocess.run(
            [*limited, "--workload", "random:2:2:500"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert server.posts == []
    assert done.returncode == 2
    assert "500 connections at once in one process need" in done.stderr
    assert "ulimit" in done.stderr


@pytest.mark.e2e
def test_repeats_do_not_hide_a_limit_that_was_missed(tmp_path: Path):
    load = ("--concurrency", "4", "--repeats", "2", "--json")
    with Server(good) as server:
        kept = json.loads(bench(tmp_path, server.url, *load, "--slo", "p99_ttft_ms<=60000").out)
        missed = json.loads(bench(tmp_path, server.url, *load, "--slo", "p99_ttft_ms<=0.06").out)
    assert kept["request_goodput"] == kept["request_throughput"] > 0
    assert missed["request_goodput"] == 0
    # All 10 of a load may fall into one second, but not the 20 of both.
    assert missed["max_concurrent_requests"] <= 10


@pytest.mark.e2e
def test_goodput_and_money_of_a_load(tmp_path: Path):
    load = ("--concurrency", "4", "--json")
    price = ("--gpus", "8", "--gpu-hour-price", "3.6")
    with Server(good) as server:
        kept = json.loads(
            bench(tmp_path, server.url, *load, *price, "--goodput", "ttft:60000 e2el:60000").out
        )
        missed = json.loads(
            bench(
                tmp_path, server.url, *load, "--goodput", "ttft:60000", "--goodput", "e2el:0.001"
            ).out
        )
        refused = bench(tmp_path, server.url, *load, "--gpu-hour-price", "3.6")
        assert bench(tmp_path, server.url, *load, "--goodput", "itl:5").code == 2
    assert kept["request_goodput"] == kept["request_throughput"] > 0
    assert kept["goodput"] == {"ttft": 60000, "e2el": 60000}
    assert (kept["gpus"], kept["gpu_hour_price"]) == (8, 3.6)
    total = kept["total_token_throughput"]
    assert kept["total_token_throughput_per_gpu"] == pytest.approx(total / 8)
    assert kept["cost_per_million_tokens"] == pytest.approx(0.008 / total * 1e6)
    assert (
        kept["points"][0]["metrics"]["cost_per_million_tokens"] == kept["cost_per_million_tokens"]
    )
    # Tokens that come together have no time between them, and no speed.
    tpot_ms = kept["mean_tpot_ms"]
    assert kept.get("output_tokens_per_s_per_user") == (
        pytest.approx(1000 / tpot_ms) if tpot_ms else None
    )
    assert missed["request_goodput"] == 0
    assert "cost_per_million_tokens" not in missed
    assert refused.code == 2
    assert "--gpus" in refused.err
