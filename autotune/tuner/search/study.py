"""`Study`: ask for the next launch, make it, tell its result; two files in the study's folder.

The next decision depends only on the finished and the running launches (`plan`), so a study that
was killed and resumed makes the same decisions as an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from autotune.base import BadInput, Json, StringMap, UnknownName, beside
from autotune.engines import Candidate, CandidateSet, Command, parse_yaml

from ..prepare.candidates import Prepared
from ..study.recommendation import Explanation
from ..study.results import RESULTS, Lock, Results, recount_finals
from ..study.spec import StudySpec
from ..trial import Launch, Trial, retry_of
from . import SAMPLERS
from .acquisition import model_of
from .beliefs import Beliefs
from .budget import noise_warning
from .decide.finals import wants_answers
from .decide.verdict import judge
from .explain import (
    KnownNoEffects,
    explain,
    learned_figures,
    not_tried,
    regret,
    search_gain,
)
from .gp.kernels import Kernels, Prior, one_thread
from .gp.posterior import THOROUGH
from .history import History
from .optuna_journal import Journal, interrupted
from .plan import Decision, Plan, Recorded, Step, Stop
from .priors import Source, priors_of_more
from .sampler import CandidateSampler
from .spread import percent

_PHASES = parse_yaml(beside(__file__, "phases.yaml"))
"""Phase of a study in words, by the role of the latest launch."""
_NEAR = 3
"""Best launched configurations whose neighbours (`CandidateSet.near`) become candidates."""


class Study:
    """Study in a folder: a new one, or an existing one, which continues.

    Args:
        folder: the study's own; it is created if it does not exist.
        candidates: the same ones, in the same order, for every resume of the study.
        command_of: returns the command of a candidate's server.
        priors: predictions for the candidates; the weight of each is learned.
        priors_of: predicts further candidates from the same sources (`CandidateSet.growth`).
        recorded: launches to be replayed in their order; empty if the search decides.

    Attributes:
        stop_reason: why the study has ended; empty while it goes on.
        phase: purpose of the latest launch, in words.

    Raises:
        StudyLocked: another process has the study open.
        UnknownName: no such sampler, or no such objective.
        BadInput: the study's rows do not fit the candidates.
        MalformedFile: ``results.jsonl`` is damaged elsewhere than at its end.
    """

    def __init__(
        self,
        folder: Path,
        spec: StudySpec,
        candidates: CandidateSet,
        command_of: Callable[[Candidate], Command],
        priors: Sequence[Prior] = (),
        recorded: Sequence[Launch] = (),
        priors_of: Callable[[Sequence[Candidate]], Sequence[Prior]] = lambda _: (),
    ) -> None:
        if spec.sampler not in SAMPLERS:
            raise UnknownName("sampler", spec.sampler, SAMPLERS)
        self._spec = spec
        self._candidates = candidates
        self._command_of = command_of
        self._recorded = Recorded(recorded) if recorded else None
        self._beliefs = Beliefs(candidates, priors, priors_of)
        self._pending: dict[int, Trial] = {}
        self._interrupted: list[Trial] = []
        self.stop_reason = ""
        self.phase = "starting"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(folder)
        try:
            self._results = Results(folder / RESULTS)
            self._check_rows()
            path = folder / "optuna.journal"
            self._journal = Journal(path, spec, command_of, self._beliefs.kernels.encoding)
            self._take_up(interrupted(path, candidates))
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def of(
        cls,
        folder: Path,
        prepared: Prepared,
        priors: Sequence[Prior],
        sources: Sequence[Source] = (),
    ) -> Study:
        """Make the study of prepared candidates, with the priors on them (`priors_of`)."""
        return cls(
            folder,
            prepared.spec,
            prepared.candidates,
            prepared.command_of,
            priors,
            prepared.recorded,
            priors_of_more(prepared, sources),
        )

    @property
    def launches(self) -> Sequence[Launch]:
        """Return the finished launches, by number."""
        rows = recount_finals(self._results.launches, self._spec.finals_from)
        return sorted(rows, key=lambda launch: launch.number)

    def ask(self, nodes: Sequence[str] = (), busy: Sequence[str] = ()) -> Trial | None:
        """Return the next launch; None if the study has ended, or must wait for running trials.

        Interrupted trials come first, under their numbers. One that was bound to a node waits for
        that node; if the node is gone, it may run on any.

        Args:
            nodes: the executor's nodes on which a launch could begin at once; `Trial.node` of the
                returned trial is one of them, or empty. No nodes: one place without a name.
            busy: nodes on which a launch would have to wait; only trials that were interrupted
                there are returned for them.
        """
        if self._interrupted:
            # First the trials whose own node is free, before others take it.
            trial = min(
                self._interrupted, key=lambda t: (t.node not in nodes, bool(t.node), t.node in busy)
            )
            self._interrupted.remove(trial)
            trial = trial if trial.node in (*nodes, *busy) else replace(trial, node="")
        else:
            history = self._opened(self.launches, self._pending.values())
            decision = self._next(history, nodes)
            if isinstance(decision, Stop):
                self.stop_reason = decision.reason
                self.phase = "done"
            if not isinstance(decision, Step):
                return None
            trial = self._journal.ask(decision, history.candidates.items[decision.position])
        baseline = self._candidates.baseline_candidate.fingerprint
        fingerprint = trial.configuration.fingerprint
        trial = replace(
            trial,
            wants_answers=wants_answers(
                self._spec, trial.role, fingerprint, baseline, self.launches
            ),
            retry=retry_of(fingerprint, self.launches),
        )
        self._pending[trial.number] = trial
        self.phase = _PHASES[trial.role]
        return trial

    def tell(self, launch: Launch) -> None:
        """Store a finished launch: it is on disk on return, in `results.jsonl` first.

        Raises:
            ValueError: its trial was not asked for, or was already recorded.
        """
        if launch.number not in self._pending:
            raise ValueError(f"trial {launch.number} was not asked for, or was already recorded")
        self._results.append(launch)
        del self._pending[launch.number]
        self._journal.tell(launch)

    def explanation(self, no_effect_of: KnownNoEffects) -> Explanation:
        """Explain the contribution of each knob of the winner, and the knobs without effect.

        `no_effect_of` returns the settings of a launch's command that are known to have none.
        """
        history, kernels = self.known()
        judgement = judge(history)
        with one_thread():
            # Knobs' effects come from launches with real weights; all launches predict candidates.
            alone = model_of(kernels, history.without_ranks(), THOROUGH)
            found = explain(history, self.launches, alone, judgement, no_effect_of)
            model = model_of(kernels, history)
            if judgement.winner is None:
                return found
            fields: Json = {"learned": learned_figures(model, kernels)}
            # A bundle and a verification have no other candidates to estimate.
            fixed = self._recorded or self._candidates.alone
            if not fixed and self._spec.verifies is None:
                if self._spec.sampler == "gp":
                    fields["regret"] = regret(history, model, kernels, judgement.winner)
                    fields["left_out"] = history.unexplained_launches
                    fields["not_tried"] = not_tried(history, model, kernels, judgement.winner)
                fields |= search_gain(history, kernels, judgement.winner)
        return found.model_copy(update=fields)

    def known(self) -> tuple[History, Kernels]:
        """Return the history of the finished launches, less the offsets of their nodes, and what is
        believed of its candidates."""
        history = self._opened(self.launches).adjusted()
        return history, self._beliefs.of(history.candidates)

    @property
    def off_nodes(self) -> StringMap:
        """Return the nodes slower or faster than the others beyond noise, with the reason to retire
        them."""
        history = self._history(self.launches)
        return {
            node: f"the baseline is {percent(history.node_offsets[node].offset):+.0f} % off there, "
            "beyond noise"
            for node in history.off_nodes
        }

    @property
    def changes(self) -> Sequence[str]:
        """Return why nodes are no longer shared, and why random weights are no longer used."""
        history = self._history(self.launches, self._pending.values())
        return [*history.changes, *filter(None, [noise_warning(history)])]

    def close(self) -> None:
        """Release the study's lock; the study can be opened again."""
        self._lock.release()

    def _opened(self, launches: Iterable[Launch], pending: Iterable[Trial] = ()) -> History:
        """Return the history of launches, its candidates extended by those near the best."""
        history = self._history(launches, pending)
        best = history.adjusted().best(_NEAR) if self._recorded is None else []
        candidates = history.candidates.near(history.configuration(p) for p in best)
        return replace(history, candidates=candidates)

    def _next(self, history: History, nodes: Sequence[str] = ()) -> Decision:
        """Decide the next launch."""
        with one_thread():
            if self._recorded:
                return self._recorded.next(history, nodes)
            kernels = self._beliefs.of(history.candidates)
            sampler = CandidateSampler(kernels, self._spec.sampler, self._spec.seed)
            return Plan(kernels, sampler).next(history, nodes)

    def _history(self, launches: Iterable[Launch], pending: Iterable[Trial] = ()) -> History:
        return History.from_launches(self._spec, self._candidates, launches, pending)

    def _check_rows(self) -> None:
        try:
            self._history(self._results.launches)
        except KeyError as error:
            raise BadInput(
                f"a launch of this study has a configuration ({error.args[0]}) that is no longer a candidate: the "
                "search spaces, the replay file or autotune itself have changed; start a new study"
            ) from None

    def _take_up(self, begun: dict[int, Step]) -> None:
        """Write the journal again from the rows, and start unfinished trials again under their
        numbers.

        A number that is in neither, because the journal was lost, is decided again from the
        launches before it.
        """
        rows = {launch.number: launch for launch in self._results.launches}
        # Behind a lost row, decide unfinished trials again.
        gap = next(number for number in count() if number not in rows and number not in begun)
        begun = {number: step for number, step in begun.items() if number < gap}
        for number in range(max([*rows, *begun], default=-1) + 1):
            if number in rows:
                self._journal.add(rows[number])
                continue
            before = [row for row in self.launches if row.number < number]
            history = self._opened(before, self._interrupted)
            decision = begun.get(number) or self._next(history)
            if isinstance(decision, Step):
                one = history.candidates.items[decision.position]
                self._interrupted.append(self._journal.ask(decision, one))
            else:
                self._journal.add(None)
        self._journal.save()
