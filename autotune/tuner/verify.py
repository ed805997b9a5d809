"""A finished study, launched again: `verification` on real servers, `regress` on two versions.

A verification is a study whose only candidates are commands of the other study: the baseline, what
was recommended, and the next best, of each engine and layout the best one first, as near twins
share the simulator's error. All are launched once, then the finals put the best to the test against
the baseline, as in every study.

A regression test launches old and new version in pairs. After each pair the interval of the change
is looked at, by the bounds of the finals' test (`sequential_test.repeated_interval`): a command has
regressed where the interval lies below 0 and the estimate beyond the margin, and passes where the
interval lies above the margin. A command that fails twice on the new version and never runs there
has regressed. Where the old version is gone, the study's own launches stand for it: what else
changed since that day is in the difference too, so that never passes. A launch's number tells its
pair, command and version, so that what is on disk is taken up wherever it ended.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

from autotune.base import (
    BadInput,
    CannotGoOn,
    Evidence,
    Interrupted,
    Interval,
    Json,
    Notify,
    Watch,
    by_key,
    frozen,
    redact,
    silent,
    write_atomically,
)
from autotune.engines import LOCAL, RANKS, Command, EngineSpace, Knobs, Library, Scalar
from autotune.engines.installed import choose, engine_of, named_binaries
from autotune.engines.machine import has
from autotune.engines.rewrite import rewrite
from autotune.load.metrics import readable
from autotune.node.calibration import calibration_in
from autotune.node.resolve_command import changed_defaults

from .backends import Backend, EvaluationSetup, Evaluator, backend_named, backend_of, forms
from .comparison import StudyFigures
from .executors import LocalExecutor, retire_bad_node
from .prepare.candidates import Prepared, check_weights, prepare, typed_candidate
from .prepare.names import engine_and_version
from .prepare.variables import inherited
from .search.budget import RESERVE
from .search.decide.finals import LEAST_DEGREES
from .search.decide.sequential_test import Look, repeated_interval
from .search.decide.verdict import evidence, judge
from .search.history import History
from .search.objective import scores_of
from .search.spread import Spread, mean, percent
from .study.home import REGRESS, Home, library_of
from .study.loads import context_of
from .study.options import RegressOptions, VerifyOptions, command_line
from .study.recommendation import (
    Choice,
    ComparedCommand,
    Recommendation,
    Regression,
)
from .study.results import RESULTS, Results, read_launches
from .study.spec import EngineChoice, PredictedCommand, StudySpec, Verified, check_study_name
from .trial import CommandRole, Launch, Role, Trial

_LEAST_FINALS = 2
_OF_A_SEARCH = (
    "hours sources table_sha256 recipe noise finals_from engine_args executor sampler screened"
)
_UNUSED = {name: StudySpec.model_fields[name].default for name in _OF_A_SEARCH.split()}
"""Fields that mean nothing for given commands, at their defaults."""


@frozen
class StudiedCommand:
    """A command of a finished study, with its result there, on a real node by the simulator's
    error."""

    role: CommandRole
    choice: Choice
    interval90: Interval | None = None


def verification(home: Home, options: VerifyOptions, notify: Notify) -> StudySpec:
    """Return the study that measures another study's predictions; raises `BadInput` if that is
    impossible."""
    spec = home.spec(options.study)
    label = _predictions(home, spec).label
    library = library_of(spec)
    backend = _backend(options, spec)
    study = _name(home, options.study, backend)
    home.check_free(study)
    notify("looking for the best commands")
    known = list(_studied_commands(home, spec))
    if backend.foreign:
        known = [one for one in known if one.role == "recommended"] or known[:1]
    versions = {one.choice.engine: one.choice.engine_version for one in known}
    asked = retargeted(spec, backend, versions, options, notify)
    commands, _ = translate_commands(known, asked, options.top, library, notify)
    usual = backend.own_defaults()
    launches = options.launches or usual.get("launches", len(commands) + RESERVE)
    if not backend.foreign and launches < len(commands) + _LEAST_FINALS:
        raise BadInput(
            f"--launches {launches}: {len(commands)} commands are launched once and two of them "
            f"again; give at least {len(commands) + _LEAST_FINALS}, or a smaller --top"
        )
    return asked.with_fields(**usual).with_fields(
        launches=launches,
        study=study,
        notes=(f"measures the predictions of study {options.study} ({label})", *asked.notes),
        baseline=None if backend.foreign else commands[0].command,
        baseline_files={} if backend.foreign else commands[0].files,
        verifies=Verified(study=options.study, label=label, commands=commands),
    )


def _name(home: Home, study: str, backend: Backend) -> str:
    """Return a verification's name: ``STUDY-verified``, with the backend's kind where another
    backend has that."""
    name = check_study_name(f"{study}-verified")
    other = name in home.names() and backend_of(home.spec(name)).kind != backend.kind
    return check_study_name(f"{name}-{backend.kind}") if other else name


def retargeted(
    spec: StudySpec,
    backend: Backend,
    versions: Mapping[str, str | None],
    options: VerifyOptions | RegressOptions,
    notify: Notify,
) -> StudySpec:
    """Return a study whose given commands are launched on a backend, with the engines available
    there.

    Args:
        versions: of the engines, where they can be chosen; None: that of the image or installation.
        options: programs and images.

    Raises `BadInput` for an engine that is not there.
    """
    library = library_of(spec)
    wanted = {}
    if not backend.installed:
        wanted = {name: version for name, version in versions.items() if version is not None}
    cards = [library.engine(name) for name in versions]
    images = backend.images(options.images, cards, wanted, spec.hardware, library)
    wanted |= {name: version for name, (version, _) in images.items()}
    binaries = named_binaries(options.engine_bins, library)
    chosen = choose(
        list(versions), (None, {}), binaries, backend.elsewhere, library, notify, wanted
    )
    return spec.with_fields(
        on=backend.on,
        engines=tuple(EngineChoice(name=n, version=chosen.versions[n]) for n in versions),
        installed=dict(chosen.installed),
        images={name: image for name, (_, image) in images.items()},
        calibration=spec.calibration if backend.predicted else None,
        notes=chosen.notes,
        inherited=inherited(spec, backend),
        **_UNUSED,
    )


def _predictions(home: Home, spec: StudySpec) -> Recommendation:
    """Return a study's recommendation; raises `BadInput` if its commands cannot be verified."""
    study = spec.study
    done = home.recommendation(study)
    if done is None:
        raise BadInput(
            f"study {study!r} has not ended, so it has no predictions yet; continue with:\n"
            f"{home.resume_command(study)}"
        )
    if done.recommended is None:
        raise BadInput(
            f"study {study!r} has no recommendation ({done.stop_reason}), so there is no command "
            "to measure"
        )
    if done.origin is Evidence.MEASURED:
        raise BadInput(
            f"study {study!r} is already measured on real servers; only predictions can be verified"
        )
    if done.recommended.stand_in:
        raise BadInput(
            f"study {study!r} replayed a table without commands, so none can be launched"
        )
    return done


