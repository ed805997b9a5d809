"""Hypothesis explores at random on a developer's machine; in CI it draws the same examples every
time.

A shell starts what it runs in the background with Ctrl-C ignored, and every process inherits that:
those that tests interrupt must not.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# These machines are noisy: no example fails for being slow.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# A developer's own MLflow server is no place for the studies of tests.
os.environ.pop("MLFLOW_TRACKING_URI", None)
# No test asks the Hugging Face Hub; those about it have a stand-in on loopback.
os.environ["HF_HUB_OFFLINE"] = "1"

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

E2E = (
    "documents/test_guides.py",
    "documents/test_readme.py",
    "documents/test_kinds.py",
    "product/test_faults.py",
    "product/test_side_by_side.py",
    "product/test_user_files.py",
    "tuner/backends/test_launched.py",
    "product/test_third_party_engine.py",
    "product/test_bench.py",
    "product/test_starved_client.py",
    "product/test_real_server.py",
    "tuner/executors/test_ray.py",
    "tuner/executors/test_ray_processes.py",
    "product/test_interrupt.py",
    "product/test_secrets.py",
    "tuner/backends/test_tries.py",
    "servers/docker/test_docker_engine.py",
    "product/test_prefix_cache_proof.py",
    "product/test_live.py",
    "product/test_dead_node.py",
    "product/test_network_home.py",
    "product/test_replicas.py",
    "tuner/executors/test_ray_lost_node.py",
    "product/test_performance_lab.py",
    "product/test_explained.py",
    "product/test_no_effect.py",
    "product/test_verify.py",
    "tuner/accuracy/test_server.py",
    "tuner/search/test_search_dashboard.py",
    "outputs/test_mlflow_browser.py",
    "outputs/test_report_browser.py",
    "outputs/test_tracking_outage.py",
    "node/emulator/test_traffic.py",
    "load/test_client_benchmarks.py",
    "tuner/test_evidence_of_rows.py",
    "load/test_router.py",
)
"""Files whose tests are all marked ``e2e``, the longest first; single tests have the mark where
they stand."""

LONG = (
    "product/test_main_job.py",
    "product/test_real_path.py",
    "servers/test_process.py",
    "product/test_bad_input.py",
    "product/test_kill.py",
    "servers/test_kill.py",
    "node/emulator/test_acceptance.py",
    "tuner/test_evidence_of_rows.py",
    "servers/docker/test_containers.py",
    "tuner/executors/test_ray_refusals.py",
    "tuner/executors/test_side_by_side.py",
    "outputs/test_tracking.py",
    "node/test_measured_rows.py",
    "node/test_batching.py",
    "tuner/search/test_search_verdicts.py",
    "engines/test_conformance.py",
    "node/fit/test_command.py",
    "load/bench/test_bench_command.py",
)
"""Other files that take long, the longest first; those that are in neither list take a few seconds
each."""

OWN_COMMAND = ("slow", "vllm", "validators")
"""Marks of tests that have a command of their own: ``-m e2e`` leaves them out."""


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Modules and collected tests are kept from the garbage collector: going through them takes it
    half a second, and the client has it run before every load."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with a study of another node; making one takes seconds."""
    from autotune.outputs.tracking import Tracker
    from tests import small_study

    home = tmp_path_factory.mktemp("database")
    with Tracker(home, small_study.spec(gpus=4)) as tracker:
        tracker.sync([])
    return home / "mlflow.db"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector: it finds next to nothing, in a quarter of the
    time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two processors: a sixth of the time, tests wait for processes and sockets.

    With four, what is measured beside three others is no measurement any more.
    """
    return max(1, 3 * len(os.sched_getaffinity(0)) // 2)


def pytest_configure(config: pytest.Config) -> None:
    """Let xdist hand files out as they are collected.

    By itself it begins with those of many tests, so that files of few and slow ones come last, and
    one worker idles.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests the marks would all deselect, unless a file is asked for by its
    name.

    Each worker of xdist imports every file that is collected, with the libraries that it needs: 15
    s of CPU for all.
    """
    name = collection_path.name
    if not name.startswith("test_") or any(name in argument for argument in config.args):
        return None
    marks, listed = (
        config.option.markexpr,
        collection_path.relative_to(Path(__file__).parent).as_posix() in E2E,
    )
    if marks == "e2e":
        left_out = not listed and "mark.e2e" not in collection_path.read_text(encoding="utf-8")
    else:
        left_out = listed and marks.startswith("not e2e and not slow")
    return left_out or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of ``E2E``; in a worker of xdist, sort what takes long to the front: the rest
    evens out the end.

    The mark has to be there before `-m` selects.
    """
    root = Path(__file__).parent
    places = {root / name: place for place, name in enumerate((*E2E, *LONG))}
    for item in items:
        if places.get(item.path, len(E2E)) < len(E2E) and not any(
            map(item.get_closest_marker, OWN_COMMAND)
        ):
            item.add_marker(pytest.mark.e2e)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: places.get(item.path, len(places)))
