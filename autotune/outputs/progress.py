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

from autotune.base.evidence import Evidence
from autotune.base.notify import Stage
from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import CandidateSet
from autotune.load.metrics import readable
from autotune.outputs.report.tables import broken_slos
from autotune.outputs.report.words import carried
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


def cost_line(
    prepared: Prepared, first: list[tuple[Trial, Prediction]], places: Collection[str] = ()
) -> str:
    """Return `cost` as a sentence."""
    figures, backend = cost(prepared, first, places), prepared.backend
    launches = f"at most {text.count(figures['launches'], 'launch', 'launches')}"
    if figures["hours"] is None:
        how = "are read from a table" if backend.recorded else "take as long as the first one shows"
        return f"{launches}, which {how}"
    where = "of the simulated node" if backend.virtual else "of the node, as the simulator predicts"
    each = f"of about {text.seconds(figures['seconds_per_launch'])} each"
    hours, node_hours = figures["hours"], figures["node_hours"]
    took = (
        f"{hours:.1f} hours, {node_hours:.1f} node-hours"
        if hours >= 0.1
        else text.seconds(3600 * hours)
    )
    limit = figures["hours_limit"]
    ends = f"; --hours {limit:g} ends it before" if limit is not None and limit < hours else ""
    return f"{launches} {each}: {took} {where}{ends}"


_MOST_RUNNING = 8  # Number of launches shown; the rest is a count
_OTHER_ROWS = 6
"""Terminal lines reserved for the other rows of the block and one line of the log."""
_LABEL = 12
_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Running:
    """A running launch: its name, its stage, and its start by `time.monotonic`."""

    what: str
    doing: str
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
        left = [] if self.ends_s is None else [text.time_left(max(0.0, self.ends_s - now_s))]
        rows: list[tuple[str, Sequence[str]]] = [(self.phase, [*self.facts, *left])]
        # Copied at once: the main thread goes on while this one draws.
        running, room = (
            list(self.running.values()),
            max(1, min(_MOST_RUNNING, options.size.height - _OTHER_ROWS)),
        )
        for one in running[:room]:
            rows.append(
                (
                    "running",
                    [
                        f"{one.doing} {text.seconds(now_s - one.since_s)}".lstrip(),
                        one.node,
                        one.what,
                    ],
                )
            )
        rows += [("", [f"and {len(running) - room} more"])] if len(running) > room else []
        rows += [("next", ["choosing"])] if self.facts and not running else []
        rows += [("best", self.best)] if self.best else []
        for label, parts in rows[: max(1, options.size.height - 2)]:
            line = Text(
                f"{label:<{_LABEL}}{' · '.join(filter(None, parts))}",
                no_wrap=True,
                overflow="ellipsis",
            )
            line.stylize("bold", 0, len(label))
            yield line
        # The cursor's own: ^C and the prompt after a kill -9 begin here, and spoil no row.
        yield Text("")


_MOST_KNOBS = 3  # Number of knobs that a launch's line names; the rest is a count
_ROW = "{:<5} {:>6}  {:<8}  {:<12}  {:>19}  {:>8}  {:>7}  {}"
"""Number and count of a launch, role, engine, objective, gain, duration, and the rest, as cells of
a table."""