def _backend(options: VerifyOptions, spec: StudySpec) -> Backend:
    """Return the backend of the commands; by default this machine, if it has the hardware and their
    engine."""
    if options.on is None:
        name = spec.hardware.name
        if not (name == LOCAL or has(name, spec.gpus)):
            raise BadInput(
                f"this machine has no {spec.gpus} x {name}, so it cannot measure; run this on such "
                "a machine, or try it with --on emulator (real processes and HTTP at simulated "
                "times)"
            )
        return backend_named("process")
    backend = backend_named(options.on)
    if backend.virtual:
        raise BadInput(f"--on {options.on}: predictions are measured on {forms(virtual=False)}")
    return backend


def _studied_commands(home: Home, spec: StudySpec) -> Iterator[StudiedCommand]:
    """Return the commands of a finished study: the baseline, the recommended one, and the others,
    the best first."""
    launches = home.launches(spec.study)
    candidates = prepare(spec, library_of(spec), anywhere=True).candidates
    try:
        history = History.from_launches(spec, candidates, launches).adjusted()
    except KeyError:
        raise BadInput(
            f"study {spec.study!r}: its launches are no longer candidates, because the search "
            "spaces or autotune have changed; simulate it again"
        ) from None
    judgement = judge(history)
    sheet = StudyFigures(history, launches, judgement)
    # Let a baseline that won keep its own role.
    roles: dict[int | None, CommandRole]
    roles = {judgement.winner: "recommended", candidates.baseline: "baseline"}
    ran = [
        p
        for p in history.by_position
        if history.feasible(p) and not history.forbidden_trade_offs(p)
    ]
    ran.sort(key=lambda p: -mean(evidence(history, p)))
    first = [p for p in reversed(roles) if p is not None and history.scores(p)]
    # The best command of every layout comes before the second best of any.
    of_layout = Counter[tuple[Scalar, ...]]()
    place_in_layout = {}
    for position in dict.fromkeys([*first, *ran]):
        one = history.configuration(position)
        layout = one.engine, *map(one.knobs.get, RANKS)
        of_layout[layout] += 1
        place_in_layout[position] = of_layout[layout]
    predicted = launches[0].result.origin.predicted
    for position in dict.fromkeys([*first, *sorted(ran, key=place_in_layout.__getitem__)]):
        interval90 = sheet.interval90(position) if predicted else None
        yield StudiedCommand(roles.get(position, "next best"), sheet.choice(position), interval90)


