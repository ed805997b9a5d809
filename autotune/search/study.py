"""`JournaledStudy`: ask and tell over two files in the study's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from autotune.errors import BadInput, UnknownName
from autotune.search import SAMPLERS, KnownNoEffects, objective
from autotune.search import optuna_samplers as peers
from autotune.search.acquisition import Suggestion, suggest
from autotune.search.decide.estimate import percent
from autotune.search.decide.verdict import judge
from autotune.search.explain.explanation import explain
from autotune.search.explain.predictions import predictions
from autotune.search.front import suggest_front
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels, one_thread
from autotune.search.history import History
from autotune.search.observations import observations
from autotune.search.optuna_journal import Form, Record
from autotune.search.plan import Plan, Step, Stop
from autotune.search.prior import Prior
from autotune.search.repeats import model_of
from autotune.space.candidates import Candidate, CandidateSet
from autotune.study.recommendation import Explanation
from autotune.study.results import Lock, Results
from autotune.study.spec import StudySpec
from autotune.trial import Command, Launch, Role, Trial

_PHASES = {
    Role.BASELINE: "baseline",
    Role.DEFAULT: "engine defaults",
    Role.START: "good starts",
    Role.SEARCH: "search",
    Role.FINAL: "finals",
    Role.CONTROL: "control run",
}


class JournaledStudy:
    """See `autotune.search.Study` and `autotune.search.open_study`."""

    def __init__(
        self,
        folder: Path,
        spec: StudySpec,
        candidates: CandidateSet,
        command_of: Callable[[Candidate], Command],
        priors: Sequence[Prior] = (),
    ) -> None:
        if spec.sampler not in SAMPLERS:
            raise UnknownName("sampler", spec.sampler, SAMPLERS)
        self._spec, self._candidates, self._command_of = spec, candidates, command_of
        encoding = Encoding(candidates)
        self._form = Form(spec, candidates, encoding)
        self._kernels = Kernels(encoding, priors)
        self._plan = Plan(self._kernels, self._suggest)
        self._pending: dict[int, Trial] = {}
        self._stop_reason, self._phase = "", "starting"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(folder)
        try:
            self._results = Results(folder / "results.jsonl")
            self._check_rows()
            self._record = Record(folder / "optuna.journal", self._form, self._by_number(), self._fill)
            self._interrupted = self._take_up()
        except BaseException:
            self._lock.release()
            raise

    @property
    def launches(self) -> Sequence[Launch]:
        """The finished launches, by number."""
        return sorted(self._results.launches, key=lambda launch: launch.trial.number)

    @property
    def stop_reason(self) -> str:
        """Why the study has ended; empty while it goes on."""
        return self._stop_reason

    @property
    def phase(self) -> str:
        """What the latest launch is for, in words."""
        return self._phase

    def ask(self, nodes: Sequence[str] = (), busy: Sequence[str] = ()) -> Trial | None:
        """The next launch: first those that were interrupted, under their numbers.

        One that was bound to a node waits for it there; where that is gone it may run on any, and counts for that one.
        """
        if self._interrupted:
            # Those that can begin first, on their own nodes before others take these.
            trial = min(self._interrupted, key=lambda t: (t.node not in nodes, bool(t.node), t.node in busy))
            self._interrupted.remove(trial)
            return self._hand_out(trial if trial.node in (*nodes, *busy) else replace(trial, node=""))
        number = max([*self._by_number(), *self._pending], default=-1) + 1
        with one_thread():
            decision = self._plan.next(self._history(self.launches, self._pending.values()), nodes)
        if isinstance(decision, Step):
            trial = self._trial(number, decision, self.launches)
            self._record.begin(trial)
            return self._hand_out(trial)
        if isinstance(decision, Stop):
            self._stop_reason, self._phase = decision.reason, "done"
        return None

    def tell(self, launch: Launch) -> None:
        """Keep a finished launch: `results.jsonl` first, it is the truth."""
        if self._pending.get(launch.trial.number) is None:
            raise ValueError(f"trial {launch.trial.number} was not asked for, or was told already")
        self._results.append(launch)
        del self._pending[launch.trial.number]
        self._record.finish(launch)

    def explanation(self, no_effect_of: KnownNoEffects) -> Explanation:
        """See `autotune.search.Study`."""
        history = self._history(self.launches).adjusted()
        judgement = judge(history)
        with one_thread():
            model = model_of(self._kernels, history)
            found = explain(history, self.launches, model, judgement, no_effect_of)
            if judgement.winner is None:
                return found
            untried = predictions(history, model, self._kernels, judgement.winner, self._command_of)
        return found.model_copy(update={"untried": untried})

    @property
    def off_nodes(self) -> Mapping[str, str]:
        """See `autotune.search.Study`."""
        history = self._history(self.launches)
        offsets = {node: percent(history.node_offsets[node].offset) for node in history.off_nodes}
        return {node: f"the baseline is {offset:+.0f} % off there, beyond noise" for node, offset in offsets.items()}

    def close(self) -> None:
        """Release the study."""
        self._lock.release()

    def _hand_out(self, trial: Trial) -> Trial:
        self._pending[trial.number] = trial
        self._phase = _PHASES[trial.role]
        return trial

    def _history(self, launches: Iterable[Launch], pending: Iterable[Trial] = ()) -> History:
        return History.of(self._spec, self._candidates, launches, pending)

    def _trial(self, number: int, step: Step, launches: Sequence[Launch], running: Sequence[Trial] = ()) -> Trial:
        candidate = self._candidates.items[step.position]
        others = [*(launch.trial for launch in launches), *self._pending.values(), *running]
        earlier = [t for t in others if t.number < number and t.configuration.fingerprint == candidate.fingerprint]
        return Trial(
            number=number,
            role=step.role,
            configuration=candidate.configuration,
            engine_version=candidate.engine_version,
            command=self._command_of(candidate),
            workloads=objective.workloads_of(self._spec, step.role),
            launch_index=len(earlier),
            node=step.node,
        )

    def _suggest(self, history: History, believing: bool = True) -> Suggestion | None:
        """The sampler's proposal: a function of the launches in this history and of the seed alone.

        Args:
            believing: whether priors count; Optuna's samplers know of none.
        """
        if history.exhausted:
            return None
        if self._spec.sampler == "gp":
            seen, kernels = (
                observations(history.adjusted()),
                self._kernels if believing else self._kernels.without_prior,
            )
            criterion = suggest if self._spec.pareto is None else suggest_front
            return criterion(kernels, seen, self._spec.seed, len(history))
        known = {entry.number: entry.position for entry in history}
        finished = [launch for launch in self.launches if launch.trial.number in known]
        trials = [self._form.finished(launch, known[launch.trial.number]) for launch in finished]
        self._correct(trials, finished, history)
        trials += [self._form.running(t, known[n]) for n, t in sorted(self._pending.items()) if n in known]
        seed = int(np.random.default_rng([self._spec.seed, len(history)]).integers(2**31))
        params = peers.propose(self._spec.sampler, trials, self._kernels.encoding, self._form.direction, seed)
        free = np.ones(len(self._candidates), dtype=np.bool_)
        free[list(history.done_with)] = False
        return Suggestion(self._kernels.encoding.nearest(params, free), None)

    def _correct(self, trials: Sequence[FrozenTrial], launches: Sequence[Launch], history: History) -> None:
        """Values adjusted for the node's offset."""
        sign = 1.0 if self._form.direction is StudyDirection.MAXIMIZE else -1.0
        pairs = zip(history, history.adjusted(), strict=True)
        offsets = {one.number: (two.score or 0.0) - (one.score or 0.0) for one, two in pairs}
        for trial, launch in zip(trials, launches, strict=True):
            if trial.value is not None and offsets[launch.trial.number]:
                trial.value *= math.exp(sign * offsets[launch.trial.number])

    def _by_number(self) -> Mapping[int, Launch]:
        return {launch.trial.number: launch for launch in self._results.launches}

    def _check_rows(self) -> None:
        try:
            self._history(self._results.launches)
        except KeyError as error:
            raise BadInput(
                f"a launch of this study has a configuration ({error.args[0]}) that is no candidate any more: the "
                "search spaces, the replay file or autotune itself have changed; begin a new study"
            ) from None

    def _fill(self, number: int) -> Trial | None:
        """The trial of a number whose journal entry is lost: decided again from the launches before it."""
        before = [launch for launch in self.launches if launch.trial.number < number]
        decision = self._plan.next(self._history(before, self._pending.values()))
        return self._trial(number, decision, before) if isinstance(decision, Step) else None

    def _take_up(self) -> list[Trial]:
        """The trials that were begun and never finished; they are launched again under their numbers."""
        found: list[Trial] = []
        for number, role, fingerprint, node in self._record.running():
            step = Step(role, self._candidates.position(fingerprint), node)
            found.append(self._trial(number, step, self.launches, found))
        return found
