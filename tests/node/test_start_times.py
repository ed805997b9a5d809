"""The simulator's start against what published logs tell (search_spaces/start_times.yaml)."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.entry import parse_yaml
from autotune.engines.library import Library, spaces_root
from autotune.node.coefficients import speed_card

ROWS: list[dict[str, Any]] = parse_yaml(
    (spaces_root() / "start_times.yaml").read_text(encoding="utf-8")
)["rows"]
BESIDE = ("compile", "graphs", "beside")


def beside_s(engine: str) -> list[float]:
    """Seconds that each log of an engine gives to all but the weights."""
    found = defaultdict[str, float](float)
    for row in ROWS:
        if row["engine"] == engine and row["phase"] in BESIDE:
            found[row["log"]] += row["seconds"]
    return sorted(found.values())


def gb_s(engine: str) -> list[float]:
    rows = [row for row in ROWS if row["engine"] == engine and row["phase"] == "weights"]
    return sorted(Library().model(row["model"]).weights_gb / row["seconds"] for row in rows)


def test_every_row_has_its_source_and_a_known_phase() -> None:
    root = Path(__file__).resolve().parents[2]
    for row in ROWS:
        assert row["source"].startswith("https://github.com/") or (root / row["source"]).is_dir()
        assert row["what"]
    assert {row["phase"] for row in ROWS} == {"weights", "whole", *BESIDE}
    assert {row["start"] for row in ROWS} <= {"first", "later", "unknown"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_simulated_start_is_within_what_logs_tell(engine: str) -> None:
    card = speed_card(engine).base
    assert beside_s(engine)[0] <= card.start_s <= beside_s(engine)[-1]
    rates = [rate for one in ("vllm", "sglang") for rate in gb_s(one)]
    assert min(rates) <= card.load_gb_s <= max(rates)


def test_the_rates_of_the_screen_benchmark_have_been_seen() -> None:
    """2 GB/s is slower than local drives with the default loader, 10 the page cache; nothing seen
    is as fast as 30."""
    assert gb_s("vllm")[0] < 2 < min(rate for rate in gb_s("sglang") if rate > 1)
    assert sum(rate > 10 for rate in gb_s("sglang")) >= 3
    assert max(gb_s("sglang")) < 30