def translate_commands(
    known: Sequence[StudiedCommand], spec: StudySpec, top: int, library: Library, notify: Notify
) -> tuple[tuple[PredictedCommand, ...], list[str]]:
    """Return the first launchable commands, in the words of the installed engine versions, one per
    configuration; with a note for each translation.

    Raises `BadInput` where the baseline or the recommended one cannot be launched.
    """
    versions = {one.name: one.version for one in spec.engines}
    spaces: dict[str, EngineSpace] = {}
    commands: dict[str, PredictedCommand] = {}
    notes = []
    for one in known:
        if len(commands) - (known[0].role == "baseline") >= top and one.role == "next best":
            break
        choice = one.choice
        try:
            kind = engine_of(choice.engine, spec.installed, library, notify)
            command = Command(tuple(choice.engine_argv), choice.env, choice.files)
            if "/" in command.argv[0] and (arguments := kind.arguments(command.argv)) is not None:
                # The path is that of another installation.
                command = replace(command, argv=(*kind.program, *arguments))
            written_for = context_of(spec, choice.engine_version, library)
            here = replace(written_for, version=versions[kind.name])
            command, translations = rewrite(kind, command, written_for, here)
            candidate, _ = typed_candidate(spec, library, command, spaces)
        except BadInput as error:
            if one.role == "next best":
                continue
            raise BadInput(
                f"the {one.role} command cannot be launched on {spec.on}: {error}; --on emulator "
                "replaces real servers by emulated ones"
            ) from error
        predicted = PredictedCommand(
            role=one.role,
            engine=kind.name,
            command=replace(command, files={}).shell(),
            files=dict(command.files),
            fingerprint=candidate.fingerprint,
            predicted=choice.objective.value,
            interval90=one.interval90,
        )
        commands.setdefault(candidate.fingerprint, predicted)
        notes += translations
    return tuple(commands.values()), list(dict.fromkeys(notes))


_OLD = 0
_NEW = 1
_BACKEND = "backend"
"""File of a comparison's folder: the kind of its backend."""
_MOST_OF_A_COMMAND = 16
"""Most launches of a command: at a launch noise of 3.5 %, eight pairs detect 5 % in four of five
cases."""
_FAILURES_THAT_COUNT = 2
"""Failures after which a command that never ran on the new version is reported as not running."""


@frozen
class _Change:
    """Difference of a command's score between the versions, from its launches so far."""

    log: float | None = None
    low: float = -math.inf
    high: float = math.inf
    failure: str | None = None

    def verdict(self, margin: float) -> Literal["pass", "regression", "undecided"]:
        """Return the verdict by a margin in score units."""
        if self.failure or (self.log is not None and self.high < 0 and self.log < -margin):
            return "regression"
        return "pass" if self.low > -margin else "undecided"


