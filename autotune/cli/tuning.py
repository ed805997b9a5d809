"""``autotune run``, ``resume``, ``verify`` and ``regress``."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from autotune.base import (
    BadInput,
    Interrupted,
    NothingFeasible,
    StudyLocked,
    Terminated,
    UnknownName,
)
from autotune.tuner.backends import backend_of
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.variables import changed_variables
from autotune.tuner.study.home import Home, calibration_of_home, library_of, ui_command
from autotune.tuner.study.options import RegressOptions, RunOptions, VerifyOptions
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.spec import StudySpec, is_local

from .screens import printed
from .shared import MESSAGES, answer, say, traffic_of


def run(options: RunOptions, home: Path, as_json: bool, dry_run: bool) -> None:
    """``autotune run``."""
    folder = Home(home)
    calibration = calibration_of_home(options.calibration, home)
    sources = tuple(dict.fromkeys(str(folder.source(text)) for text in options.sources))
    traffic = traffic_of(
        [*options.workloads, options.final_workload or ""],
        options.window,
        home,
        searched=options.find_load is not None or options.ladder is not None,
    )
    made = {
        n: one.model_dump(mode="json", exclude_defaults=True) for n, (one, _) in traffic.items()
    }
    spec = build_spec(replace(options, calibration=calibration, sources=sources, traffic=made), say)
    backend = backend_of(spec)
    if options.calibration is not None and not backend.predicted:
        say(f"--calibration is not used: launches on {backend.on} do not use the simulated node")
    from autotune.tuner.search import SAMPLERS

    if spec.sampler not in SAMPLERS:
        raise UnknownName("sampler", spec.sampler, SAMPLERS)
    if spec.sampler != "gp":
        from autotune.tuner.search.sampler import check_installed

        check_installed(spec.sampler)
    _announce(spec, options)
    if dry_run:
        _dry_run(spec, as_json)
        return
    folder.check_free(spec.study)
    for number, (_, readings) in enumerate(traffic.values()):
        from autotune.load.live import keep

        keep(readings, folder.study_folder(spec.study) / "traffic" / str(number))
    with _resumable(folder, spec.study):
        recommendation = _tune(spec, folder, as_json)
    if conclusion := backend.conclusion(spec, recommendation):
        say(conclusion)
    _conclude(recommendation, folder, as_json)


def verify(options: VerifyOptions, home: Path, as_json: bool) -> None:
    """``autotune verify``."""
    from autotune.tuner.verify import verification

    folder = Home(home)
    spec = verification(folder, options, say)
    _announce(spec, options)
    with _resumable(folder, spec.study):
        done = _tune(spec, folder, as_json)
    _conclude(done, folder, as_json)


def regress(options: RegressOptions, home: Path, as_json: bool) -> int:
    """``autotune regress``: returns the exit status of the verdict."""
    from autotune.outputs.report.sentences import lines
    from autotune.verify import regress as compare

    folder = Home(home)
    spec = folder.spec(options.study)
    sys.unraisablehook = interrupt_again
    outcome, done = compare(
        folder, options, lambda message: say(message) if isinstance(message, str) else None
    )
    _send_to_mlflow(spec, done, folder, again=True)
    shown = [*lines("regression", done, one=outcome), outcome.tune_again or ""]
    answer(as_json, outcome.model_dump(mode="json"), filter(None, shown))
    return {"pass": 0, "regression": 5, "undecided": 6}[outcome.verdict]


def resume(study: str, home: Path, as_json: bool, launches: int | None = None) -> None:
    """``autotune resume``: print the recommendation of a finished study again, unless its budget is
    raised."""
    folder = Home(home)
    spec = folder.spec(study)
    if launches is not None:
        from autotune.tuner.search.budget import LEAST_FINALS

        spec = folder.extend(spec, launches, LEAST_FINALS)
    with _resumable(folder, study):
        done = folder.recommendation(study)
        if done is not None:
            _send_to_mlflow(spec, done, folder)
        else:
            _announce(spec, None)
            for name, before, now in changed_variables(spec):
                say(f"{name} is {now} in this shell; the servers keep the study's own: {before}")
            done = _tune(spec, folder, as_json)
    _conclude(done, folder, as_json)


@contextmanager
def _resumable(home: Home, study: str) -> Iterator[None]:
    """Say how a study that is interrupted goes on, also where its launches have not begun or are
    just being ended."""
    try:
        yield
    except KeyboardInterrupt as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        way_on = "the study had not begun"
        if (home.study_folder(study) / "study.yaml").exists():
            way_on = f"continue with:\n{home.resume_command(study)}"
        raise Interrupted.by(stop, f"interrupted; {way_on}") from None


def _tune(spec: StudySpec, home: Home, as_json: bool) -> Recommendation:
    """Run a study with its progress on the terminal; it can be interrupted and suspended."""
    from autotune.outputs.progress import Progress
    from autotune.run import run as run_study

    # Ask the stream itself, because FORCE_COLOR makes no terminal of a pipe.
    progress = Progress(spec, MESSAGES, live=sys.stderr.isatty() and not as_json)

    sys.unraisablehook = interrupt_again
    suspend_with(progress.paused)
    with progress:
        return run_study(spec, home, progress)


def suspend_with(paused: Callable[[], AbstractContextManager[object]]) -> None:
    """Stop at Ctrl-Z with a display that is paused, so that it does not draw over the shell's own
    output."""

    def suspend(*_: object) -> None:
        with paused():
            # Use its default, not SIGSTOP: where no shell could wake us, the kernel ignores it.
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, suspend)

    # Without vfork: its child unblocks signals while it is still the terminal's, stops at Ctrl-Z
    # before it runs its program, and the parent, which vfork holds until then, never stops.
    vars(subprocess)["_USE_VFORK"] = False
    signal.signal(signal.SIGTSTP, suspend)


def interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
    """Raise again an interruption that occurred in a finaliser: Python prints it and continues."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        main = threading.main_thread().ident
        number = signal.SIGTERM if issubclass(ignored.exc_type, Terminated) else signal.SIGINT
        threading.Timer(0.1, signal.pthread_kill, [main, number]).start()
    else:
        sys.__unraisablehook__(ignored)


