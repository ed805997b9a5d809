"""The default workload: as much for each server of a small model as for one; what was typed stays
as it is."""

from __future__ import annotations

import pytest

from autotune.base.errors import BadInput
from autotune.load.workloads import load_workload
from autotune.outputs.report.sentences import said as sentence
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.recommendation import WorkloadComparison
from tests import small_study


@pytest.mark.parametrize(
    ("model", "options", "workloads"),
    [
        ("Qwen/Qwen3-8B", {}, ("sharegpt:8000",)),
        ("Qwen/Qwen3-8B", {"gpus": 4}, ("sharegpt:4000",)),
        ("Qwen/Qwen3-8B", {"gpus": 2}, ("sharegpt",)),
        ("meta-llama/Llama-3.3-70B-Instruct", {}, ("sharegpt:4000",)),
        ("deepseek-ai/DeepSeek-V3.2", {}, ("sharegpt",)),
        ("Qwen/Qwen3-8B", {"workloads": ("short",)}, ("short",)),
        (
            "Qwen/Qwen3-8B",
            {"find_load": "concurrency", "slos": ("p99_ttft_ms<=2000",)},
            ("sharegpt",),
        ),
    ],
)
def test_it_has_a_thousand_prompts_for_each_of_four_servers_and_more(model, options, workloads):
    spec = build_spec(RunOptions(model=model, hardware="h200", on="simulator", **options))
    assert spec.workloads == workloads
    told = [
        note
        for note in spec.notes
        if note.startswith("the default workload has 1000 prompts for each")
    ]
    assert bool(told) == workloads[0].startswith("sharegpt:")


def test_a_number_of_prompts_stands_behind_a_named_workload():
    load = load_workload("sharegpt:24")
    drawn = load.draw(0, 0)
    assert (load.name, len(drawn), drawn.concurrency) == ("sharegpt:24", 24, 24)
    assert load.points[0].lengths == load_workload("sharegpt").points[0].lengths
    for wrong in ("sweep:24", "sharegpt:0"):
        with pytest.raises(BadInput, match="number of prompts"):
            load_workload(wrong)


def test_a_load_that_is_soon_over_is_named():
    outcome = small_study.recommendation()
    (name,) = {outcome.recommended.objective.workload}
    for seconds, said in ((11.4, "The load took 11 s"), (60.0, "")):
        row = WorkloadComparison(
            baseline=None, recommended={"duration": seconds}, gain_percent=None
        )
        assert sentence(
            "short_load", outcome.model_copy(update={"workloads": {name: row}})
        ).startswith(said)
    assert sentence("short_load", outcome.model_copy(update={"workloads": {}})) == ""
    assert sentence("short_load", outcome.model_copy(update={"recommended": None})) == ""