class Progress:
    """Print one line per launch and, on a terminal with `live`, the state of the study below
    them."""

    def __init__(self, spec: StudySpec, console: Console, live: bool = True) -> None:
        self._spec, self._console, self._backend = spec, console, backend_of(spec)
        self._block, self._live = LiveBlock(), None
        if live and console.is_interactive:
            self._live = Live(
                self._block, console=console, transient=True, refresh_per_second=_PER_SECOND
            )
        self._started_s, self._headed = 0.0, False
        self._done_before: int | None = None
        self._candidates: CandidateSet

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
            # Live has hidden it, and a killed tuner could not bring it back.
            self._console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def opened(self, folder: Path, candidates: CandidateSet) -> None:
        """Print the study's folder and store the candidates that launches belong to."""
        self._candidates = candidates
        self._console.print(
            f"study {self._spec.study} in {folder}", highlight=False, soft_wrap=True
        )

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
        block = self._block
        block.phase, block.facts, block.ends_s, block.best, block.running = text, (), None, (), {}

    def note(self, message: str | Stage) -> None:
        """Print a line about a fixed problem or a long step; a launch's stage appears only in its
        row."""
        if not isinstance(message, Stage):
            self._console.print(message, highlight=False, soft_wrap=True, markup=False)
        elif (
            one := self._block.running.get(message.number)
        ) is not None:  # else it has ended meanwhile
            node = message.node or one.node
            self._block.running[message.number] = Running(
                one.what, message.doing, node, time.monotonic()
            )

    def started(self, trial: Trial, launches: Sequence[Launch], phase: str) -> None:
        """Show a started launch, after the finished launches, in a phase of the study."""
        if self._done_before is None:
            self._done_before, self._started_s = len(launches), time.monotonic()
        if self._live is not None:
            what = f"{trial.configuration.engine}  {described(self._history(launches), trial.configuration)}"
            doing = "" if self._backend.virtual else "waiting"
            self._block.running[trial.number] = Running(what, doing, trial.node, time.monotonic())
            self._block.phase = phase
            self._picture(launches)

    def finished(self, launch: Launch, before: Sequence[Launch]) -> None:
        """Print one row: a launch's result, its changes from earlier launches, and the best if it
        is new."""
        trial, result, launches = launch.trial, launch.result, [*before, launch]
        value, gain, *notes = self._outcome(launch, launches)
        notes = [described(self._history(before), trial.configuration), *notes]
        notes += (
            [f"on {result.node}"] if result.gpu_ids or not is_local(self._spec.executor) else []
        )
        best = self._best_line(launches)
        notes += [best] if not before or best != self._best_line(before) else []
        if not self._backend.virtual:
            left_s = self._left_s(launches)
            notes.append("time left unknown" if left_s is None else text.time_left(left_s))
        title = text.title(self._spec.objective)
        if not self._headed:
            gain_title = readable.gain_heading(self._spec.objective).split()[0].lower()
            head = _ROW.format(
                "#", "", "role", "engine", title, gain_title, "took", "changed from the best so far"
            )
            self._console.print(head, highlight=False, soft_wrap=True, markup=False)
            self._headed = True
        if trial.role is Role.FINAL and all(one.trial.role is not Role.FINAL for one in before):
            self.note("finals: the launches from here on decide")
        # Its number is that of the report, of MLflow and of its folder.
        who = (
            f"#{trial.number}",
            f"{len(launches)}/{self._history(launches).most_launches}",
            trial.role.value,
            trial.configuration.engine,
        )
        row = _ROW.format(
            *who, value.rjust(len(title)), gain, text.seconds(result.seconds), "  ".join(notes)
        )
        if self._live is not None:
            self._block.running.pop(trial.number, None)
            self._picture(launches)
        self._console.print(row, highlight=False, soft_wrap=True, markup=False)

    def _picture(self, launches: Sequence[Launch]) -> None:
        """Update the block to the finished launches."""
        failed = sum(launch.result.state is not State.COMPLETE for launch in launches)
        label = (
            self._backend.evidence.value.upper()
            if self._backend.evidence is not Evidence.MEASURED
            else ""
        )
        block, left_s = self._block, self._left_s(launches)
        block.ends_s = None if left_s is None else time.monotonic() + left_s
        history = self._history(launches)
        block.facts = [
            f"{len(launches)}/{history.most_launches}",
            label,
            f"{failed} failed" if failed else "",
        ]
        best = leader(history)
        if best is None:
            block.best = [self._best_line(launches)]
            return
        # Its value, its gain over the baseline with the 95 % interval, and its differences from the
        # defaults.
        mine, base = history.candidates.items[best].configuration, history.candidates.baseline
        value = self._level(history, best)
        both = [
            history.node_scores(p, *history.fresh_roles(p)) or history.node_scores(p)
            for p in (best, base)
        ]
        gain = ""
        half = history.spread.half_width([len(scores) for scores in both])
        if best != base and half is not None:
            difference, _ = contrast(*both)
            metric, ends = self._spec.objective, percents((difference - half, difference + half))
            gain = f"{readable.gain(metric, percent(difference))} ({readable.gains(metric, ends)})"
        block.best = [value, gain, f"{mine.engine}  {described(self._history(()), mine)}"]

    def _history(self, launches: Sequence[Launch]) -> History:
        return History.of(self._spec, self._candidates, launches)

    def _outcome(self, launch: Launch, launches: Sequence[Launch]) -> list[str]:
        """Return value with evidence, gain over the baseline, and notes: violated limits, the load,
        or the failure."""
        result = launch.result
        scores = objective.scores_of(self._spec, result)
        if scores.value is None or scores.score is None:
            if scores.too_slow:
                limits = "; ".join(broken_slos(self._spec, launch))
                return [
                    "too slow",
                    "",
                    f"breaks {limits} at the lightest load ({result.label.lower()})",
                ]
            if launch.trial.role is Role.RANDOM_WEIGHTS and result.failure is None:
                return ["ranked", "", "random weights, used for ranking only"]
            return [result.state.value, "", result.failure.summary if result.failure else "unknown"]
        base = self._candidates.baseline_candidate
        usual = self._history(launches).scores(self._candidates.baseline)
        own = launch.trial.configuration.fingerprint == base.fingerprint
        gain = ""
        if usual and not own:
            gain = readable.gain(self._spec.objective, percent(scores.score - fmean(usual)))
        at = carried(result.metrics.get(self._spec.workloads[0]))
        broken = [f"breaks {one}" for one in broken_slos(self._spec, launch)]
        return [
            f"{readable.number(scores.value)} {result.label.lower()}",
            gain,
            *filter(None, [at]),
            *broken,
        ]

    def _best_line(self, launches: Sequence[Launch]) -> str:
        history = self._history(launches)
        best = leader(history)
        if best is not None:
            return f"best {self._level(history, best)}"
        limited = history.measured and self._spec.slos
        return f"no {'configuration meets the limits' if limited else 'complete launch'} so far"

    def _level(self, history: History, position: int) -> str:
        """Format the mean of a configuration's launches."""
        score = fmean(evidence(history, position))
        return readable.number(objective.value_of(self._spec.objective, score))

    def resumed(self, launches: Sequence[Launch]) -> None:
        """Print how far a study is, and what is left by the time that its own launches took."""
        took = [
            one.result.seconds
            for one in launches
            if one.result.metrics and not self._backend.virtual
        ]
        left_s = self._left_s(launches) if took else None
        learned = f", of about {text.seconds(fmean(took))} each" if took else ""
        learned += f": {text.time_left(left_s)}" if left_s is not None else ""
        self.note(
            f"{len(launches)} of at most {self._history(launches).most_launches} launches are made{learned}"
        )

    def _left_s(self, launches: Sequence[Launch]) -> float | None:
        """Return the remaining time of the budget, from the mean of the complete launches, on as
        many nodes."""
        done = len(launches)
        took = [one.result.seconds for one in launches if one.result.metrics]
        together = (
            1
            if self._history(launches).one_at_a_time
            else at_once({one.result.node for one in launches})
        )
        each_s = fmean(took) / together if took else 0.0
        if self._backend.virtual:
            here = done - (self._done_before or 0)
            each_s = (time.monotonic() - self._started_s) / here if here else 0.0
        return max(0, capacity(self._history(launches)) - done) * each_s if each_s else None


