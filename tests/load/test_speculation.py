"""The acceptance of drafted tokens, by the metrics of the engines."""

import pytest
from pydantic import ValidationError

from autotune.engines.library import Library
from autotune.engines.serving import DraftMetrics
from autotune.load.client.target import Target
from autotune.load.prefix_cache import DraftReader, DraftUse, acceptance, drafts_of_page
from autotune.load.server_client import ServerClient
from tests.load.server import Call, Server

ENGINES = Library().engines
VLLM = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 120.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 80.0
"""
SGLANG = """sglang:spec_accept_length{dp_rank="0"} 2.5
sglang:spec_accept_length{dp_rank="1"} 2.3
sglang:spec_accept_length{dp_rank="2"} 0.0
sglang:spec_accept_rate{dp_rank="0"} 0.62
sglang:spec_accept_rate{dp_rank="1"} 0.58
sglang:spec_accept_rate{dp_rank="2"} 0.0
"""
# Three requests of 100 tokens in 120 verified drafts of three tokens each.
SGLANG_COUNTS = """sglang:spec_verify_calls_total{engine_type="unified"} 120.0
sglang:generation_tokens_total{is_streaming="true"} 200.0
sglang:generation_tokens_total{is_streaming="false"} 100.0
sglang:num_requests_total{is_streaming="true"} 2.0
sglang:num_requests_total{is_streaming="false"} 1.0
sglang:spec_num_draft_tokens{dp_rank="0"} 4.0
sglang:spec_num_draft_tokens{dp_rank="1"} 0.0
"""


def read(text: str, engine: str, version: str | None = None) -> DraftUse | None:
    async def page(call: Call) -> None:
        data = text.encode()
        await call.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))

    with Server(page) as server, ServerClient(Target.parse(server.url)) as client:
        return DraftReader(client, [ENGINES[engine]], version)()


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


@pytest.mark.parametrize(
    ("version", "rate"),
    [
        ("0.5.3", None),
        ("0.5.4", 100 * 1.4 / 3),  # 2.4 of 4 verified tokens per step, one of which is not drafted
        ("0.5.10", 100 * 1.4 / 3),
        ("0.5.11", 60),
        ("0.5.12.post1", 60),
        (None, None),
    ],
)
def test_gauges_are_means_of_the_ranks_that_drafted_whatever_was_before(
    version: str | None, rate: float | None
):
    use = read(SGLANG, "sglang", version)
    assert use is not None
    told = acceptance([DraftUse.between(use, use)])
    assert told["spec_decode_acceptance_length"] == pytest.approx(2.4)
    assert told.get("spec_decode_acceptance_rate") == (rate and pytest.approx(rate))


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23", None])
def test_counters_of_requests_give_what_was_accepted_beside_first_tokens_and_steps(
    version: str | None,
):
    use = read(SGLANG + SGLANG_COUNTS, "sglang", version)
    assert use == DraftUse(120, 360, 300 - 3 - 120)
    # A short load before it ended before the engine told how many tokens it drafts.
    text = (
        SGLANG_COUNTS.replace("} 120.0", "} 20.0")
        .replace("} 200.0", "} 0.0")
        .replace("} 2.0", "} 0.0")
    )
    before = read(text.replace("} 4.0", "} 0.0"), "sglang", version)
    load = DraftUse.between(before, use)
    assert load is not None
    assert (load.drafts, load.drafted, load.accepted) == (100, 300, 200 - 2 - 100)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_an_engine_that_drafts_nothing_tells_nothing(engine: str):
    assert read("up 1\n", engine) is None
    assert acceptance([None, DraftUse.between(None, None)]) == {}


def test_of_a_server_started_anew_nothing_is_told():
    assert DraftUse.between(DraftUse(50, 100, 80), DraftUse(10, 20, 15)) is None
    assert DraftUse.between(DraftUse(50, 100, 80), DraftUse(50, 100, 80)) is None


def test_idle_gauges_tell_nothing():
    idle = {"sglang:spec_accept_length": [0.0, 0.0], "sglang:spec_accept_rate": [0.0, 0.0]}
    assert [
        drafts_of_page(metrics, idle) for metrics in ENGINES["sglang"].serving.draft_metrics
    ] == [None] * 4


def test_gauges_of_steps_that_accepted_nothing_tell_a_rate_of_0():
    use = read("sglang:spec_accept_length 1.0\nsglang:spec_accept_rate 0.0\n", "sglang", "0.5.12")
    assert acceptance([use]) == {
        "spec_decode_acceptance_rate": 0,
        "spec_decode_acceptance_length": 1,
    }


def test_a_card_gives_counters_or_gauges():
    with pytest.raises(ValidationError, match="either counters, or requests, or gauges"):
        DraftMetrics(source="none")
