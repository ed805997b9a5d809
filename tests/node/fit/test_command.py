"""``autotune calibrate``: reads, fits, writes; what cannot be read ends with exit code 2 and the
reason."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from autotune.base.errors import BadInput
from autotune.cli.calibration import CalibrateOptions, calibrate
from autotune.node.calibration import Calibration, packaged_calibration, read_calibration
from autotune.node.fit.reading import read_file
from tests.node.fit.files import VLLM, csv_file, own_row
from tests.product.cli import autotune
from tests.product.processes import start

LOADS = [(512, 64, 64, None), (64, 256, 64, 16), (2000, 16, 32, None), (512, 64, 32, 4)]
UNSEEN = (256, 128, 64, 32)


def node_of_ones_own() -> Calibration:
    """A node whose kernels start later and multiply slower than the shipped figures say."""
    shipped = packaged_calibration()
    factors = {
        level: {g: dict(f) for g, f in groups.items()} for level, groups in shipped.factors.items()
    }
    mine = factors.setdefault("engine", {}).setdefault("vllm", {})
    for figure, factor in (("layer_us", 2.0), ("gemm_share", 0.6), ("moe_share", 0.6)):
        mine[figure] = mine.get(figure, 1.0) * factor
    return shipped.model_copy(update={"factors": factors})


def row_of(load, node, tmp_path):
    """A row of one's own table as the node would have measured it."""
    read, written, prompts, concurrency = load
    shape = {
        "input_len": read,
        "output_len": written,
        "num_prompts": prompts,
        "max_concurrency": concurrency or "",
    }
    draft = own_row(command=VLLM, engine_version="0.13.0", workload="", **shape)
    row = read_file(csv_file(tmp_path, draft, name="draft.csv")).rows[0]
    metrics = row.resolved.with_setup(calibration=node).simulate(row.workload, 0).metrics
    names = ("total_token_throughput", "median_ttft_ms", "median_tpot_ms")
    return {**draft, **{name: metrics[name] for name in names}}


def predicted(load, home):
    read, written, prompts, concurrency = load
    workload = [
        "--workload",
        f"random:{read}:{written}:{prompts}",
        "--concurrency",
        str(concurrency),
    ]
    command = [
        "simulate",
        "--hw",
        "h200",
        "--engine-version",
        "0.13.0",
        *workload,
        "--json",
        "--",
        *VLLM.split(),
    ]
    done = autotune(*command, home=home)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


def test_the_simulated_node_learns_ones_own_node(tmp_path, capsys):
    node, home = node_of_ones_own(), tmp_path / "home"
    table = csv_file(tmp_path, *(row_of(load, node, tmp_path) for load in LOADS), name="mine.csv")
    calibrate(CalibrateOptions(files=[table]), home, True)
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["wrote"] == str(home / "coefficients.yaml")
    assert answer["errors"]["throughput"] < 0.05
    assert "4 rows, 0 of them failures: 4 points" in said.err
    assert "fitting 4 points" in said.err
    learned = read_calibration(home / "coefficients.yaml")
    assert learned.fitted_to[-1].source == "mine.csv"
    # What it did not measure is still known from the shipped rows.
    assert learned.factors["engine"].get("sglang") == packaged_calibration().factors["engine"].get(
        "sglang"
    )
    truth = row_of(UNSEEN, node, tmp_path)["total_token_throughput"]
    before, _ = predicted(UNSEEN, tmp_path / "elsewhere")
    after, messages = predicted(UNSEEN, home)
    wrong = [abs(math.log(one["total_token_throughput"] / truth)) for one in (before, after)]
    assert wrong[1] < min(0.1, wrong[0] / 3)
    assert f"coefficients: {home / 'coefficients.yaml'}" in messages


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_its_workers_end_with_it_and_the_old_figures_stay(tmp_path, ending):
    home = tmp_path / "home"
    home.mkdir()
    shape = {"workload": "", "output_len": 64, "num_prompts": 64}
    rows = [own_row(command=VLLM, input_len=read, **shape) for read in range(16, 1040, 8)]
    table = csv_file(tmp_path, *rows, name="mine.csv")
    heading = "# Written by `autotune calibrate`; the next calibration overwrites it.\n"
    old = (home / "coefficients.yaml", f"{heading}fitted_to: []\nfactors: {{}}\nerrors: {{}}\n")
    old[0].write_text(old[1])
    command = ["calibrate", "--data", str(table), "--home", str(home)]
    with start(*command, out=subprocess.PIPE, err=subprocess.PIPE) as process:
        said = next(line for line in process.stderr if "simulated runs" in line)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert workers, said
        handles = [os.pidfd_open(int(pid)) for pid in workers]
        process.send_signal(ending)
        rest = process.stderr.read()
        code = process.wait()
    assert code == (130 if ending == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in rest
    for handle in handles:
        assert select.select([handle], [], [], 30)[0], "a worker is still there"
        os.close(handle)
    assert old[0].read_text() == old[1]


def test_a_folder_that_is_not_there_is_found_out_before_anything_is_fitted(tmp_path):
    table = csv_file(tmp_path, own_row(), name="mine.csv")
    with pytest.raises(BadInput, match=r"folder .* does not exist"):
        calibrate(
            CalibrateOptions(files=[table], output=tmp_path / "no" / "folder.yaml"), tmp_path, False
        )


def test_no_data_and_an_unknown_study_end_with_exit_code_2_and_make_nothing(tmp_path):
    with pytest.raises(BadInput, match="--data FILE"):
        calibrate(CalibrateOptions(), tmp_path / "home", False)
    done = autotune("calibrate", "--study", "nobody", "--from", "physics", home=tmp_path / "home")
    assert (done.code, done.out) == (2, "")
    assert "unknown study 'nobody'" in done.err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("begun", "told"), [("shipped", True), ("physics", False)])
def test_a_cross_validation_from_figures_that_saw_published_rows_says_so(
    tmp_path, capsys, begun, told
):
    shape = {"workload": "", "output_len": 64, "num_prompts": 64}
    rows = [own_row(command=VLLM, input_len=read, **shape) for read in (256, 1024)]
    table = csv_file(tmp_path, *rows, name="mine.csv")
    calibrate(
        CalibrateOptions(files=[table], start=begun, cross_validate=True), tmp_path / "home", False
    )
    assert ("only --from physics leaves such a row out" in capsys.readouterr().err) is told
