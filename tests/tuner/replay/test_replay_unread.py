"""A replay of simulated launches credits no setting that the simulated node does not read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.tuner.study.recommendation import Recommendation
from tests.product.cli import new_home
from tests.tuner.replay.bundles import QUESTION, bundled, done, members_of, packed

CHOSEN, OWN = "FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE"
"""The kernel that the user of this study chose, and the one that the engine takes by itself."""
SPACE = f"""narrow:
  vllm:
    search:
      attention_backend: [{CHOSEN}]
      tensor_parallel: [2, 8]
      data_parallel: [1, 4]
      speculative_tokens: [0, 3]
      max_running_requests: [512, 1024]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = new_home(tmp_path_factory.mktemp("made"))
    (there / "space.yaml").write_text(SPACE)
    done(replace(QUESTION, space=there / "space.yaml", engines=["vllm"], slos=()), there)
    return there


def recommended(outcome: Recommendation) -> object:
    assert outcome.recommended is not None
    return outcome.recommended.config["attention_backend"]


def replayed(file: Path, folder: Path) -> object:
    folder.mkdir()
    asked = replace(
        QUESTION, model="", hardware="", space=None, slos=(), allow=(), launches=30, seed=0
    )
    return recommended(done(replace(asked, on=f"replay:{file}"), new_home(folder)))


def test_a_bundle_of_before_and_a_table_of_its_launches_credit_only_what_was_seen(
    home: Path, tmp_path: Path
) -> None:
    study = home / "studies" / "s"
    assert (
        json.loads((study / "recommendation.json").read_text())["config"]["attention_backend"]
        == CHOSEN
    )
    members = members_of(bundled(home))
    now, before = tmp_path / "now.zip", tmp_path / "before.zip"
    now.write_bytes(packed(members))
    spec = members["study.yaml"].decode()
    assert "keeps_unread: true\n" in spec
    before.write_bytes(
        packed(members | {"study.yaml": spec.replace("keeps_unread: true\n", "").encode()})
    )
    assert replayed(now, tmp_path / "n") == CHOSEN, "it was the user's choice"
    assert replayed(before, tmp_path / "b") == OWN
    asked = replace(QUESTION, space=None, slos=(), allow=(), on=f"replay:{study / 'results.jsonl'}")
    assert recommended(done(asked, new_home(tmp_path))) == OWN
