"""Display a study in progress: a line per launch and, on a terminal, a live block below. All on
stderr.

The cursor is not hidden and the screen is the usual one, so that a tuner that was killed leaves
nothing to repair.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from autotune.base import Evidence, Stage, beside, frozen
from autotune.engines import CandidateSet, Configuration, Scalar
from autotune.engines.entry import parse_yaml
from autotune.load.capacity.goal import carried
from autotune.load.metrics import readable
from autotune.tuner.backends import backend_of
from autotune.tuner.foresight import Prediction, cost
from autotune.tuner.prepare.candidates import Prepared
from autotune.tuner.search import objective
from autotune.tuner.search.budget import capacity
from autotune.tuner.search.decide.simplify import default_knobs
from autotune.tuner.search.decide.verdict import evidence, leader
from autotune.tuner.search.history import History
from autotune.tuner.search.nodes import contrast
from autotune.tuner.search.spread import percent, percents
from autotune.tuner.study.spec import StudySpec, at_once, is_local
from autotune.tuner.trial import Launch, Role, State, Trial

from .report import text
from .report.tables import again, broken_slos, without_figure
from .report.templates import write

_TEXTS = parse_yaml(beside(__file__, "progress.yaml"))


def cost_line(
    prepared: Prepared, first: list[tuple[Trial, Prediction]], places: Collection[str] = ()
) -> str:
    """Return `cost` as a sentence."""
    figures = cost(prepared, first, places)
    return write(_TEXTS["cost"], figures=figures, backend=prepared.backend)


_MOST_RUNNING = 8  # Number of launches shown; the rest is a count
_OTHER_ROWS = 6
"""Terminal lines reserved for the other rows of the block and one line of the log."""
_LABEL = 12
_PER_SECOND = 4


@frozen
class Running:
    """A running launch: its name, its stage, its node, and the stage's start by
    `time.monotonic`."""

    name: str
    stage: str
    node: str
    since_s: float


@dataclass(slots=True)
class LiveBlock:
    """Rows below the lines: phase of the study with facts about it, running launches by number, and
    the best."""

    phase: str = ""
    facts: Sequence[str] = ()
    ends_s: float | None = None
    """Latest end of the budget by `time.monotonic`; None: unknown."""
    best: Sequence[str] = ()
    running: dict[int, Running] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now_s = time.monotonic()
        facts = list(self.facts)
        if self.ends_s is not None:
            facts.append(text.time_left(max(0.0, self.ends_s - now_s)))
        rows = [(self.phase, facts)]
        # Copied at once: the main thread goes on while this one draws.
        running = list(self.running.values())
        room = max(1, min(_MOST_RUNNING, options.size.height - _OTHER_ROWS))
        for one in running[:room]:
            stage = f"{one.stage} {text.seconds(now_s - one.since_s)}".lstrip()
            rows.append(("running", [stage, one.node, one.name]))
        if len(running) > room:
            rows.append(("", [f"and {len(running) - room} more"]))
        if self.facts and not running:
            rows.append(("next", ["choosing"]))
        if self.best:
            rows.append(("best", [*self.best]))
        for label, parts in rows[: max(1, options.size.height - 2)]:
            cells = f"{label:<{_LABEL}}{' · '.join(filter(None, parts))}"
            line = Text(cells, no_wrap=True, overflow="ellipsis")
            line.stylize("bold", 0, len(label))
            yield line
        # End with the cursor's own row: ^C and the prompt after a kill -9 begin here.
        yield Text("")


_MOST_KNOBS = 3  # Number of knobs that a launch's line names; the rest is a count
_ROW = "{:<5} {:>6}  {:<8}  {:<12}  {:>19}  {:>8}  {:>7}  {}"
"""Number and count of a launch, role, engine, objective, gain, duration, and the rest, as cells of
a table."""


class Progress:
    """Print one line per launch and, on a terminal with `live`, the state of the study below
    them."""

    def __init__(self, spec: StudySpec, console: Console, live: bool = True) -> None:
        self._spec = spec
        self._console = console
        self._backend = backend_of(spec)
        self._block = LiveBlock()
        self._live = None
        if live and console.is_interactive:
            self._live = Live(
                console=console,
                transient=True,
                refresh_per_second=_PER_SECOND,
                get_renderable=lambda: self._block,
            )
        self._started_s = 0.0
        self._headed = False
        self._done_before: int | None = None
        self._candidates: CandidateSet

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
            # Live has hidden it, and a killed tuner could not bring it back.
            self._console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def opened(self, folder: Path, candidates: CandidateSet) -> None:
        """Print the study's folder and store the candidates that launches belong to."""
        self._candidates = candidates
        self.note(f"study {self._spec.study} in {folder}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Release the terminal to a child process for the duration."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def phase(self, text: str) -> None:
        """Show a phase that launches nothing."""
        self._block = LiveBlock(text)

    def note(self, message: str | Stage) -> None:
        """Print a line about a fixed problem or a long step; a launch's stage appears only in its
        row."""
        running = self._block.running
        if not isinstance(message, Stage):
            self._console.print(message, highlight=False, soft_wrap=True, markup=False)
        elif one := running.get(message.number):  # else it has ended meanwhile
            node = message.node or one.node
            running[message.number] = Running(one.name, message.doing, node, time.monotonic())

    def started(self, trial: Trial, launches: Sequence[Launch], phase: str) -> None:
        """Show a started launch, after the finished launches, in a phase of the study."""
        if self._done_before is None:
            self._done_before = len(launches)
            self._started_s = time.monotonic()
        if self._live:
            changes = described(self._history(launches), trial.configuration)
            name = f"{trial.configuration.engine}  {changes}"
            stage = "" if self._backend.virtual else "waiting"
            self._block.running[trial.number] = Running(name, stage, trial.node, time.monotonic())
            self._block.phase = phase
            self._update(launches)

    def finished(self, launch: Launch, before: Sequence[Launch]) -> None:
        """Print one row: a launch's result, its changes from earlier launches, and the best if it
        is new."""
        trial = launch.trial
        result = launch.result
        launches = [*before, launch]
        history = self._history(launches)
        earlier = self._history(before)
        value, gain, *notes = self._outcome(launch, history)
        notes.insert(0, f"{described(earlier, trial.configuration)}{again(trial)}")
        if result.gpu_ids or not is_local(self._spec.executor):
            notes.append(f"on {result.node}")
        best = self._best_line(history)
        if not before or best != self._best_line(earlier):
            notes.append(best)
        if not self._backend.virtual:
            left_s = self._left_s(history, launches)
            notes.append("time left unknown" if left_s is None else text.time_left(left_s))
        title = text.title(self._spec.objective)
        if not self._headed:
            gain_title = readable.gain_heading(self._spec.objective).split()[0].lower()
            changes = "changed from the best so far"
            self.note(_ROW.format("#", "", "role", "engine", title, gain_title, "took", changes))
            self._headed = True
        if trial.role is Role.FINAL and all(one.role is not Role.FINAL for one in before):
            self.note("finals: the launches from here on decide")
        # Its number is that of the report, of MLflow and of its folder.
        row = _ROW.format(
            f"#{trial.number}",
            f"{len(launches)}/{history.most_launches}",
            trial.role.value,
            trial.configuration.engine,
            value.rjust(len(title)),
            gain,
            text.seconds(result.seconds),
            "  ".join(notes),
        )
        if self._live:
            self._block.running.pop(trial.number, None)
            self._update(launches)
        self.note(row)

    def _update(self, launches: Sequence[Launch]) -> None:
        """Update the block to the finished launches."""
        block = self._block
        history = self._history(launches)
        left_s = self._left_s(history, launches)
        best = leader(history)
        block.ends_s = None if left_s is None else time.monotonic() + left_s
        block.facts = [f"{len(launches)}/{history.most_launches}"]
        if self._backend.evidence is not Evidence.MEASURED:
            block.facts.append(self._backend.evidence.value.upper())
        if failed := sum(launch.result.state is not State.COMPLETE for launch in launches):
            block.facts.append(f"{failed} failed")
        if best is None:
            block.best = [self._best_line(history)]
            return
        # Its value, its gain over the baseline with the 95 % interval, and its differences from the
        # defaults.
        base = history.candidates.baseline
        gain = ""
        both = [history.deciding_scores(p) or history.node_scores(p) for p in (best, base)]
        half = history.spread.half_width([len(scores) for scores in both])
        if best != base and half is not None:
            difference, _ = contrast(*both)
            metric = self._spec.objective
            ends = percents((difference - half, difference + half))
            gain = f"{readable.gain(metric, percent(difference))} ({readable.gains(metric, ends)})"
        mine = history.configuration(best)
        changes = described(self._history(()), mine)
        block.best = [_level(history, best), gain, f"{mine.engine}  {changes}"]

    def _history(self, launches: Sequence[Launch]) -> History:
        return History.from_launches(self._spec, self._candidates, launches)

    def _outcome(self, launch: Launch, history: History) -> list[str]:
        """Return value with evidence, gain over the baseline, and notes: violated limits, the load,
        or the failure."""
        spec = self._spec
        result = launch.result
        label = launch.result.label.lower()
        scores = objective.scores_of(spec, result)
        broken = broken_slos(spec, result.metrics)
        if scores.value is None or scores.score is None:
            if scores.too_slow:
                limits = "; ".join(broken)
                return ["too slow", "", f"breaks {limits} at the lightest load ({label})"]
            cell, why = without_figure(launch)
            return [cell, "", why]
        candidates = history.candidates
        gain = ""
        usual = history.scores(candidates.baseline)
        own = launch.trial.configuration == candidates.baseline_candidate.configuration
        if usual and not own:
            gain = readable.gain(spec.objective, percent(scores.score - fmean(usual)))
        notes = [
            carried(result.metrics.get(spec.workloads[0], {})),
            *(f"breaks {one}" for one in broken),
        ]
        return [f"{readable.number(scores.value)} {label}", gain, *filter(None, notes)]

    def _best_line(self, history: History) -> str:
        if (best := leader(history)) is not None:
            return f"best {_level(history, best)}"
        limited = history.measured_scores and self._spec.slos
        return f"no {'configuration meets the limits' if limited else 'complete launch'} so far"

    def resumed(self, launches: Sequence[Launch]) -> None:
        """Print how far a study is, and what is left by the time that its own launches took."""
        history = self._history(launches)
        learned = ""
        took_s = [one.result.seconds for one in launches if one.result.metrics]
        if took_s and not self._backend.virtual:
            learned = f", of about {text.seconds(fmean(took_s))} each"
            if (left_s := self._left_s(history, launches)) is not None:
                learned += f": {text.time_left(left_s)}"
        most = history.most_launches
        self.note(f"{len(launches)} of at most {most} launches are made{learned}")

    def _left_s(self, history: History, launches: Sequence[Launch]) -> float | None:
        """Return the remaining time of the budget, from the mean of the complete launches, on as
        many nodes."""
        each_s = 0.0
        done = len(launches)
        took_s = [one.result.seconds for one in launches if one.result.metrics]
        if self._backend.virtual:
            if here := done - (self._done_before or 0):
                each_s = (time.monotonic() - self._started_s) / here
        elif took_s:
            each_s = fmean(took_s)
            if not history.one_at_a_time:
                each_s /= at_once({one.result.node for one in launches})
        return max(0, capacity(history) - done) * each_s if each_s else None


def _level(history: History, position: int) -> str:
    """Format the mean of a configuration's launches."""
    score = fmean(evidence(history, position))
    return readable.number(objective.value_of(history.spec.objective, score))


def described(history: History, tried: Configuration) -> str:
    """Name the knobs in which a configuration differs from the best so far, or from its engine's
    defaults."""
    candidates = history.candidates
    spec = history.spec
    best = leader(history)
    if candidates.alone:
        return "the server as it runs"
    baseline = candidates.baseline_candidate.configuration
    usual: Mapping[str, Scalar] = default_knobs(candidates, tried.engine)
    if best is not None:
        ahead = history.configuration(best)
        if tried == ahead:
            return "repeat of the best"
        if tried == baseline:
            return "repeat of the baseline"
        if ahead.engine == tried.engine:
            usual = ahead.knobs
    changes = [
        text.short(name, value) for name, value in tried.knobs.items() if value != usual.get(name)
    ]
    if len(changes) > _MOST_KNOBS:
        changes[_MOST_KNOBS:] = [f"{len(changes) - _MOST_KNOBS} more"]
    if changes:
        return " · ".join(changes)
    # A configuration without a change: its engine's defaults, or a baseline that was typed.
    if spec.baseline is None or tried != baseline:
        return "engine defaults"
    name = "the recipe" if spec.recipe else "the typed command"
    default = tried in map(history.configuration, candidates.defaults)
    return f"{name} equals the engine's defaults" if default else name
