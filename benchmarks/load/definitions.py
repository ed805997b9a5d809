"""Measure what load generators call TTFT, TPOT, ITL, percentiles and throughput, against a server of
known times.

``python benchmarks/load/definitions.py vllm=/path/to/vllm aiperf=/path/to/aiperf …`` runs each tool
against `known_times.py`, four requests one after the other, and prints a Markdown table: its figures
beside the true ones. A tool is ``NAME=COMMAND``, or ``NAME@VERSION=COMMAND``, with the words that
start it (``vllm@0.33='env PYTHONPATH=src python -m vllm.entrypoints.cli.main'``); names: see `TOOLS`.
``autotune`` is always there.

    even   a token in each chunk, completions
    two    two tokens in each chunk, completions
    role   chat whose answer is opened 0.1 s after the request, and whose text begins when the others do

Figures are in ms and tokens per second. Gaps are 50 and 100 ms, so that a busy machine changes them
by some per cent and never by a definition.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from known_times import SHAPES, WORDS

from autotune.load.metrics.tools import runs

COLUMNS = {
    "TTFT mean": "mean_ttft_ms",
    "median": "median_ttft_ms",
    "P90": "p90_ttft_ms",
    "TPOT mean": "mean_tpot_ms",
    "ITL mean": "mean_itl_ms",
    "ITL median": "median_itl_ms",
    "latency": "mean_e2el_ms",
    "output/s": "output_throughput",
    "peak": "max_output_tokens_per_s",
}


class Case(NamedTuple):
    """A server, and the endpoint that is asked."""

    name: str
    server: tuple[str, ...]
    chat: bool = False
    tokens: int = 1

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


CASES = (
    Case("even", ()),
    Case("two", ("--chunks", "2"), tokens=2),
    Case("role", ("--role", "0.1"), chat=True),
)


@contextmanager
def server(case: Case) -> Iterator[str]:
    """Start the server of a case; yields its address."""
    script = Path(__file__).with_name("known_times.py")
    process = subprocess.Popen(
        [sys.executable, str(script), *case.server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait()


def truth(case: Case) -> dict[str, float]:
    """Return the figures by our definitions: percentiles interpolated, a gap for each chunk."""
    first = np.array([shape.first_s for shape in SHAPES]) * 1e3
    length = np.array([(shape.chunks - 1) * shape.gap_s for shape in SHAPES]) * 1e3
    chunks = np.array([shape.chunks for shape in SHAPES])
    gaps = np.repeat([shape.gap_s * 1e3 for shape in SHAPES], chunks - 1)
    return {
        "mean_ttft_ms": first.mean(),
        "median_ttft_ms": float(np.median(first)),
        "p90_ttft_ms": float(np.percentile(first, 90)),
        "mean_tpot_ms": (length / (chunks * case.tokens - 1)).mean(),
        "mean_itl_ms": gaps.mean(),
        "median_itl_ms": float(np.median(gaps)),
        "mean_e2el_ms": (first + length).mean(),
        "output_throughput": chunks.sum() * case.tokens / (first + length).sum() * 1e3,
    }


class Asked(NamedTuple):
    """One run of a tool: its words, the server, and a folder with ``tokenizer`` and ``prompts``."""

    words: list[str]
    url: str
    case: Case
    folder: Path

    def run(self, *words: str) -> None:
        """Run the tool; raises ``CalledProcessError``."""
        out = self.folder / "out.txt"
        with out.open("w") as log:
            subprocess.run(
                [*self.words, *words], cwd=self.folder, stdout=log, stderr=log, check=True
            )

    def read(self, name: str) -> dict[str, Any]:
        """Read a result by the keys of `COLUMNS`."""
        path = next(self.folder.glob(name))
        return runs(path, path.read_text())[0]


def autotune(asked: Asked) -> Mapping[str, Any]:
    words = ["--url", asked.url, "--model", "m", "--workload", "random:16:16:4"]
    words += ["--endpoint", asked.case.path, "--concurrency", "1", "--tokenizer", "tokenizer"]
    with_length = subprocess.run(  # exit 4: answers are not of the length that was asked for
        [*asked.words, "bench", *words, "--save-result", "r.json"],
        cwd=asked.folder,
        capture_output=True,
    )
    assert with_length.returncode in (0, 4), with_length.stderr
    return asked.read("r.json")


def vllm(asked: Asked) -> Mapping[str, Any]:
    backend = "openai-chat" if asked.case.chat else "openai"
    words = ["bench", "serve", "--backend", backend, "--endpoint", asked.case.path]
    words += ["--base-url", asked.url, "--model", "m", "--tokenizer", "tokenizer"]
    words += ["--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "16"]
    words += ["--num-prompts", "4", "--max-concurrency", "1", "--metric-percentiles", "90,99"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    asked.run(*words, "--save-result", "--result-filename", "r.json")
    return asked.read("r.json")


def sglang(asked: Asked, native: bool = False) -> Mapping[str, Any]:
    backend = "sglang" if native else "sglang-oai-chat" if asked.case.chat else "sglang-oai"
    words = ["--backend", backend, "--base-url", asked.url, "--model", "m"]
    words += ["--tokenizer", str(asked.folder / "tokenizer"), "--dataset-name", "random-ids"]
    words += ["--random-input-len", "16", "--random-output-len", "16", "--random-range-ratio", "1"]
    words += ["--num-prompts", "4", "--max-concurrency", "1", "--warmup-requests", "0"]
    asked.run(*words, "--output-file", "r.jsonl")
    return asked.read("r.jsonl")


def sglang_native(asked: Asked) -> Mapping[str, Any]:
    return {} if asked.case.chat else sglang(asked, native=True)


def aiperf(asked: Asked) -> Mapping[str, Any]:
    words = ["profile", "-m", "m", "--tokenizer", str(asked.folder / "tokenizer")]
    words += ["--url", asked.url, "--streaming", "--concurrency", "1", "--request-count", "4"]
    words += ["--endpoint-type", "chat" if asked.case.chat else "completions", "--ui", "none"]
    words += ["--input-file", "prompts.jsonl", "--custom-dataset-type", "single-turn"]
    asked.run(*words, "--artifact-dir", "r")
    return asked.read("r/profile_export_aiperf.json")


def guidellm(asked: Asked) -> Mapping[str, Any]:
    backend = f"kind=openai_http,target={asked.url},model=m,request_format={asked.case.path}"
    words = ["run", "--backend", backend, "--profile", "kind=concurrent,streams=1"]
    words += ["--constraint", "kind=max_requests,count=4"]
    words += ["--data", f"kind=json_file,path={asked.folder / 'prompts.jsonl'}"]
    words += ["--tokenizer", f"kind=hf_auto,model={asked.folder / 'tokenizer'}"]
    words += ["--output", f"kind=json,path={asked.folder / 'r.json'}", "--disable-console"]
    asked.run(*words)
    return asked.read("r.json")


def evalscope(asked: Asked) -> Mapping[str, Any]:
    words = ["perf", "--api", "openai", "--url", asked.url + asked.case.path, "--model", "m"]
    words += ["--stream", "--dataset", "line_by_line", "--dataset-path", "prompts.txt"]
    words += ["--number", "4", "--parallel", "1", "--max-tokens", "32"]
    words += ["--tokenizer-path", str(asked.folder / "tokenizer"), "--outputs-dir", "r"]
    asked.run(*words)
    summary = json.loads(next(asked.folder.rglob("benchmark_summary.json")).read_text())
    listed = json.loads(next(asked.folder.rglob("benchmark_percentile.json")).read_text())
    percentiles = {row["Percentiles"]: row for row in listed}
    return {
        "mean_ttft_ms": summary["Avg TTFT (ms)"],
        "median_ttft_ms": percentiles["50%"]["TTFT (ms)"],
        "p90_ttft_ms": percentiles["90%"]["TTFT (ms)"],
        "mean_tpot_ms": summary["Avg TPOT (ms)"],
        "mean_itl_ms": summary["Avg ITL (ms)"],
        "median_itl_ms": percentiles["50%"]["ITL (ms)"],
        "mean_e2el_ms": summary["Avg Latency (s)"] * 1e3,
        "output_throughput": summary["Output Throughput (tok/s)"],
    }


def llama_benchy(asked: Asked) -> Mapping[str, Any]:
    """Return its time to the first response, ``ttfr``, and its ``tg``, which leaves out the time to
    the first token; it knows chat alone."""
    words = ["--base-url", f"{asked.url}/v1", "--model", "m", "--tokenizer", "tokenizer"]
    words += ["--pp", "16", "--tg", "32", "--runs", "4", "--latency-mode", "none"]
    words += ["--skip-coherence", "--book-url", f"{asked.url}/book", "--format", "json"]
    asked.run(*words, "--save-result", "r.json")
    (found,) = json.loads((asked.folder / "r.json").read_text())["benchmarks"]
    means = {name: value["mean"] for name, value in found.items() if isinstance(value, dict)}
    return {"mean_ttft_ms": means["ttfr"], "output_throughput": means["tg_throughput"]}


TOOLS: dict[str, Callable[[Asked], Mapping[str, Any]]] = {
    "autotune": autotune,
    "vllm": vllm,
    "sglang": sglang,
    "sglang-native": sglang_native,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "evalscope": evalscope,
    "llama-benchy": llama_benchy,
}


def write_files(folder: Path) -> None:
    """Write a tokenizer with a token for each word, and four prompts of 16 words."""
    words = [*WORDS, *(f"w{number}" for number in range(500))]
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<end>", *words])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": word, "special": True, **special}
        for number, word in enumerate(["<unk>", "<end>"])
    ]
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    none = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    split = {"type": "WhitespaceSplit"}
    tokenizer = {"version": "1.0", **none, "added_tokens": added, "pre_tokenizer": split}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "<end>",
        "model_max_length": 8192,
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer").mkdir()
    for name, content in (
        ("tokenizer.json", {**tokenizer, "model": model}),
        ("tokenizer_config.json", config),
    ):
        (folder / "tokenizer" / name).write_text(json.dumps(content))
    prompts = [" ".join(f"w{20 * i + j}" for j in range(16)) for i in range(4)]
    rows = [{"text": text, "prompt": text, "output_tokens_count": 32} for text in prompts]
    (folder / "prompts.txt").write_text("".join(f"{text}\n" for text in prompts))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(name: str, case: str, figures: Mapping[str, Any]) -> str:
    """Format a line of the table."""
    cells = [figures.get(key) for key in COLUMNS.values()]
    shown = [
        "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
        for value in cells
    ]
    return f"| {name} | {case} | {' | '.join(shown)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tools", nargs="*", metavar="NAME=COMMAND")
    given = [text.partition("=") for text in parser.parse_args().tools]
    tools = [("autotune", f"{sys.executable} -m autotune")] + [(n, c) for n, _, c in given]
    print(f"| tool | case | {' | '.join(COLUMNS)} |\n|---|---|{'--:|' * len(COLUMNS)}")
    for case in CASES:
        print(row("true", case.name, truth(case)), flush=True)
        for name, command in tools:
            with tempfile.TemporaryDirectory() as folder, server(case) as url:
                write_files(Path(folder))
                asked = Asked(shlex.split(command), url, case, Path(folder))
                try:
                    figures = TOOLS[name.partition("@")[0]](asked)
                except (subprocess.CalledProcessError, StopIteration) as error:
                    last = (Path(folder) / "out.txt").read_text().splitlines()[-3:]
                    print(f"{name}: {error}: {last}", file=sys.stderr)
                    continue
                if figures:
                    print(row(name, case.name, figures), flush=True)


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    main()
