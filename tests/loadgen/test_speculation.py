"""The acceptance of drafted tokens, by the metrics of the engines."""

import pytest
from pydantic import ValidationError

from autotune.loadgen.client.target import Target
from autotune.loadgen.server_client import ServerClient
from autotune.loadgen.speculation import DraftReader, DraftUse, acceptance, of_page
from autotune.space.library import Library
from autotune.space.serving import DraftMetrics
from tests.loadgen.server import Call, Server

ENGINES = Library().engines
VLLM = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 120.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 80.0
"""
SGLANG = 'sglang:spec_accept_length{tp_rank="0"} 2.4\nsglang:spec_accept_rate{tp_rank="0"} 0.6\n'


def read(text: str, engine: str) -> DraftUse | None:
    async def page(call: Call) -> None:
        data = text.encode()
        await call.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))

    with Server(page) as server, ServerClient(Target.parse(server.url)) as client:
        return DraftReader(client, [ENGINES[engine]])()


def test_counters_are_those_of_the_load():
    use = read(VLLM, "vllm")
    assert use == DraftUse(100, 300, 120)
    load = DraftUse.between(DraftUse(40, 120, 30), use)
    assert acceptance([load]) == {
        "spec_decode_acceptance_rate": pytest.approx(100 * 90 / 180),
        "spec_decode_acceptance_length": pytest.approx(1 + 90 / 60),
    }
    # Another load that drafted as much and kept nothing; and one that told nothing.
    both = acceptance([load, DraftUse(60, 180, 0), None])
    assert both["spec_decode_acceptance_rate"] == pytest.approx(25)


def test_gauges_are_of_the_latest_steps_whatever_was_before():
    use = read(SGLANG, "sglang")
    assert use is not None
    told = acceptance([DraftUse.between(use, use)])
    # 2.4 of 4 verified tokens per step, one of which is not drafted.
    assert told["spec_decode_acceptance_length"] == pytest.approx(2.4)
    assert told["spec_decode_acceptance_rate"] == pytest.approx(100 * 1.4 / 3)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_an_engine_that_drafts_nothing_tells_nothing(engine: str):
    assert read("up 1\n", engine) is None
    assert acceptance([None, DraftUse.between(None, None)]) == {}


def test_of_a_server_started_anew_nothing_is_told():
    assert DraftUse.between(DraftUse(50, 100, 80), DraftUse(10, 20, 15)) is None
    assert DraftUse.between(DraftUse(50, 100, 80), DraftUse(50, 100, 80)) is None


def test_idle_gauges_tell_nothing():
    (metrics,) = ENGINES["sglang"].serving.draft_metrics
    assert of_page(metrics, {"sglang:spec_accept_length": 0.0, "sglang:spec_accept_rate": 0.0}) is None


def test_a_card_gives_counters_or_gauges():
    with pytest.raises(ValidationError, match="either counters or gauges"):
        DraftMetrics(source="none")