def _send_to_mlflow(
    spec: StudySpec, done: Recommendation, home: Home, *, again: bool = False
) -> None:
    """Send a finished study to MLflow if its copy there is missing, incomplete or outdated."""
    from autotune.outputs.tracking import Tracker
    from autotune.tuner.study.results import Lock

    folder = home.study_folder(spec.study)
    try:
        with ExitStack() as stack:
            stack.callback(Lock(folder).release)
            tracker = stack.enter_context(Tracker(home.path, spec, say))
            if again or not tracker.has_everything:
                tracker.sync(home.launches(spec.study))
                tracker.finish(done, folder)
    except StudyLocked:
        return  # its tuner is just sending it
    except (BadInput, OSError) as error:
        say(f"MLflow was not updated: {error}")


def _announce(spec: StudySpec, options: RunOptions | VerifyOptions | None) -> None:
    """Print the source of the numbers in the first line, as `Backend.announcement`."""
    say(backend_of(spec).announcement(spec, library_of(spec), options))
    for note in spec.notes:
        say(note)


def _conclude(recommendation: Recommendation, home: Home, as_json: bool) -> None:
    from autotune.outputs.report.sentences import lines
    from autotune.outputs.tracking import view_address

    chosen = recommendation.recommended
    folder = home.study_folder(recommendation.study)
    shown = printed(
        "conclusion",
        done=recommendation,
        sentences=lines("predictions", recommendation) + lines("brief", recommendation),
        folder=folder,
        browser=ui_command(home.path),
        view=view_address(home.path, recommendation.study),
    )
    answer(as_json, recommendation.to_json(), ["", shown])
    if chosen is None:
        external = "the server does not meet the limits"
        problem = external if recommendation.address else "no feasible configuration"
        raise NothingFeasible(
            f"{problem} ({recommendation.stop_reason}); see {folder / 'report.md'}"
        )


def _dry_run(spec: StudySpec, as_json: bool) -> None:
    from autotune.outputs.progress import cost_line, described
    from autotune.tuner.foresight import cost, first_trials
    from autotune.tuner.prepare.candidates import missing_weights, prepare
    from autotune.tuner.search.history import History

    prepared = prepare(spec, library_of(spec), say)
    for text in prepared.spec.notes[len(spec.notes) :]:
        say(text)
    items = prepared.candidates.items
    command_of = prepared.command_of
    weights = missing_weights(prepared)
    if not is_local(spec.executor) and prepared.backend.on_gpus:
        weights = "each node of the cluster is checked for the weights before its first launch"
    baseline = command_of(prepared.candidates.baseline_candidate).shell()
    starts = [
        command_of(items[i]).shell()
        for i in (*prepared.candidates.defaults, *prepared.candidates.starts)
    ]
    first = first_trials(prepared)
    document = {
        "candidates": prepared.counts(),
        "excluded": [e.model_dump() for e in prepared.excluded],
        "baseline": baseline,
        "starts": starts,
        "cost": cost(prepared, first),
        "first": [
            {
                "role": trial.role.value,
                "engine": trial.configuration.engine,
                "config": dict(trial.configuration.knobs),
                "command": trial.command.shell(),
                "predicted": asdict(predicted),
            }
            for trial, predicted in first
        ],
        "weights": weights or None,
        "notes": list(prepared.spec.notes),
    }
    text = printed(
        "dry_run",
        **document,
        trials=first,
        cost_line=cost_line(prepared, first),
        described=described,
        history=History(spec, prepared.candidates, ()),
    )
    answer(as_json, document, [text])
