"""What is tried beside the best launched configurations: the card's values, under the study's own
rules."""

from __future__ import annotations

from pathlib import Path

from autotune.engines.command import Configuration, Scalar
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions

EXPERTS = {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8}


def prepared(on: str = "docker", load: str = "random:1000:1000:512", **options: object) -> Prepared:
    asked = RunOptions(
        "MiniMaxAI/MiniMax-M2.5",
        "b200",
        on=on,
        engines=("vllm==0.33.0",),
        workloads=[load],
        **options,  # type: ignore[arg-type]
    )
    spec = build_spec(asked)
    return prepare(spec, library_of(spec), anywhere=True)


def one_of(made: Prepared, **knobs: Scalar) -> Configuration:
    return next(
        item.configuration
        for item in made.candidates.items
        if knobs.items() <= item.configuration.knobs.items()
    )


def changed(made: Prepared, one: Configuration) -> dict[str, set[Scalar]]:
    """Return the values of single changes beside a configuration, by knob."""
    found: dict[str, set[Scalar]] = {}
    near = made.candidates.near([one])
    for item in near.items[len(made.candidates) :]:
        differs = {
            name: value
            for name, value in item.configuration.knobs.items()
            if value != one.knobs[name]
        }
        if len(differs) == 1:
            for name, value in differs.items():
                found.setdefault(name, set()).add(value)
    return found


def test_kernels_are_tried_beside_the_best_on_servers_and_not_where_no_figure_is_about_them() -> (
    None
):
    real = prepared()
    found = changed(real, one_of(real, **EXPERTS))
    assert "flashinfer_nvlink_one_sided" in found["moe_all_to_all"]
    assert "FLASH_ATTN" in found["attention_backend"]
    simulated = prepared("simulator")
    names = changed(simulated, one_of(simulated, **EXPERTS))
    assert not any(isinstance(value, str) for values in names.values() for value in values)


def test_pairs_of_values_and_the_neighbours_of_what_has_one_are_near_too() -> None:
    made = prepared()
    one = one_of(made, **EXPERTS)
    near = made.candidates.near([one])
    assert len(near) < len(made.candidates) + 500
    beside = next(
        item.configuration
        for item in near.items[len(made.candidates) :]
        if item.configuration.knobs["attention_backend"] == "FLASH_ATTN"
    )
    again = near.near([beside])
    moved = [item.configuration for item in again.items[len(near) :]]
    assert {c.knobs["max_batched_tokens"] for c in moved} > {one.knobs["max_batched_tokens"]}
    assert {c.knobs["attention_backend"] for c in moved} >= {"FLASH_ATTN"}


def test_pins_and_a_space_file_say_all_that_is_searched(tmp_path: Path) -> None:
    pinned = prepared(pins=("attention_backend=auto", "moe_backend=auto"))
    assert not changed(pinned, one_of(pinned, **EXPERTS)).keys() & {
        "attention_backend",
        "moe_backend",
    }
    file = tmp_path / "mine.yaml"
    file.write_text(
        "narrow:\n  vllm:\n    search: {tensor_parallel: [8], max_batched_tokens: [8192, 16384]}\n"
    )
    narrowed = prepared(space=file)
    assert (
        narrowed.candidates.near([narrowed.candidates.items[0].configuration])
        is narrowed.candidates
    )


def test_a_trade_off_beside_the_best_is_not_searched_unless_it_is_allowed() -> None:
    """Four bits a value are tried where the load has more tokens than a cache of eight."""
    made = prepared(load="random:60000:2000:1024")
    near = made.candidates.near([one_of(made, tensor_parallel=8, kv_cache_dtype="fp8")])
    four_bits = {
        place
        for place, item in enumerate(near.items)
        if item.configuration.knobs["kv_cache_dtype"] == "nvfp4"
    }
    assert four_bits
    assert four_bits <= {*near.giving_up(frozenset())}
    assert not four_bits & {*near.giving_up(frozenset({"lossy"}))}
