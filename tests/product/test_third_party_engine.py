"""An engine that autotune does not know, tuned for real: llama-server, out of a package of somebody
else's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.failure import Failure
from autotune.engines.library import load
from autotune.engines.schema import EngineCard
from autotune.servers.logs import known_failure, patterns_of, unknown_exit
from tests.product.cli import Finished, autotune, rows
from tests.product.llama import EXAMPLE, LIMIT_S, environment, make_model
from tests.product.test_real_path import nothing_is_left

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = "small-shared-prefix"
QUESTION = ["--hw", "local", "--space", str(EXAMPLE / "space"), "--workload", WORKLOAD]


@dataclass(frozen=True)
class Machine:
    """Where llama-server is on the PATH, and its package beside autotune's."""

    model: Path
    program: Path
    home: Path

    def ask(self, *arguments: str) -> Finished:
        return autotune(*arguments, "--home", str(self.home), home=self.home, cwd=self.model.parent)


@pytest.fixture(scope="module")
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """The example installed as its README says, but that its package goes into a folder of its
    own."""
    folder = tmp_path_factory.mktemp("llama")
    python = environment(request.config.cache.mkdir("llama_server"))
    model = make_model(python, folder / "tiny.gguf", "--layers", "2")
    site = folder / "site"
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        site,
        EXAMPLE,
    ]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{EXAMPLE} cannot be built: {done.stderr.strip()[-300:]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, [ROOT, site])))
        patch.setenv("PATH", str(python.parent), prepend=os.pathsep)
        yield Machine(model, python.with_name("llama-server"), folder / "home")