def described(history: History, tried: Configuration) -> str:
    """Name the knobs in which a configuration differs from the best so far, or from its engine's
    defaults."""
    if history.candidates.alone:
        return "the server as it runs"
    position = leader(history)
    best = None if position is None else history.candidates.items[position].configuration
    if tried == best:
        return "repeat of the best"
    if best is not None and tried == history.candidates.baseline_candidate.configuration:
        return "repeat of the baseline"
    same = best is not None and best.engine == tried.engine
    usual: Mapping[str, Scalar] = (
        best.knobs if best and same else default_knobs(history.candidates, tried.engine)
    )
    changes = [
        text.short(name, value) for name, value in tried.knobs.items() if value != usual.get(name)
    ]
    more = [f"{len(changes) - _MOST_KNOBS} more"] if len(changes) > _MOST_KNOBS else []
    if changes:
        return " · ".join([*changes[:_MOST_KNOBS], *more])
    # A configuration without a change: its engine's defaults, or a baseline that was typed.
    items = history.candidates.items
    if (
        history.spec.baseline is None
        or tried != history.candidates.baseline_candidate.configuration
    ):
        return "engine defaults"
    name = "the recipe" if history.spec.recipe else "the typed command"
    default = any(items[p].configuration == tried for p in history.candidates.defaults)
    return f"{name} equals the engine's defaults" if default else name
