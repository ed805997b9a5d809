"""A server that refuses a part of our requests is loaded without it, and the result says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.load import LoadOptions, measure
from autotune.load.client.target import Target
from autotune.load.prompts import NOTHING_REFUSED
from autotune.load.server_client import ServerClient
from autotune.load.workloads import load_workload
from tests.load.server import Server
from tests.load.strict_server import KNOWN, REFUSALS, strict
from tests.product.cli import autotune, new_home

WORKLOAD = load_workload("random:12:8:6")


@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize("kind", REFUSALS)
def test_what_is_refused_is_left_out_and_nothing_else(kind: str, warm_up: bool) -> None:
    with Server(strict(kind)) as server:
        measurement = measure(server.url, "m", WORKLOAD, 1, LoadOptions(warm_up=warm_up))
    assert measurement.failure == ""
    assert measurement.invalid == ""
    assert measurement.refused.fields == ("ignore_eos",)
    assert measurement.refused.ids
    assert measurement.metrics["completed"] == 6
    assert measurement.metrics["total_output_tokens"] == 6 * 3
    answered = [call.body for call in server.posts if call.body.get("max_tokens") == 8][-6:]
    assert all(body["temperature"] == 0 and body["stream"] for body in answered)


def test_several_fields_are_found_one_by_one() -> None:
    """And a server that then tells no counts is invalid for that."""
    few = KNOWN - {"temperature", "stream_options"}
    with Server(strict("openai", known=few)) as server:
        measurement = measure(server.url, "m", WORKLOAD, 1, LoadOptions())
    assert set(measurement.refused.fields) == {"ignore_eos", "temperature", "stream_options"}
    assert measurement.failure == ""


@pytest.mark.parametrize(
    "words",
    [
        "ignore_eos must be false while min_tokens is set",
        "the model m does not exist",
        "Unexpected fields in the request: {'model'}",
        "prompt must be shorter than 100 strings",
        "",
    ],
)
def test_other_refusals_take_nothing_away(words: str) -> None:
    assert NOTHING_REFUSED.with_refusal(words) == NOTHING_REFUSED


@pytest.mark.parametrize("listing", [200, 500])
def test_bench_of_a_server_that_lists_no_model(tmp_path: Path, listing: int) -> None:
    load = ["--workload", "random:12:8:6", "--repeats", "2", "--save-result", "r.json"]
    with Server(strict("transformers", listing)) as server:
        done = autotune("bench", "--url", server.url, "--model", "m", *load, home=tmp_path / "h")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (12, 36)
    assert result["notes"] == [
        "sent without ignore_eos, which the server refuses, so its answers may end early: rates "
        "are those of shorter answers",
        "sent as text, as the server refuses token ids: their lengths are the server's count",
    ]
    assert f"NOTE: {result['notes'][0]}\n" in done.out


def test_token_ids_that_are_asked_for_stay_token_ids(tmp_path: Path) -> None:
    load = ["--workload", "random:12:8:6", "--prompts", "ids"]
    with Server(strict("transformers")) as server:
        done = autotune("bench", "--url", server.url, "--model", "m", *load, home=tmp_path / "h")
    assert done.code == 4
    assert "prompt must be a string." in done.err


def test_a_study_of_such_a_server_says_so_in_its_report(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    question = ["run", "--model", "openai/gpt-oss-20b", "--hw", "h200", "--study", "s"]
    with Server(strict("fastapi")) as server:
        where = ["--on", f"external:{server.url}", "--workload", "random:12:8:6", "--launches", "2"]
        done = autotune(*question, *where, home=home)
    assert done.code == 0, done.err
    note = "which the server refuses, so its answers may end early"
    assert f"requests are sent without ignore_eos, {note}" in done.err.replace("\n", " ")
    assert note in autotune("report", "s", home=home).out.replace("\n", " ")


def test_a_model_that_no_list_names_is_asked_for() -> None:
    with Server(strict("transformers")) as server, ServerClient(Target.parse(server.url)) as client:
        assert client.served_as(["m", "Org/M"]) == ("m", "m")
        with pytest.raises(BadInput, match="name the model with --model"):
            client.model("")
