"""Two repeats of one workload find nothing of each other in the prefix cache, unless they are let
to."""

from __future__ import annotations

import json
from pathlib import Path

from tests.product.cli import autotune
from tests.product.server import emulated

MODEL = "deepseek-ai/DeepSeek-V3.2"
SERVER = ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve", MODEL, "--tensor-parallel-size", "8"]
# One worker, fixed: a load that is sent again by more of them would get new prompts.
LOAD = [
    "--model",
    MODEL,
    "--workload",
    "random:400:12:32",
    "--concurrency",
    "8",
    "--repeats",
    "2",
    "--workers",
    "1",
]


def hit_rates(tmp_path: Path, url: str, *options: str) -> tuple[list[float], dict[str, object]]:
    file = tmp_path / "result.json"
    autotune(
        "bench", "--url", url, *LOAD, *options, "--save-result", str(file), home=tmp_path / "home"
    )
    result = json.loads(file.read_text())
    assert result["completed"] == 64
    return [repeat["cache_hit_rate"] for repeat in result["repeats"]], result["cache"]


def test_repeats_hit_no_cache_unless_reset_and_new_prompts_are_both_off(tmp_path: Path) -> None:
    with emulated("--speed", "3", command=SERVER) as url:
        ours, told = hit_rates(tmp_path, url)
        assert max(ours) < 0.01
        assert (told["kept"], told["reset"]) == (False, "done")
        kept, told = hit_rates(tmp_path, url, "--keep-cache", "--same-prompts", "--seed", "7")
        assert kept[0] < 0.01
        assert kept[1] > 0.9
        assert (told["kept"], told["reset"]) == (True, None)
        for one in ("--keep-cache", "--same-prompts"):
            alone, _ = hit_rates(tmp_path, url, one, "--seed", "20")
            assert max(alone) < 0.01, f"{one} alone let a repeat find the other"