class Comparison:
    """A study's commands on the given versions, with their launches.

    Versions are numbered `_OLD` and `_NEW`, commands by their position in `_commands`. The old
    version has no `Prepared` where it is not installed.
    """

    def __init__(
        self,
        home: Home,
        spec: StudySpec,
        done: Recommendation,
        options: RegressOptions,
        notify: Watch,
    ) -> None:
        self._spec = spec
        self._done = done
        self._options = options
        self._notify = notify
        self._library = library_of(spec)
        self._study_launches = home.launches(spec.study)
        self._commands = _compared_commands(done, options.with_baseline)
        backend = backend_named(spec.on if options.on is None else options.on)
        self._backend = backend
        self._at_home = backend == backend_of(spec)
        if backend.recorded or backend.foreign:
            raise BadInput(
                f"--on {backend.on} launches no version; give process, docker, emulator or "
                "simulator"
            )
        notify(backend.announcement(spec, self._library, None))
        if not 0 < options.margin < 100:
            raise BadInput(
                f"--margin {options.margin:g}: give a percentage above 0 and below 100, e.g. 5"
            )
        self._margin = -math.log1p(-options.margin / 100)
        new = self._new_version()
        old = self._old_version()
        self._comparable = all(
            row.result.evidence is backend.evidence for row in self._study_launches
        )
        if old is None and not self._comparable:
            way = "--old-image" if backend.contained else "--old-engine-bin"
            raise BadInput(
                f"the old version is not installed, and the study's launches were {done.label}: "
                f"name it by {way}"
            )
        self._notes: list[str] = []
        self._versions = {} if old is None else {_OLD: self._prepared(old)}
        self._versions[_NEW] = self._prepared(new)
        engine = self._commands[0].choice.engine
        self._to_version = next(one.version for one in new.engines if one.name == engine)
        self._folder = _folder_of(home.study_folder(spec.study), self._to_version, backend)
        each = len(self._commands) * len(self._versions)
        self._pairs = (options.launches or _MOST_OF_A_COMMAND // 2 * each) // each
        if not self._pairs:
            raise BadInput(f"--launches {options.launches}: {each} launch each command once")
        self._rows: dict[int, Launch] = {}

    def _new_version(self) -> StudySpec:
        """Return the study with the new versions; raises `BadInput` if an engine of its commands
        has none."""
        options = self._options
        backend = self._backend
        if options.engines and backend.installed:
            raise BadInput(
                f"--engine cannot select a version on {backend.on}: name its program with "
                "--engine-bin NAME=PATH"
            )
        asked = dict(engine_and_version(text, self._library) for text in options.engines)
        named = {
            self._library.engine(text.partition("=")[0]).engine
            for text in (*options.engine_bins, *options.images)
        }
        versions = {}
        for one in self._commands:
            name = one.choice.engine
            versions[name] = asked.get(name)
            if versions[name] is None and (backend.predicted or name not in named):
                way = f"--engine-bin {name}=PATH"
                if backend.contained:
                    way = f"--image {name}=IMAGE"
                elif backend.predicted:
                    way = f"--engine {name}==VERSION"
                raise BadInput(
                    f"the {one.role} command is one of {name}: name its new version by {way}"
                )
        new = retargeted(self._spec, backend, versions, options, self._notify)
        own = calibration_in(options.calibration)
        return new.with_fields(calibration=own.model_dump(mode="json")) if own else new

    def _old_version(self) -> StudySpec | None:
        """Return the study with its old versions; None if they are not available."""
        spec = self._spec
        backend = self._backend
        options = self._options
        versions = {one.choice.engine: one.choice.engine_version for one in self._commands}
        options = replace(options, engine_bins=options.old_engine_bins, images=options.old_images)
        if options.engine_bins or options.images or backend.predicted:
            return retargeted(spec, backend, versions, options, self._notify)
        kept = spec.images
        if not backend.contained:
            kept = {name: one.program[0] for name, one in spec.installed.items()}
        if not self._at_home or not versions.keys() <= kept.keys():
            return None
        named = [f"{name}={kept[name]}" for name in versions]
        if backend.contained:
            options = replace(options, images=named)
        else:
            # Look again on the PATH for a program that was found there: it has no path.
            paths = [text for text in named if os.path.isabs(text.partition("=")[2])]
            options = replace(options, engine_bins=paths)
        with suppress(BadInput):
            old = retargeted(spec, backend, versions, options, silent)
            if all(one.version == versions[one.name] for one in old.engines):
                return old
        return None

    def _prepared(self, spec: StudySpec) -> Prepared:
        """Prepare the commands on a version; raises `BadInput` if one cannot be launched."""
        noise = self._spec.noise if self._at_home else self._backend.noise_by_default or 0.0
        library = library_of(spec)
        commands, notes = translate_commands(self._commands, spec, 1, library, self._notify)
        self._notes += [*spec.notes, *notes]
        asked = Verified(study=spec.study, label=self._done.label, commands=commands)
        prepared = prepare(spec.with_fields(noise=noise, verifies=asked), library, self._notify)
        check_weights(prepared)
        self._backend.fetch(prepared.spec, list(prepared.spaces), self._notify)
        return prepared

    def _trial(self, command: int, version: int, pair: int) -> Trial:
        prepared = self._versions[version]
        number = 4 * pair + 2 * command + version
        # Send the same load with both commands: that of the finals where the search had another.
        is_baseline = command and Role.BASELINE in self._spec.deciding_roles
        items = prepared.candidates.items
        # One candidate stands for both commands where the version's defaults make them equal.
        one = items[min(command, len(items) - 1)]
        return Trial(
            number,
            Role.BASELINE if is_baseline else Role.FINAL,
            one.configuration,
            one.engine_version,
            prepared.command_of(one),
            self._spec.workloads,
            # Count on from the study's own launches: prompts and simulated noise are new.
            self._spec.launches + number,
        )

    def run(self, make: Callable[[EvaluationSetup], Evaluator]) -> Regression:
        """Make the missing launches, and decide."""
        (self._folder / "trials").mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / _BACKEND, self._backend.kind)
        results = Results(self._folder / RESULTS)
        try:
            self._launch(results, make)
        except (KeyboardInterrupt, CannotGoOn, OSError) as error:
            so_far = (
                f"{len(results.launches)} launches are stored; the same command continues with "
                "them."
            )
            if isinstance(error, OSError):
                raise CannotGoOn(
                    f"{error.filename or self._folder} is not writable ({error.strerror}); free disk "
                    f"space there. {so_far}"
                ) from None
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted.by(error, f"stopped, {so_far}") from None
            raise CannotGoOn(f"{error}\nThe comparison has stopped, {so_far}") from None
        outcome = self._outcome()
        document = json.dumps(outcome.model_dump(mode="json"), indent=2)
        write_atomically(self._folder / "regress.json", document + "\n")
        return outcome

    def _launch(self, results: Results, make: Callable[[EvaluationSetup], Evaluator]) -> None:
        """Launch what the results lack; raises `BadInput` if they are those of other commands."""
        kept = {row.number: row for row in results.launches}
        made = []
        evaluators = {
            version: EvaluationSetup(
                one.spec, one.library, self._folder, self._notify, make
            ).evaluator()
            for version, one in self._versions.items()
        }
        # Numbers of a pair are neighbours. One pair may be cut off; several mean other versions.
        strange = _OLD in self._versions and len({number ^ 1 for number in kept} - kept.keys()) > 1
        for version, trial in self._open_trials():
            row = kept.get(trial.number)
            if row is None:
                evaluate = evaluators[version]
                row = Launch(trial, evaluate(trial))
                self._check_evidence(row)
                results.append(row)
                made.append(row)
                self._report_launch(row, version)
                retire_bad_node(made, LocalExecutor(evaluate), results.launches)
            elif strange or row.trial.command != trial.command:
                raise BadInput(
                    f"{self._folder} has launches of other commands or versions: move it away"
                )
            self._rows[trial.number] = row

    def _check_evidence(self, row: Launch) -> None:
        """Raise `BadInput` for a figure of another evidence than those that it would be compared
        with."""
        rows = [*self._rows.values(), row]
        if _OLD not in self._versions:
            rows += self._study_launches
        kinds = sorted({one.result.evidence.upper() for one in rows if one.result.metrics})
        if len(kinds) > 1:
            raise BadInput(
                f"{self._folder}: figures that are {' and '.join(kinds)} cannot be compared; name "
                "two programs of one kind by --engine-bin and --old-engine-bin, and move the "
                "folder away"
            )

    def _open_trials(self) -> Iterator[tuple[int, Trial]]:
        """Yield each open command's launches: old and new version, then new and old, so that drift
        cancels."""
        for pair, command in product(range(self._pairs), range(len(self._commands))):
            if self._change(command).verdict(self._margin) == "undecided":
                for version in (_OLD, _NEW) if (pair + command) % 2 == 0 else (_NEW, _OLD):
                    if version in self._versions:
                        yield version, self._trial(command, version, pair)

    def _report_launch(self, row: Launch, version: int) -> None:
        value = scores_of(self._spec, row.result).value
        failure = row.result.failure
        figure = failure.summary if failure else "no figure"
        if value:
            figure = f"{readable.number(value)} {row.result.label}"
        role = self._commands[row.number % 4 // 2].role
        side = ("old", "new")[version]
        self._notify(f"#{len(self._rows) + 1}  {side} {row.trial.engine_version}  {role}  {figure}")

    def _launches_of(self, command: int, version: int) -> list[Launch]:
        """Return the launches of a command on a version by pair; the study's if the old version is
        missing."""
        if version in self._versions:
            rows = sorted(self._rows.items())
            return [row for number, row in rows if number % 4 == 2 * command + version]
        known = self._commands[command]
        mine = [row for row in self._study_launches if row.fingerprint == known.choice.fingerprint]
        roles = self._spec.deciding_roles if known.role == "baseline" else (Role.FINAL,)
        return [row for row in mine if row.role in roles] or mine

    def _scores(self, rows: Sequence[Launch]) -> list[float]:
        return [one for row in rows if (one := scores_of(self._spec, row.result).score) is not None]

    def _look(self, old: list[float], new: list[float], fraction: float) -> Look:
        """Test a difference; the spread includes the study's repeats if they were made in the same
        way."""
        repeats = by_key(
            ((row.fingerprint, row.result.node, self._spec.prompts_of(row.role)), score)
            for row in (self._study_launches if self._comparable else ())
            for score in self._scores([row])
        )
        launched = [new, old] if _OLD in self._versions else [new]
        spread = Spread.pooled([*repeats.values(), *launched])
        information = 1 / (1 / len(old) + 1 / len(new))
        return Look(fraction, information, mean(new) - mean(old), spread.sd, spread.degrees)

    def _change(self, command: int) -> _Change:
        """Test a command's change after each of its pairs."""
        olds, news = (self._launches_of(command, version) for version in (_OLD, _NEW))
        launched = _OLD in self._versions
        looks = list[Look]()
        pairs = min(len(olds), len(news)) if launched else len(news)
        for count in range(1, pairs + 1):
            old = self._scores(olds[:count] if launched else olds)
            new = self._scores(news[:count])
            if old and new:
                look = self._look(old, new, count / self._pairs)
                known = count == self._pairs or look.sd == 0 or look.degrees >= LEAST_DEGREES
                if known and (not looks or look.information > looks[-1].information):
                    looks.append(look)
        fell = [
            row.result
            for row in news
            if row.result.broke or scores_of(self._spec, row.result).too_slow
        ]
        if len(fell) >= _FAILURES_THAT_COUNT and len(fell) == len(news) and self._scores(olds):
            failure = fell[-1].failure
            return _Change(
                failure=failure.summary if failure else "the lightest load violates a limit"
            )
        return _Change(looks[-1].difference, *repeated_interval(looks)) if looks else _Change()

    def _outcome(self) -> Regression:
        changes = [self._change(command) for command in range(len(self._commands))]
        launched = _OLD in self._versions
        verdict = changes[0].verdict(self._margin)
        ahead = self._still_ahead(changes[0])
        choice = self._commands[0].choice
        notes = [*dict.fromkeys(self._notes), *self._broken_limits()]
        if not self._comparable:
            # The same figures have another interval on the study's own backend.
            label = self._study_launches[0].result.label.lower()
            notes.append(
                "the interval is by the spread of these launches alone: those of the study are "
                f"{label}"
            )
        return Regression(
            verdict="undecided" if verdict == "pass" and not launched else verdict,
            engine=choice.engine,
            from_version=choice.engine_version,
            to_version=self._to_version,
            margin_percent=self._options.margin,
            evidence=next(
                (row.result.evidence for row in self._rows.values()), self._backend.evidence
            ),
            commands=[self._compared(command, change) for command, change in enumerate(changes)],
            old="launched" if launched else "rows",
            launches=len(self._rows),
            still_ahead=ahead,
            changed_defaults=self._changed_defaults(),
            notes=notes,
            tune_again=self._tune_again() if ahead is False else None,
        )

    def _compared(self, command: int, change: _Change) -> ComparedCommand:
        return ComparedCommand(
            role="baseline" if command else "recommended",
            fingerprint=self._commands[command].choice.fingerprint,
            argv=list(self._trial(command, _NEW, 0).command.words),
            change_percent=None if change.log is None else percent(change.log),
            change_ci95=None if change.log is None else (percent(change.low), percent(change.high)),
            launches=sum(number % 4 // 2 == command for number in self._rows),
            failure=change.failure,
        )

    def _still_ahead(self, change: _Change) -> bool | None:
        """Return whether the recommended command beats the baseline on the new version; None if
        unknown."""
        mine, theirs = (self._scores(self._launches_of(command, _NEW)) for command in range(2))
        if not mine or not theirs:
            return False if change.failure and theirs else None
        low, high = repeated_interval([self._look(theirs, mine, 1.0)])
        return None if low <= 0 <= high else low > 0

    def _broken_limits(self) -> list[str]:
        """List the limits that the recommended command meets only on the old version."""

        def violates(limit: str, version: int) -> bool:
            rows = self._launches_of(0, version)
            beyond = [scores_of(self._spec, row.result).violations.get(limit) for row in rows]
            return mean([one for one in beyond if one is not None] or [0.0]) > 0

        return [
            f"it violates {limit} on {self._to_version}"
            for limit in sorted(map(str, self._spec.slos))
            if violates(limit, _NEW) and not violates(limit, _OLD)
        ]

    def _changed_defaults(self) -> list[Json]:
        """Compare the recommended command's resolved settings on both versions."""
        ends = [self._launches_of(0, version)[-1] for version in (_OLD, _NEW)]
        versions = []
        given = set[str]()
        try:
            for side, row in enumerate(ends):
                prepared = self._versions.get(side)
                version = row.trial.engine_version
                installed = prepared.spec.installed if prepared else {}
                kind = engine_of(row.engine, installed, self._library, silent)
                versions.append((kind, version))
                given |= kind.parse(row.trial.command, version).given
        except BadInput:
            # No table of that version has these options.
            versions = []
        before, after = map(_resolved, ends)
        return changed_defaults(versions, before, after, given, unstated=True)

    def _tune_again(self) -> str:
        """Return the command that tunes again with the new version, from the study."""
        spec = self._spec
        new = self._versions[_NEW].spec
        backend = self._backend
        names = {one.name: one.name for one in spec.engines}
        if backend.predicted:
            names |= {one.name: f"{one.name}=={one.version}" for one in new.engines}
        asked = spec.with_fields(
            installed={**spec.installed, **new.installed},
            images={**spec.images, **new.images},
            on=backend.on,
            engines=tuple(one.with_fields(name=names[one.name]) for one in spec.engines),
            sources=(spec.study,),
        )
        return redact.text(command_line(asked, backend.unused_options))


def _folder_of(study: Path, version: str, backend: Backend) -> Path:
    """Return the folder of a comparison in a study's: each backend has its own, so that it takes up
    no other one's launches."""
    usual = study / REGRESS / version
    own = usual.with_name(f"{version}-{backend.kind}")
    note = usual / _BACKEND
    if note.is_file():
        return usual if note.read_text() == backend.kind else own
    # Earlier versions left no note.
    rows = [row for row in read_launches(usual / RESULTS) if row.result.metrics]
    kinds = {(row.result.evidence, bool(row.trial.command.container)) for row in rows}
    return usual if kinds <= {(backend.evidence, backend.contained)} else own


def _compared_commands(done: Recommendation, with_baseline: bool) -> list[StudiedCommand]:
    """Return the commands to compare, the recommended one first; raises `BadInput` for none."""
    best = done.recommended
    base = done.baseline
    if best is None or best.external or best.stand_in:
        raise BadInput(
            f"study {done.study!r} has no recommended command to launch ({done.verdict.value})"
        )
    known = [StudiedCommand("recommended", best)]
    if not with_baseline:
        return known
    if base is None:
        raise BadInput(
            f"--with-baseline: the baseline of study {done.study!r} did not run; remove the option"
        )
    alone = base.fingerprint == best.fingerprint
    return known if alone else [*known, StudiedCommand("baseline", base)]


def _resolved(row: Launch) -> Knobs:
    """Return the configuration that an engine reports for a command."""
    asked, resolved = row.trial.configuration, row.result.resolved
    return (resolved.applied_to(asked) if resolved else asked).knobs
