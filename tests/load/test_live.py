"""The traffic of servers, read from their metrics pages: lengths, arrivals, what is shared, and what
is no traffic."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base import BadInput, silent
from autotune.base.arrays import Floats, Ints
from autotune.engines import Library
from autotune.load.live import bursts, law, read_traffic, workload_of
from autotune.load.prefix_cache import expected_hit_rate
from autotune.load.tokenizers import Approximate
from autotune.load.workloads import Workload, load_workload
from autotune.load.workloads.lengths import TableLengths
from autotune.tuner.study.home import library_for
from tests.product.cli import here

PAGES = Path(__file__).parent / "pages"
PAIR = f"metrics:{PAGES}/vllm-0.32.0-1.prom,{PAGES}/vllm-0.32.0-2.prom"
"""Pages of a vLLM 0.32.0 on a CPU, 85 s apart, between which it was sent 300 requests: prompts of
512 common tokens and a lognormal number of own ones, and lognormal answers."""
ONE_TWO_FIVE = [a * 10**power for power in range(4) for a in (1, 2, 5)]
SGLANG = Library().engine("sglang").serving.traffic_metrics[0].bounds


def counts_of(lengths: Floats, bounds: list[float]) -> dict[float, float]:
    bins = [0.5, *(bound + 0.5 for bound in bounds), np.inf]
    counts = np.histogram(lengths, bins=bins)[0].tolist()
    return dict(zip([*bounds, np.inf], counts, strict=True))


def drawn(table: dict[float, float], prompts: int = 1000) -> Ints:
    lengths = TableLengths(
        kind="quantiles", input_quantiles=table, output_quantiles=table, total_limit=10**7
    )
    return lengths.draw(prompts, np.random.default_rng(0), Approximate()).input_tokens


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=9).filter(any), st.floats(0.02, 0.98))
def test_lengths_lie_in_their_buckets_and_have_the_mean(counts: list[int], place: float) -> None:
    bounds = [float(bound) for bound in ONE_TWO_FIVE[3 : 3 + len(counts)]]
    shares = np.array(counts) / sum(counts)
    edges = np.array([0, *bounds])
    mean = float(shares @ (edges[:-1] + 1 + place * (np.diff(edges) - 1)))
    lengths = drawn(law(dict(zip(bounds, map(float, counts), strict=True)), mean), 2000)
    found, _ = np.histogram(lengths, bins=[0.5, *(bound + 0.5 for bound in bounds)])
    assert np.abs(found / 2000 - shares).max() <= 2 / 2000
    assert lengths.mean() == pytest.approx(mean, rel=0.01, abs=0.6)


@pytest.mark.parametrize("bounds", [ONE_TWO_FIVE, SGLANG])
@pytest.mark.parametrize(("median", "spread"), [(500, 1.0), (150, 0.7), (2000, 0.5), (800, 0.4)])
def test_lognormal_lengths_are_read_back(median: int, spread: float, bounds: list[float]) -> None:
    sent = np.random.default_rng(7).lognormal(np.log(median), spread, 3000)
    sent = np.clip(np.rint(sent), 1, 8192)
    within = [bound for bound in bounds if bound <= 8192]
    lengths = drawn(law(counts_of(sent, within), float(sent.mean()), 8192))
    assert lengths.mean() == pytest.approx(sent.mean(), rel=0.01)
    assert np.quantile(lengths, 0.95) == pytest.approx(np.quantile(sent, 0.95), rel=0.05)


def pair(window: str | None = "85s", name: str = PAIR, *, searched: bool = False) -> Workload:
    readings = read_traffic(name, window, Path("/nowhere"), silent)
    return workload_of(name, readings, searched=searched)


def test_a_real_servers_pages_give_back_what_it_was_sent() -> None:
    workload = pair()
    requests = workload.draw(0, 0)
    # What the client of that run counted.
    assert requests.input_tokens.mean() == pytest.approx(1083.1, rel=0.01)
    assert np.quantile(requests.input_tokens, 0.95) == pytest.approx(2127, rel=0.05)
    assert requests.output_tokens.mean() == pytest.approx(24.75, rel=0.01)
    assert np.quantile(requests.output_tokens, 0.95) == pytest.approx(50, rel=0.05)
    assert expected_hit_rate(requests) == pytest.approx(0.4711, rel=0.01)
    point = workload.points[0]
    assert (point.prompts, point.arrival.request_rate, point.arrival.burstiness) == (300, 3.529, 1)
    for part in (
        "300 requests of vLLM ended in 85 s",
        "Poisson assumed: 2 readings tell no bursts",
        "47.1% of the prompt tokens came from the prefix cache",
        "not in the counters: which answer belongs to which prompt",
    ):
        assert part in workload.origin


def test_a_load_search_sends_all_prompts_at_once() -> None:
    point = pair(searched=True).points[0]
    assert (point.arrival.kind, point.prompts) == ("all_at_once", 1000)


def test_a_study_has_the_workload_itself() -> None:
    workload = pair()
    document = workload.model_dump(mode="json", exclude_defaults=True)
    library = library_for(None, traffic=yaml.safe_load(yaml.safe_dump({workload.name: document})))
    assert load_workload(workload.name, library) == workload
    with pytest.raises(BadInput, match="unknown workload"):
        load_workload(workload.name)


def second(tmp_path: Path, old: str, new: str) -> str:
    """The pair with another second page."""
    (path := tmp_path / "b.prom").write_text(
        (PAGES / "vllm-0.32.0-2.prom").read_text().replace(old, new)
    )
    return f"metrics:{PAGES}/vllm-0.32.0-1.prom,{path}"


@pytest.mark.parametrize(
    ("name", "window", "message"),
    [
        (PAIR, None, "and the time between them, e.g. --window 10m"),
        (PAIR, "85", "write a time above 0, such as 30s, 10m or 1h"),
        (f"{PAIR},{PAGES}/vllm-0.32.0-1.prom", "1h", "write two pages for each server"),
        (f"metrics:{PAGES}", "1h", "cannot be read"),
        ("metrics:/nowhere,/nothing", "1h", "cannot be read"),
        (f"metrics:{__file__},{__file__}", "1h", "no request of an engine ended"),
        ("live:", "1s", "URL '' is invalid"),
        ("live:http://127.0.0.1:9", "1s", "no metrics page; vLLM without"),
    ],
)
def test_bad_input_says_what_is_right(name: str, window: str | None, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        pair(window, name)


def test_pages_of_no_traffic_or_of_a_restart_are_refused() -> None:
    first, last = PAIR.removeprefix("metrics:").split(",")
    with pytest.raises(BadInput, match=r"grew by -300 in 85 s.* a server was restarted"):
        pair(name=f"metrics:{last},{first}")
    with pytest.raises(BadInput, match="grew by 0 in 85 s, and 20 are needed: a longer --window"):
        pair(name=f"metrics:{first},{first}")


def test_cancelled_requests_are_said(tmp_path: Path) -> None:
    began = 'time_to_first_token_seconds_count{engine="0",model_name="tiny"}'
    name = second(tmp_path, f"{began} 568.0", f"{began} 600.0")
    assert "32 requests were cancelled" in pair(name=name).origin


def test_answers_of_one_request_are_said(tmp_path: Path) -> None:
    asked = 'params_n_count{engine="0",model_name="tiny"}'
    name = second(tmp_path, f"{asked} 564.0", f"{asked} 464.0")
    assert "300 answers were asked for, several at a time" in pair(name=name).origin


def test_a_page_of_means_only_has_a_stated_law(tmp_path: Path) -> None:
    rows = [
        'sglang:num_requests_total{model_name="m"} %d',
        'sglang:prompt_tokens_total{model_name="m"} %d',
        'sglang:generation_tokens_total{model_name="m"} %d',
        'sglang:num_paused_reqs{model_name="m"} 0',
    ]
    for number, values in enumerate([(0, 0, 0), (400, 120_000, 8_000)]):
        page = "\n".join(row % value for row, value in zip(rows, values, strict=False))
        (tmp_path / f"{600 * number}.prom").write_text(f"{page}\n{rows[-1]}\n")
    workload = pair(None, f"metrics:{tmp_path}")
    requests = workload.draw(0, 0)
    assert requests.input_tokens.mean() == pytest.approx(300, rel=0.01)
    assert requests.output_tokens.mean() == pytest.approx(20, rel=0.02)
    assert (
        "only a mean of prompt tokens is counted: they spread up to 4 times it" in workload.origin
    )
    assert "--collect-tokens-histogram" in workload.origin


def test_two_servers_are_added_up() -> None:
    workload = pair(name=f"{PAIR},{PAIR.removeprefix('metrics:')}")
    assert "600 requests of vLLM ended in 85 s" in workload.origin
    assert workload.points[0].arrival.request_rate == 7.059


class Pages(ThreadingHTTPServer):
    """A server of metrics pages, one after the other; the last one stays."""

    daemon_threads = True

    def __init__(self, pages: list[str], on_read: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(("127.0.0.1", 0), _PagesHandler)
        self.pages, self.on_read = pages, on_read
        self.asked: list[str] = []
        self.reads = 0


class _PagesHandler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        text = '{"data": [{"id": "m", "max_model_len": 8192}]}' if "models" in self.path else ""
        if self.path == "/metrics":
            text = self.server.pages[min(self.server.reads, len(self.server.pages) - 1)]
            self.server.reads += 1
            self.server.on_read(self.server.reads)
        self.send_response(200 if text else 404)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def served(server: Pages) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


FIRST, LAST = ((PAGES / f"vllm-0.32.0-{number}.prom").read_text() for number in (1, 2))


def test_a_server_is_watched_with_get_alone_and_ctrl_c_takes_what_there_is(tmp_path: Path) -> None:
    def interrupt(reads: int) -> None:
        if reads == 4:
            os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    with served(server := Pages([FIRST, FIRST, FIRST, LAST], interrupt)) as url:
        readings = read_traffic(f"live:{url}", "59s", tmp_path / "kept", said.append)
    assert set(server.asked) <= {"/metrics", "/prometheus/metrics", "/v1/models"}
    assert any(line.startswith("stopped: ") for line in said)
    workload = workload_of("now", readings)
    assert "300 requests of vLLM ended" in workload.origin
    assert workload.longest_request == 5000 + 200
    (kept,) = (tmp_path / "kept").iterdir()
    again = read_traffic(f"metrics:{kept}", None, tmp_path, silent)
    assert workload_of("now", again).points[0].lengths == workload.points[0].lengths


def test_pages_that_take_turns_are_refused(tmp_path: Path) -> None:
    with served(Pages([FIRST, FIRST, LAST, FIRST, LAST])) as url:
        readings = read_traffic(f"live:{url}", "1s", tmp_path / "kept", silent)
    with pytest.raises(BadInput, match="servers behind one address take turns: name each"):
        workload_of("now", readings)


@pytest.mark.parametrize("shape", [0.2, 1.0, 8.0])
def test_bursts_are_found(shape: float) -> None:
    at_s = np.cumsum(np.random.default_rng(1).gamma(shape, 1 / (20 * shape), 20 * 300))
    arrived = np.searchsorted(at_s, np.arange(0.0, 240.0, 2.0)).astype(float)
    found, how = bursts(arrived, 238.0)
    assert found == pytest.approx(shape, rel=0.35), how


def test_simulate_reads_it(tmp_path: Path) -> None:
    done = here(
        *("simulate", "--workload", PAIR, "--window", "85s", "--hw", "h200", "--gpus", "1"),
        *("--json", "--", "vllm", "serve", "Qwen/Qwen3-8B"),
        home=tmp_path,
    )
    assert done.code == 0, done.err
    assert done.json["total_input_tokens"] == pytest.approx(300 * 1083, rel=0.01)
