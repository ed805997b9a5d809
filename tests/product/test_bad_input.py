"""Every bad input of the command line: exit 2, one message with the right names, no traceback,
nothing made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.product.cli import PROGRAM, Finished, autotune, new_home

ROOT = Path(__file__).resolve().parents[2]

GOOD = ["--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200"]
GOOD_BASELINE = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8"
V32 = "deepseek-ai/DeepSeek-V3.2"
R1 = "deepseek-ai/DeepSeek-R1"
SMALL = ["--space", str(Path(__file__).resolve().parents[2] / "examples" / "small-space.yaml")]
"""A few candidates, where it is not about them: to enumerate all takes seconds."""


def refused(done: Finished, *words: str) -> None:
    assert done.code == 2, (done.code, done.out, done.err)
    assert "Traceback" not in done.err
    assert done.out == ""
    for word in words:
        assert word in done.err, done.err


def test_a_machine_that_cannot_is_told_before_anything_is_prepared(tmp_path: Path) -> None:
    limited = ["prlimit", "--nofile=256:256", *PROGRAM, "run", *GOOD, "--on", "emulator"]
    named = [*PROGRAM, "list", "--home", b"h\xc3\xa9"]
    for words, right in ((limited, b"ulimit -Hn 4096"), (named, b"set LC_ALL=C.UTF-8")):
        env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert (done.returncode, right in done.stderr) == (2, True), done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "deepseek-ai/DeepSeek-V9", "--hw", "h200"], ["DeepSeek-V3.2", "config.json"]),
        (
            ["--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h2000"],
            ["unknown hardware 'h2000'", "h200", "mi300x", "the nearest", "h200.yaml"],
        ),
        ([*GOOD, "--engine", "sglan"], ["did you mean 'sglang'", "tensorrt_llm", "vllm"]),
        ([*GOOD, "--workload", "sharegtp"], ["did you mean 'sharegpt'", "random:IN:OUT"]),
        ([*GOOD, "--workload", "random:0:5"], ["random:IN:OUT"]),
        ([*GOOD, "--workload", "jsonl:/nowhere.jsonl"], ["nowhere.jsonl"]),
        ([*GOOD, "--objective", "total_tokens"], ["total_token_throughput"]),
        ([*GOOD, "--objective", "cost_per_million_tokens"], ["--gpu-hour-price"]),
        ([*GOOD, "--gpu-hour-price", "cheap"], ["--gpu-hour-price", "cheap"]),
        ([*GOOD, "--gpu-hour-price", "0"], ["--gpu-hour-price 0", "above 0"]),
        ([*GOOD, "--goodput", "ttft:2000,tpot:50"], ["ttft:2000 tpot:50"]),
        ([*GOOD, "--ladder", "1-256"], ["1,4,16,64,256"]),
        ([*GOOD, "--ladder", "1,4", "--workload", "sweep"], ["sweep already has 6 loads"]),
        ([*GOOD, "--slo", "p99_ttft_ms=2000"], ["metric<=limit"]),
        ([*GOOD, "--slo", "p98_ttft_ms<=2000"], ["p99_ttft_ms"]),
        (
            [*GOOD, "--slo", "p99_ttft_ms<=100", "--slo", "p99_ttft_ms>=200"],
            ["'p99_ttft_ms>=200'", "'p99_ttft_ms<=200'"],
        ),
        ([*GOOD, "--gpus", "3"], ["--gpus 3", "1, 2, 4, 8"]),
        ([*GOOD, "--workload", "random:200000:100"], ["random:200000:100", "200,100", "163,840"]),
        (
            [*GOOD, "--set", "max_num_seqs=99999999999"],
            ["max_running_requests=99999999999", "2^31"],
        ),
        ([*GOOD, "--engine", "vllm>=0.30"], ["'vllm>=0.30'", "vllm=="]),
        (
            [*GOOD, "--engine", "vllm==0.5.0"],
            ["does not have the model", "0.11", "sparse-attention-unknown"],
        ),
        (
            [
                *GOOD,
                *SMALL,
                "--engine",
                "vllm",
                "--engine-arg",
                "vllm=-tp 4",
                "--set",
                "tensor_parallel=8",
            ],
            ["--engine-arg vllm='-tp 4'", "--set tensor_parallel=8"],
        ),
        ([*GOOD, "--weights", "long=1"], ["'long'", "sharegpt", "--workload"]),
        (
            [*GOOD, "--pareto", "total_token_throughput"],
            ["--objective total_token_throughput", "two metrics"],
        ),
        (
            [*GOOD, "--set", "tensor_parallel=3"],
            [
                "sglang",
                "tensorrt_llm",
                "vllm",
                "tensor_parallel=3",
                "heads-not-divisible",
                "split evenly",
            ],
        ),
        ([*GOOD, "--set", "kv_cache_dtyp=auto"], ["did you mean 'kv_cache_dtype'"]),
        (
            [*GOOD, "--engine", "sglang", "--set", "tp=8"],
            ["did you mean 'tensor_parallel' (GPUs that share"],
        ),
        ([*GOOD, "--slo", "ttft<=2000"], ["'p99_ttft_ms'?"]),
        ([*GOOD, "--engine", "vllm=="], ["write engine==version"]),
        ([*GOOD, "--engine-bin", "vllm=/nowhere"], ["vllm=/nowhere: no such file"]),
        (
            [*GOOD, *SMALL, "--baseline", GOOD_BASELINE.replace("8", "6")],
            ["--baseline", "heads-not-divisible"],
        ),
        (
            [*GOOD, *SMALL, "--baseline", GOOD_BASELINE.replace("8", "16")],
            ["--baseline", "one GPU each"],
        ),
        ([*GOOD[:3], "h100", *SMALL], ["674 GB of weights, 640 GB of memory on 8 x h100"]),
        ([*GOOD, "--set", "kv_cache_dtype"], ["knob=value"]),
        ([*GOOD, "--set", "kv_cache_dtype=fp7"], ["fp7", "auto"]),
        ([*GOOD, "--set", "tensor_parallel=foo"], ["whole number of at least 1"]),
        ([*GOOD, "--set", "tensor_parallel=0"], ["whole number of at least 1"]),
        ([*GOOD, "--set", "tensor_parallel="], ["whole number of at least 1"]),
        ([*GOOD, "--set", "memory_fraction=7"], ["at most 1"]),
        (
            [*GOOD, *SMALL, "--baseline", "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 0"],
            ["tensor_parallel=0", "at least 1"],
        ),
        ([*GOOD, "--objective", "failed"], ["total_token_throughput"]),
        ([*GOOD, "--hours", "nan"], ["above 0"]),
        ([*GOOD, "--seed", "-1"], ["--seed"]),
        ([*GOOD, *SMALL, "--baseline", "ollama serve"], ["vllm serve"]),
        (
            [
                *GOOD,
                *SMALL,
                "--baseline",
                "vllm serve deepseek-ai/DeepSeek-V3.2 --tensor-paralel 8",
            ],
            ["--tensor-paralel"],
        ),
        (
            [
                *GOOD,
                *SMALL,
                "--baseline",
                "vllm serve deepseek-ai/DeepSeek-V3.2 --kv-cache-dtype fp7",
            ],
            ["unknown-cache-dtype"],
        ),
        ([*GOOD, *SMALL, "--baseline", "vllm serve 'unclosed"], ["--baseline"]),
        (
            [*GOOD, *SMALL, "--baseline", "vllm serve deepseek-ai/DeepSeek-R1 -tp 8"],
            ["DeepSeek-R1", "DeepSeek-V3.2"],
        ),
        (
            [*GOOD[:3], "mi300x", *SMALL, "--baseline", "recipe:vllm"],
            [
                "no recipe of vllm is known for deepseek-ai/DeepSeek-V3.2 on 8 x mi300x",
                "DeepSeek-V3.2 on h200",
            ],
        ),
        ([*GOOD, "--engine-arg", "sglang"], ["engine='arguments'"]),
        ([*GOOD, *SMALL, "--engine-arg", "sglang=--no-such-flag 3"], ["--no-such-flag"]),
        (
            [
                *GOOD,
                *SMALL,
                "--dry-run",
                "--baseline",
                GOOD_BASELINE,
                "--engine-arg",
                "vllm=--bogus-flag 3",
            ],
            ["--engine-arg", "--bogus-flag"],
        ),
        (
            [*GOOD, "--on", "external:http://127.0.0.1:1", "--set", "block_size=1"],
            ["--set", "an external server"],
        ),
        ([*GOOD, "--launches", "0"], ["at least 1 launch"]),
        (
            [*GOOD, "--launches", "100000000"],
            ["--launches 100000000: at most 10,000, as a launch takes minutes"],
        ),
        (
            [*GOOD, "--hours", "1e300"],
            ["--hours 1e+300: write a number above 0, at most 8,760 (a year)"],
        ),
        (
            [*GOOD, "--slo", "p99_ttft_ms<=0.003"],
            ["milliseconds; 0.003 seconds are 'p99_ttft_ms<=3'"],
        ),
        (
            [*GOOD, "--slo", "p99_ttft_ms<=5", "--slo", "p99_ttft_ms<=3"],
            ["'p99_ttft_ms<=5' and 'p99_ttft_ms<=3'", "the stricter is 'p99_ttft_ms<=3'"],
        ),
        ([*GOOD, "--hours", "0"], ["above 0"]),
        ([*GOOD, "--gpus", "9"], ["1 to 8"]),
        ([*GOOD, "--noise", "-1"], ["sigma"]),
        ([*GOOD, "--sampler", "cma"], ["gp", "random", "tpe"]),
        ([*GOOD, "--on", "mars"], ["simulator"]),
        ([*GOOD, "--study", "../escape"], ["folder name"]),
        ([*GOOD, "--study", "a/b"], ["folder name"]),
        ([*GOOD, "--space", "/nowhere"], ["no such file"]),
        (["--hw", "h200"], ["--model"]),
        ([*GOOD, "--no-such-option"], ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else None,
)
def test_run_refuses(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    home = tmp_path / "home"
    refused(autotune("run", *arguments, home=home), *words)
    assert not home.exists(), "bad input left something behind"


def test_a_space_folder_without_spaces(tmp_path: Path) -> None:
    refused(
        autotune("run", *GOOD, "--space", str(tmp_path), home=tmp_path / "home"), "engines/*.yaml"
    )


def test_a_space_file_that_asks_for_endless_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    start = "[{name: huge, when: \"'a' * 2000000000\", set: {tensor_parallel: 8}, source: s}]"
    path.write_text(
        f"narrow:\n  vllm:\n    search: {{tensor_parallel: [8]}}\n    starts: {start}\n"
    )
    refused(
        autotune("run", *GOOD, "--space", str(path), home=tmp_path / "home"),
        "'a' * 2000000000",
        "only numbers",
    )


def test_a_malformed_space_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("narrow:\n  sglang:\n    search:\n      tensor_paralel: [8]\n")
    refused(
        autotune("run", *GOOD, "--space", str(path), home=tmp_path / "home"),
        "space.yaml:4",
        "tensor_parallel",
    )
    refused(
        autotune("space", "check", str(path), home=tmp_path / "home"),
        "space.yaml:4",
        "tensor_parallel",
    )


def test_a_hardware_file_with_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("name: node\nvendor: nvidia\ngpus: minus one\n")
    refused(
        autotune("run", GOOD[0], GOOD[1], "--hw", str(path), home=tmp_path / "home"), "node.yaml:"
    )


REQUIRED = (
    *(
        "name",
        "vendor",
        "generation",
        "gpus",
        "memory_gb",
        "bandwidth_tb_s",
        "bf16_tflops",
        "fp8_tflops",
    ),
    *("link_gb_s", "achieved_bandwidth", "achieved_flops", "source"),
)
"""Keys of a hardware card, as docs/models.md names them."""


def test_all_missing_keys_of_a_card_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("name: node\nbandwidth_tb_s: 1.0\n")
    lacking = [key for key in REQUIRED if key not in ("name", "bandwidth_tb_s")]
    done = autotune("space", "check", str(path), home=tmp_path / "home")
    refused(done, "node.yaml:1: missing keys: " + ", ".join(lacking))
    path.write_text("name: node\nbandwidth_tb_s: 1.0\nlink_gbs: 1\n")
    refused(
        autotune("space", "check", str(path), home=tmp_path / "home"),
        "node.yaml:3: link_gbs: unknown key",
        "; missing keys: vendor,",
    )
    page = (ROOT / "docs" / "models.md").read_text()
    assert all(f"`{key}`" in page for key in REQUIRED)


@pytest.mark.parametrize(
    ("engine", "read", "instead", "told"),
    [
        (
            "vllm",
            "read: args.prefill_schedule_interval",
            "read: args.prefill_schedule_intervall",
            "args.prefill_schedule_intervall is no option of vLLM 0.11.0 to 0.33.0; "
            "did you mean args.prefill_schedule_interval?",
        ),
        (
            "sglang",
            "read: args.pp_size",
            "read: [{versions: '<0.5.6', value: 'args.pp_sizes or 1'}, {value: args.pp_size}]",
            "args.pp_sizes is no option of SGLang",
        ),
    ],
)
def test_an_option_that_a_knob_is_read_from_is_one_of_its_versions(
    tmp_path: Path, engine: str, read: str, instead: str, told: str
) -> None:
    """Else the knob would never be read from a command, and count as left at its default."""
    text = (ROOT / "search_spaces" / engine / "engine.yaml").read_text()
    if read not in text:
        keys = ("help: x", "default: null", "search: [null]", read)
        text = text.replace(
            "knobs:\n", "knobs:\n  interval:\n" + "".join(f"    {key}\n" for key in keys), 1
        )
    path = tmp_path / "engine.yaml"
    path.write_text(text.replace(read, instead))
    line = path.read_text().splitlines().index(f"    {instead}") + 1
    refused(
        autotune("space", "check", str(path), home=tmp_path / "home"), f"engine.yaml:{line}: {told}"
    )
    path.write_text(text)
    assert autotune("space", "check", str(path), home=tmp_path / "home").code == 0


def test_an_engine_that_cannot_run_there_says_why(tmp_path: Path) -> None:
    done = autotune(
        "run",
        GOOD[0],
        GOOD[1],
        "--hw",
        "mi300x",
        "--engine",
        "tensorrt_llm",
        home=tmp_path / "home",
    )
    refused(done, "tensorrt_llm", "AMD")


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="no /proc, the one folder that root cannot write either"
)
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    refused(
        autotune("run", *GOOD, *SMALL, home=Path("/proc/autotune-home"), cwd=tmp_path),
        "is not writable",
        "--home",
    )


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    done = autotune("run", *GOOD, *SMALL, home=home)
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [["resume"], ["report"], ["export", "--to", "shell"]])
def test_a_study_that_does_not_exist(tmp_path: Path, command: list[str]) -> None:
    refused(autotune(*command, "nothing", home=tmp_path / "home"), "unknown study 'nothing'")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["vllm", "serve", "deepseek-ai/DeepSeek-V3.2", "--nonsense"], ["--nonsense"]),
        (
            ["vllm", "serve", "deepseek-ai/DeepSeek-V9"],
            ["unknown model", "DeepSeek-V3.2", "config.json"],
        ),
        (["llamafile", "serve"], ["vllm serve"]),
        (
            ["trtllm-serve", "deepseek-ai/DeepSeek-V3.2", "--config", "/nowhere.yaml"],
            ["nowhere.yaml"],
        ),
    ],
)
def test_simulate_refuses(tmp_path: Path, command: list[str], words: list[str]) -> None:
    refused(autotune("simulate", "--hw", "h200", "--", *command, home=tmp_path / "home"), *words)


@pytest.mark.parametrize(
    ("options", "command", "kind", "said"),
    [
        (["--gpus", "6"], f"vllm serve {R1} -tp 8", "bad_argument", "one GPU each"),
        (
            ["--gpus", "6"],
            f"trtllm-serve {R1} --tp_size 6",
            "bad_argument",
            "heads are split evenly",
        ),
        (
            [],
            f"sglang serve --model-path {R1} --tp 8 --dp 3 --enable-dp-attention",
            "bad_argument",
            "evenly",
        ),
        (
            ["--workload", "very-long"],
            f"vllm serve {R1} -tp 8 --max-model-len 8192",
            "load_errors",
            "longer than",
        ),
        (["--hw", "mi300x"], f"trtllm-serve {R1} --tp_size 8", "unsupported", "NVIDIA's GPUs only"),
    ],
)
def test_simulate_predicts_what_the_engine_would_refuse(
    tmp_path: Path, options: list[str], command: str, kind: str, said: str
) -> None:
    done = autotune(
        "simulate", "--hw", "h200", *options, "--json", "--", command, home=tmp_path / "home"
    )
    assert done.code == 3, done.err
    assert done.json["failure"]["kind"] == kind
    assert said in done.json["failure"]["message"]
    assert done.json["memory_verdict"] is None


def test_simulate_leads_with_what_matters(tmp_path: Path) -> None:
    short = [
        "simulate",
        "--hw",
        "h200",
        "--workload",
        "random:64:16:16",
        "--",
        "vllm",
        "serve",
        V32,
    ]
    runs = autotune(*short, "-tp", "8", home=tmp_path / "home")
    assert (runs.code, runs.err) == (0, "")
    first = [line.split()[0] for line in runs.out.splitlines()[:4]]
    assert first == ["simulated:", "total_token_throughput", "median_ttft_ms", "median_tpot_ms"]
    assert "(90 % interval on a real node: " in runs.out.splitlines()[1]
    fails = autotune(*short, "-tp", "4", home=tmp_path / "home")
    assert fails.code == 3
    assert fails.out.splitlines()[1].startswith("does not run (out_of_memory): ")
    assert fails.err == "autotune: vllm would not run with this command line (out_of_memory)\n"


def test_an_unknown_engine_version_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    command = [
        "simulate",
        "--hw",
        "h200",
        "--engine-version",
        "new",
        "--",
        "vllm",
        "serve",
        "deepseek-ai/DeepSeek-R1",
    ]
    refused(autotune(*command, home=tmp_path / "home"), "'new'", "0.13.0")


def test_a_version_without_a_table_is_simulated_with_a_warning(tmp_path: Path) -> None:
    command = [
        "simulate",
        "--hw",
        "h200",
        "--json",
        "--engine-version",
        "0.31.0",
        "--",
        f"vllm serve {R1} -tp 8",
    ]
    done = autotune(*command, home=tmp_path / "home")
    assert done.code == 0, done.err
    assert done.json["engine_version"] == "0.31.0"
    assert "version" in done.json["unseen"]
    assert "vLLM 0.31.0's flags are not bundled; using those of 0.30.0" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-tp", "0"], "tensor_parallel=0 is refused"),
        (["-tp", "8", "--gpu-memory-utilization", "7"], "memory_fraction=7.0 is refused"),
        (["-tp", "8", "--max-model-len=-5"], "context_length=-5 is refused"),
    ],
)
def test_a_number_that_no_engine_takes_is_a_predicted_failure(
    tmp_path: Path, options: list[str], said: str
) -> None:
    command = ["vllm", "serve", "deepseek-ai/DeepSeek-V3.2", *options]
    done = autotune("simulate", "--hw", "h200", "--json", "--", *command, home=tmp_path / "home")
    assert done.code == 3, done.err
    assert done.json["failure"]["kind"] == "bad_argument"
    assert said in done.json["failure"]["message"]


@pytest.mark.parametrize(
    "command",
    [["run", "--on", "simulator", *GOOD], ["simulate", "--hw", "h200", "--", GOOD_BASELINE]],
)
def test_coefficients_in_the_home_folder_that_are_none(tmp_path: Path, command: list[str]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "coefficients.yaml").write_text("fitted_to: []\nfactors: {}\n")
    refused(autotune(*command, home=home), "coefficients.yaml", "errors")


def test_a_whole_line_in_quotes_is_understood(tmp_path: Path) -> None:
    line = "VLLM_USE_DEEP_GEMM=0 vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8"
    done = autotune("simulate", "--hw", "h200", "--json", "--", line, home=tmp_path / "home")
    assert done.code == 0, done.err
    assert done.json["config"]["deep_gemm"] is False


def test_one_damaged_study_does_not_hide_the_others(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    assert autotune("run", *GOOD, *SMALL, "--launches", "1", "--study", "good", home=home).code == 0
    shutil.copytree(home / "studies" / "good", home / "studies" / "bad")
    (home / "studies" / "bad" / "recommendation.json").write_text("{")
    listed = autotune("list", "--json", home=home)
    assert listed.code == 0, listed.err
    assert {row["study"]: row["verdict"] for row in listed.json} == {
        "good": "indistinguishable",
        "bad": "unreadable",
    }
    assert "recommendation.json" in listed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run", "--launches", "1e6"],
            ["--launches: '1e6' is not a whole number", "autotune run --help`"],
        ),
        (["run", "--hours", "long"], ["--hours: 'long' is not a number"]),
        (["run", "--min-context", "x"], ["--min-context: 'x' is not a whole number"]),
        (["run", "--seed", "-1"], ["--seed: -1", "0<=x<=4294967295"]),
        (["run", "--find-load", "x"], ["--find-load: 'x'", "'concurrency', 'rate'"]),
        (["run", "--find-load", "--dry-run"], ["--find-load wants concurrency or rate behind it"]),
        (
            ["bench", "--url", "x", "--find-load", "--json"],
            ["--find-load wants concurrency or rate behind it"],
        ),
        (["run", "--launchs", "3"], ["'--launchs'; did you mean '--launches'?"]),
        (["report", "x", "--format"], ["'--format' requires an argument"]),
        (["bundle", "x", "-o", "."], ["--output: ", "'.' is a directory"]),
        (["bench"], ["missing option '--url'"]),
        (["resume"], ["missing argument 'STUDY'", "autotune resume --help`"]),
        (["compare", "a", "b", "c"], ["unexpected extra argument (c)"]),
        (["rnu"], ["unknown command 'rnu'; did you mean 'run'?"]),
        (["space", "shw"], ["'shw'; did you mean 'show'?"]),
    ],
    ids=" ".join,
)
def test_what_click_refuses_reads_like_what_we_refuse(
    tmp_path: Path, arguments: list[str], words: list[str]
):
    done = autotune(*arguments, home=tmp_path / "home")
    refused(done, *words)
    assert done.err.startswith("autotune: ")
    assert done.err.count("\n") == 1
