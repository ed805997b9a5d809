"""The published conformance suite over autotune's own engines, and over a third party's as that
would run it.

After a wanted change of a command: ``python -m tests.engines.test_conformance`` writes the golden
commands again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines.command import Scalar
from autotune.engines.registry import names
from examples.llama_server.conformance import EngineConformance
from tests.engines.settings import MODELS, NODES, OURS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "llama_server"
GOLDEN = Path(__file__).with_name("golden_commands.txt")
"""Commands of all engines under ``# <engine> <version> <model> <node> <case>``."""


def _blocks(text: str) -> dict[str, str]:
    """Map each heading (``# …``) to the text under it."""
    parts = (
        block.partition("\n")
        for block in re.split(r"^(?=# )", text, flags=re.MULTILINE)
        if block.strip()
    )
    return {heading: body.strip() for heading, _, body in parts}


class OurEngine(EngineConformance):
    models = (*MODELS, "deepseek-ai/DeepSeek-R1")
    nodes = NODES
    fewest = 1000
    # What must be set beside a knob to make it active.
    companions = {  # noqa: RUF012
        "moe_all_to_all": {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8},
        "deepep_mode": {"expert_parallel": 8, "moe_all_to_all": "deepep"},
        "enable_eplb": {"expert_parallel": 8},
        "shuffled_kv_cache": {"attention_backend": "ROCM_AITER_FA"},
        "enable_dbo": {"tensor_parallel": 1, "data_parallel": 8},
        "enable_dp_lm_head": {"tensor_parallel": 1, "data_parallel": 8},
        "load_balance_method": {"tensor_parallel": 1, "data_parallel": 8},
        "prefill_delayer": {"tensor_parallel": 1, "data_parallel": 8},
        "moe_dense_tp_size": {"tensor_parallel": 1, "data_parallel": 8},
        "attention_dp_balance": {"tensor_parallel": 1, "data_parallel": 8},
        "attention_dp_batching_wait": {
            "tensor_parallel": 1,
            "data_parallel": 8,
            "attention_dp_balance": True,
        },
        "attention_dp_timeout": {
            "tensor_parallel": 1,
            "data_parallel": 8,
            "attention_dp_balance": True,
        },
        "lm_head_tensor_parallel": {"tensor_parallel": 1, "data_parallel": 8},
        "piecewise_cuda_graph": {"torch_compile": True},
        "boundary_reduction": {"tensor_parallel": 1, "data_parallel": 8},
        "lm_head_all_to_all": {"tensor_parallel": 1, "data_parallel": 8},
        "single_batch_overlap": {"expert_parallel": 8, "moe_all_to_all": "deepep"},
        "waterfill": {"expert_parallel": 8, "moe_all_to_all": "deepep"},
        "relaxed_acceptance": {"speculative_tokens": 1},
        "draft_model": {"speculative_tokens": 1},
        "draft_method": {"speculative_tokens": 1, "draft_model": "some/draft"},
        "draft_schedule": {"speculative_tokens": 1},
        "adaptive_speculation": {"speculative_tokens": 1},
    }

    def test_what_is_tried_beside_the_best_can_be_written_and_read(self) -> None:
        """Of the newest version; the next test has all versions."""
        wanted, written = set[tuple[str, Scalar]](), set[tuple[str, Scalar]]()
        for context in self.contexts():
            if context.version != self.card.newest:
                continue
            for name, knob in self.card.knobs.items():
                entries = [one for one in knob.beside if one.is_for(context.version)]
                values = {value for one in entries for value in one.values if value is not None}
                wanted |= {(name, value) for value in values}
                written |= {(name, v) for v in values if self._comes_back(context, name, v)}
        assert wanted
        assert not wanted - written, wanted - written

    @pytest.mark.e2e
    def test_every_value_of_every_knob_can_be_written_and_read_alone(self) -> None:
        super().test_every_value_of_every_knob_can_be_written_and_read_alone()

    @pytest.mark.e2e
    def test_a_command_says_what_the_configuration_is(self) -> None:
        super().test_a_command_says_what_the_configuration_is()

    def commands(self) -> dict[str, str]:
        """Return heading to command, per version, model and node."""
        commands: dict[str, str] = {}
        for context in self.contexts(suited=True):
            for case, configuration in self.cases(context).items():
                model = context.model.id.rpartition("/")[2]
                heading = (
                    f"# {self.engine} {context.version} {model} {context.hardware.name} {case}"
                )
                commands[heading] = self.kind.command(configuration, context).shell()
        return commands

    def write_golden(self) -> None:
        """Write this engine's commands into the golden file, beside those of others."""
        text = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
        kept = {
            h: t for h, t in _blocks(text).items() if h.split()[1] != self.engine
        } | self.commands()
        ordered = sorted(kept.items(), key=lambda item: item[0].split()[1])
        GOLDEN.write_text(
            "\n".join(f"{heading}\n{text}\n" for heading, text in ordered), encoding="utf-8"
        )

    def test_commands_are_the_golden_ones(self) -> None:
        golden = _blocks(GOLDEN.read_text(encoding="utf-8"))
        golden = {
            heading: text for heading, text in golden.items() if heading.split()[1] == self.engine
        }
        now = self.commands()
        assert set(golden) == set(now), f"headings differ: {sorted(set(golden) ^ set(now))}"
        for heading, text in now.items():
            assert text == golden[heading], f"{heading}\nnow:    {text}\ngolden: {golden[heading]}"

    @pytest.mark.e2e
    def test_defaults_and_good_starts_are_searched_and_the_parser_takes_all_that_is(self) -> None:
        super().test_defaults_and_good_starts_are_searched_and_the_parser_takes_all_that_is()


class TestVLLM(OurEngine):
    engine = "vllm"


class TestSGLang(OurEngine):
    engine = "sglang"


class TestTensorRTLLM(OurEngine):
    engine = "tensorrt_llm"
    fewest = 500


KINDS: tuple[type[OurEngine], ...] = (TestVLLM, TestSGLang, TestTensorRTLLM)


def test_every_engine_of_autotune_s_own_is_in_the_suite() -> None:
    cards = {path.parent.name for path in (ROOT / "search_spaces").glob("*/engine.yaml")}
    assert cards == set(OURS) == {kind.engine for kind in KINDS}
    assert cards <= set(names())


@pytest.mark.e2e
def test_an_engine_of_somebody_else_s_passes_in_its_own_environment(tmp_path: Path) -> None:
    """Installed as an editable package is: its folder on the path, and its entry points beside
    it."""
    about = tmp_path / "autotune_llama_server-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: autotune-llama-server\nVersion: 0.1.0\n"
    )
    (about / "entry_points.txt").write_text(
        "[autotune.engines]\nllama_server = autotune_llama_server:LlamaServer\n"
    )
    paths = os.pathsep.join(map(str, [ROOT, EXAMPLE, tmp_path]))
    own = tmp_path / "pytest.ini"
    own.write_text("")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(own),
            "test_conformance.py",
        ],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    wanted = sum(name.startswith("test_") for name in vars(EngineConformance))
    assert f"{wanted} passed" in done.stdout


if __name__ == "__main__":
    for kind in KINDS:
        kind().write_golden()