def tuned(machine: Machine, launches: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The recommendation of a study of two knobs, and its launches."""
    # Without the cache, so that the gain is the cache's; one thread, as two would wait for each
    # other by spinning.
    baseline = "llama-server --model ./tiny.gguf --parallel 4 --threads 1 --no-cache-prompt"
    study = [
        "--study",
        f"s{launches}",
        "--launches",
        f"{launches}",
        "--set",
        "threads=1",
        "--baseline",
        baseline,
    ]
    done = machine.ask("run", "--model", "./tiny.gguf", *QUESTION, "--on", "process", *study)
    assert done.code == 0, done.err
    assert nothing_is_left(machine.home, 0) == []
    found = json.loads(
        (machine.home / "studies" / f"s{launches}" / "recommendation.json").read_text()
    )
    return found, rows(machine.home, f"s{launches}")


@pytest.fixture(scope="module")
def measured(machine: Machine) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The study ``s6``."""
    return tuned(machine, 6)


def test_the_prompt_cache_is_tried_and_shown(
    machine: Machine, measured: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    """Whether it pays is left open: beside other tests nothing is measured."""
    found, every = measured
    assert (found["engine"], found["evidence"]) == ("llama_server", "measured")
    # On a busy machine the client may not keep up; that launch says so and is made again, at most
    # once.
    launches = [row for row in every if row["state"] != "invalid"]
    assert {row["state"] for row in launches} == {"complete"}
    if launches == every:
        tried = {
            (row["config"]["max_running_requests"], row["config"]["prefix_caching"])
            for row in launches
        }
        assert tried == {(1, False), (1, True), (4, False), (4, True)}
    for row in launches:
        metrics = row["metrics"][WORKLOAD]
        assert (metrics["completed"], metrics["total_input_tokens"]) == (12, 12 * 600)
        # 525 of 600 tokens are shared by all, and each slot has to compute them once.
        found_in_cache = (12 - row["config"]["max_running_requests"]) * 525 / (12 * 600)
        expected = found_in_cache if row["config"]["prefix_caching"] else 0
        assert metrics["cache_hit_rate"] == pytest.approx(expected, abs=0.06)
    assert "llama_server" in machine.ask("report", "s6").out
    assert found["verdict"] in machine.ask("list").out
    assert (
        "llama-server \\\n  --model ./tiny.gguf" in machine.ask("export", "s6", "--to", "shell").out
    )


@pytest.mark.slow
def test_the_prompt_cache_is_better_for_certain(machine: Machine) -> None:
    """A measurement, which needs the machine for itself."""
    # Four launches of the search leave seven: three rounds of the finals with one finalist against
    # the baseline, and one launch in reserve.
    found, _ = tuned(machine, 11)
    assert found["verdict"] == "better"
    assert found["config"]["prefix_caching"] is True
    assert "--no-cache-prompt" not in found["command"]
    low, high = found["gain_ci95"]
    assert 0 < low < high


def test_what_nobody_knows_of_it_is_said(machine: Machine) -> None:
    shown = autotune(
        "space",
        "show",
        "--model",
        "./tiny.gguf",
        *QUESTION,
        home=machine.home,
        cwd=machine.model.parent,
    )
    assert "4 candidates" in shown.out, shown.err
    checked = autotune("space", "check", "--engine", "llama_server", home=machine.home)
    assert checked.out.endswith("llama_server.yaml: valid\n"), checked.err
    # Its figures lie beside its card, and hold for the CPU that it needs.
    predicted = autotune(
        *("simulate", "--hw", "h200", "--model-id", "deepseek-ai/DeepSeek-V3.2", "--json"),
        *("--", "llama-server", "--model", "x.gguf"),
        home=machine.home,
    )
    assert (
        "this card describes llama-server without a GPU" in predicted.json["failure"]["message"]
    ), predicted.err
    # Where it does not fit, it is left out with the reason, and everything else is as if it were
    # not there.
    both = ["--engine", "vllm", "--engine", "llama_server", "--dry-run"]
    elsewhere = machine.ask("run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "mi300x", *both)
    assert elsewhere.code == 0, elsewhere.err
    assert "llama_server: excluded, this card describes llama-server without a GPU" in elsewhere.out
    assert "vllm: " in elsewhere.out


def test_a_prediction_is_measured_on_the_real_server(
    machine: Machine, measured: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    """Measured launches teach the simulator this CPU; what it says then of other commands is
    measured."""
    baseline = "llama-server --model ./tiny.gguf --parallel 4 --threads 1 --no-cache-prompt"
    question = [
        "run",
        "--model",
        "./tiny.gguf",
        *QUESTION,
        "--set",
        "threads=1",
        "--baseline",
        baseline,
    ]
    simulated = [*question, "--on", "simulator", "--study", "q", "--launches", "6"]
    refused = machine.ask(*simulated)
    assert refused.code == 2
    assert "predictions for a CPU are not calibrated" in refused.err
    assert "--on process" in refused.err
    learned = machine.ask("calibrate", "--study", "s6")
    assert learned.code == 0, learned.err
    done = machine.ask(*simulated)
    assert done.code == 0, done.err
    guess = json.loads((machine.home / "studies" / "q" / "recommendation.json").read_text())
    # 525 of 600 tokens are shared by all prompts.
    assert (guess["evidence"], guess["config"]["prefix_caching"]) == ("simulated", True)
    verified = machine.ask("verify", "q", "--on", "process", "--top", "1", "--launches", "4")
    assert verified.code == 0, verified.err
    assert nothing_is_left(machine.home, 0) == []
    found = json.loads(
        (machine.home / "studies" / "q-verified" / "recommendation.json").read_text()
    )
    assert found["evidence"] == "measured"
    assert [row["role"] for row in found["predictions"]] == ["baseline", "recommended"]
    for row, of in zip(found["predictions"], (guess["baseline"], guess), strict=True):
        predicted, value = row["predicted"], row["measured"]["value"]
        print(f"{row['role']}: predicted {predicted['value']:,.0f}, measured {value:,.0f}")
        assert predicted["value"] == of["objective"]["value"]
        assert predicted["error_percent"] == pytest.approx(100 * (predicted["value"] / value - 1))
        low, high = predicted["interval90"]
        assert low < predicted["value"] < high


class Ended:
    """How a start of the real server ends, as its card explains it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._program, self._log = machine.program, folder / "server.log"
        self._card = load(EXAMPLE / "autotune_llama_server" / "llama_server.yaml", EngineCard)

    def __call__(self, *options: str, address_space_kb: int | None = None) -> Failure:
        limit = f"ulimit -v {address_space_kb}; " if address_space_kb else ""
        command = ["sh", "-c", f'{limit}exec "$0" "$@"', self._program, *options]
        with self._log.open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, timeout=LIMIT_S, check=False)
        assert done.returncode != 0
        return known_failure(self._log, patterns_of(self._card)) or unknown_exit(
            self._log, done.returncode, self._card.title
        )


def test_a_start_that_fails_is_understood(machine: Machine, tmp_path: Path) -> None:
    ended, model = Ended(machine, tmp_path), ["--model", str(machine.model)]
    absent = ended("--model", "nothing.gguf", "--port", "0")
    assert absent.kind == "bad_argument"
    assert "nothing.gguf: No such file or directory" in absent.message
    text = tmp_path / "text.gguf"
    text.write_text("no model at all")
    assert ended("--model", str(text), "--port", "0").kind == "unsupported"
    flag = ended(*model, "--paralel", "4")
    assert flag.kind == "bad_argument"
    assert flag.log_excerpt.endswith("error: unrecognized arguments: --paralel 4")
    assert ended(*model, "--parallel", "many").kind == "bad_argument"
    slots = ended(*model, "--port", "0", "--parallel", "300", "--ctx-size", "300000")
    assert slots.kind == "bad_argument"
    assert slots.log_excerpt.endswith("n_seq_max must be <= 256")
    context = ended(
        *model, "--port", "0", "--threads", "1", "--ctx-size", "2000000", address_space_kb=6_000_000
    )
    assert context.kind == "out_of_memory"
    assert "lower --ctx-size or --parallel" in context.message


def test_a_taken_port_is_understood(machine: Machine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failure = Ended(machine, tmp_path)("--model", str(machine.model), "--port", port)
    assert failure.kind == "port"
    assert f"port {port}" in failure.message
