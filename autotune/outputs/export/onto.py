"""The recommended command in a deployment of the user's own, with a reason for each change."""

import difflib
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product

import yaml

from autotune.base import BadInput, Json, Strings, redact
from autotune.engines import Command, Configuration
from autotune.engines.command import RANKS
from autotune.engines.context import effective
from autotune.engines.options import dotted, loading, readers
from autotune.tuner.prepare.deployments import read
from autotune.tuner.prepare.deployments.changes import by_name, knob_variables, steps
from autotune.tuner.study.home import library_of
from autotune.tuner.study.loads import context_of

from ..report import sentences, text
from .winner import Winner


class Onto:
    """A deployment, ``FILE[#PART]``, and the winner's command in it.

    Raises `BadInput` for one of another engine, version or model.
    """

    def __init__(self, winner: Winner, typed: str) -> None:
        spec, choice = winner.spec, winner.choice
        library = library_of(spec)
        there = read(typed, library)
        if there is None or not there.name:
            raise BadInput(f"--onto {typed}: not a file of a deployment (.sh, .yaml)")
        self.deployment = there
        card, version = there.kind.card, there.version
        known = there.model[0] in "/." or there.model in spec.model.names
        if (card.engine, version or choice.engine_version, known) != (
            choice.engine,
            choice.engine_version,
            True,
        ):
            raise BadInput(
                f"--onto {typed}: {there.model} runs there with {card.title} {version}, but study "
                f"{spec.study!r} tuned {spec.model.id} and recommends {winner.engine.card.title} "
                f"{choice.engine_version}: more than the command would change. Write a new file "
                f"with --to, or tune with --engine {card.engine}=={version}"
            )
        self._winner, self._kind, self._version = winner, there.kind, winner.parser_version
        self._context = context_of(spec, self._version, library).as_read(card)
        self._mine, self._theirs = there.command, winner.command
        self._before, self._after = map(self._runs, (self._mine, self._theirs))
        # The content of a config file that stands in the deployment, and the winner's.
        files = self._mine.files.values(), choice.files.values()
        pairs = [(own, new) for own, new in product(*files) if there.text.count(own) == 1]
        self._config = (pairs or [("{}", "{}")])[0]

    def _arguments(self, command: Command) -> Strings:
        return self._kind.arguments(command.argv) or ()

    def _runs(self, command: Command) -> Configuration:
        parsed = self._kind.parse(command, self._version)
        raw = self._kind.knobs(parsed, self._context)
        loaded = loading(self._kind, parsed, self._context, raw)
        return effective(self._kind.card, raw, loaded.context)

    def text(self) -> str:
        """Return the deployment's text; raises `BadInput` where the command has no place in it."""
        mine, (own, new) = self._mine, self._config
        arguments = self._arguments(mine)
        made = steps(self._kind, self._version, arguments, self._arguments(self._theirs))
        *_, words = arguments, *(step[2] for step in made)
        argv = (*mine.argv[: len(mine.argv) - len(arguments)], *words)
        env = {**mine.env, **self._theirs.env}
        files = mine.files if own == new else dict.fromkeys(mine.files, new)
        if self._runs(replace(self._theirs, argv=argv, env=env, files=files)) != self._after:
            needs = ", ".join(self._theirs.files) or "options that it sets otherwise"
            raise BadInput(
                f"--onto {self.deployment.name}: it has no place for all of the recommended command "
                f"({needs}); write a new file with --to"
            )
        return new.join(self._winner.put_into(self.deployment).split(own))

    def _parts(self, command: Command, config: str) -> dict[str, tuple[object, str]]:
        """Return what sets knobs in a command, by the paths at which they are read: value and text
        without secrets."""
        options = by_name(self._kind, self._version, self._arguments(command))
        variables = knob_variables(self._kind, self._version)
        return {
            **{f"args.{n}": (v, shlex.join(chain(*groups))) for n, (groups, v) in options.items()},
            **{f"env.{n}": (v, f"{n}={v}") for n, v in command.env.items() if n in variables},
            **{f"config.{k}": (v, f"{k}: {v}") for k, v in dotted(yaml.safe_load(config)).items()},
        }

    def changes(self) -> Iterator[Json]:
        """Yield what stands there before and after each change, without secrets, and what the study
        knows of it."""
        a, b = map(self._parts, (self._mine, self._theirs), self._config)
        for path in {**a, **b}:
            (old, before), (new, after) = (one.get(path, (None, "")) for one in (a, b))
            if old != new:
                yield self._change(before, after, readers(self._kind, self._version, [path]))
        for before, after in self._winner.resized(self.deployment):
            yield self._change(before, after, frozenset(RANKS))

    def _change(self, before: str, after: str, knobs: frozenset[str]) -> Json:
        """Return a change with the reason of its knobs, and their figures or None."""
        known = self._winner.recommendation
        sides = self._before.knobs, self._after.knobs
        if not knobs.isdisjoint(RANKS):
            knobs |= {*RANKS}  # A layout changes as a whole.
        moved = [name for name in sorted(knobs) if sides[0][name] != sides[1][name]]
        said = [f"{name} {' → '.join(text.scalar(side[name]) for side in sides)}" for name in moved]
        said += [f"gives up: {one.what}" for one in known.gives_up or () if one.knob in moved]
        said += [f"no effect: {one.reason}" for one in known.inert if one.knob in knobs]
        metric = self._winner.choice.objective.metric
        rows = [row for row in known.contributions if not {*row.knob.split("+")}.isdisjoint(moved)]
        said += [f"{sentences.added(row, metric)} ({row.measured_on})" for row in rows[:1]]
        reason = "; ".join(said) or "the engine's own value is the same"
        row = next(iter(rows), None)
        figures = {n: getattr(row, n, None) for n in ("gain_percent", "ci95", "odds")}
        return {"before": before, "after": after, "reason": reason, **figures}

    def notes(self) -> list[str]:
        """Return what the gain is over, and what the reader of the deployment noticed."""
        known = self._winner.recommendation
        gain = "the study's baseline was another command than this one; its gain is over that"
        if known.baseline and known.baseline.fingerprint == self._before.fingerprint:
            gain = sentences.said("gain", known)
        return [gain, "kept: everything else in the file", *self.deployment.notes]

    def lines(self, new: str) -> Iterator[str]:
        """Yield lines for the screen, without secrets: a diff, each change with its reason, notes."""
        there = self.deployment
        secrets = redact.secrets_in((), there.container.env)
        old, now = (redact.text(one, secrets).splitlines() for one in (there.text, new))
        yield from difflib.unified_diff(old, now, there.name, "recommended", n=1, lineterm="")
        told = ""
        for one in self.changes():
            reason = one["reason"] if one["reason"] != told else "as above"
            told = one["reason"]
            yield f"{one['before'] or 'added'} → {one['after'] or 'left out'}: {reason}"
        yield from self.notes()
