"""Bundles with a fault in them: refused, or the same study; never a traceback.

`AUTOTUNE_MUTATIONS=1000 .venv/bin/python -m pytest tests/tuner/replay/test_bundle_mutations.py` tries
1,000 of each kind.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from autotune.base.errors import BadInput
from autotune.tuner.backends import EvaluationSetup
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import no_effect_by_rule, prepare
from autotune.tuner.recommend import recommend
from autotune.tuner.replay.bundle import read_bundle
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Launch
from tests.tuner.replay.bundles import bundled, members_of, packed, study_in

COUNT = int(os.environ.get("AUTOTUNE_MUTATIONS", "40"))
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    "",
    "../x",
    [],
    {},
    "9" * 5000,
    ["a"],
    {"a": 1},
]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return bundled(study_in(tmp_path_factory.mktemp("made")))


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(4, len(content))]


def flipped(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(2, len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def moved(draw: random.Random, content: bytes) -> bytes:
    start, size = draw.randrange(2, len(content)), draw.randrange(1, 500)
    piece, at = content[start : start + size], draw.randrange(2, len(content))
    return content[:at] + piece + content[at + draw.choice((0, size)) :]


@pytest.mark.parametrize("change", [cut, flipped, moved])
def test_a_damaged_bundle_is_refused_or_the_same(
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[random.Random, bytes], bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = read_bundle(Path("b"), content)
    for seed in range(COUNT):
        try:
            read = read_bundle(Path("b"), change(random.Random(seed), content))
        except BadInput:
            continue
        assert read == whole, seed
    assert list(tmp_path.iterdir()) == []


def altered(draw: random.Random, value: Any) -> Any:
    """A document with one value of it, at any depth, replaced, or one key left out."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        if draw.random() < 0.1:
            return {key: one for key, one in value.items() if key != name}
        return {**value, name: altered(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], altered(draw, value[at]), *value[at + 1 :]]
    return draw.choice(ODD)


def forged(draw: random.Random, members: dict[str, bytes]) -> bytes:
    """A bundle of which one figure was changed by somebody who knows how to seal it."""
    name = draw.choice(["study.yaml", "results.jsonl", "candidates.json", "recommendation.json"])
    text = members[name].decode()
    if name == "study.yaml":
        text = yaml.safe_dump(altered(draw, yaml.safe_load(text)))
    elif name == "results.jsonl":
        rows = text.splitlines()
        at = draw.randrange(len(rows))
        rows[at] = json.dumps(altered(draw, json.loads(rows[at])))
        text = "\n".join(rows)
    else:
        text = json.dumps(altered(draw, json.loads(text)))
    return packed({**members, name: text.encode()})


def judged(path: Path, *, explained: bool) -> None:
    """Replay a bundle from its specification to its recommendation, as `autotune run` does but for
    its files."""
    spec = build_spec(RunOptions(on=f"replay:{path}", study="r"))
    library = library_of(spec)
    prepared = prepare(spec, library)
    evaluate = EvaluationSetup(spec, library, path).evaluator()
    with TemporaryDirectory() as folder:
        study = Study(
            Path(folder), spec, prepared.candidates, prepared.command_of, recorded=prepared.recorded
        )
        with closing(study):
            while (trial := study.ask()) is not None:
                study.tell(Launch(trial, evaluate(trial)))
            told = study.explanation(partial(no_effect_by_rule, prepared)) if explained else None
            recommend(
                spec, prepared.candidates, study.launches, prepared.excluded, "", told
            ).to_json()


def test_a_forged_bundle_is_refused_or_judged(content: bytes, tmp_path: Path) -> None:
    path, members = tmp_path / "b", members_of(content)
    for seed in range(COUNT):
        path.write_bytes(forged(random.Random(seed), members))
        try:
            judged(path, explained=seed % 20 == 0)
        except BadInput:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
