"""Published recipes, commands for a model on a node under a load: as baseline, and as good starts
of the search."""

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import yaml

from autotune.base import BadInput, MalformedFile, StringDict, by_key
from autotune.engines import (
    Command,
    Configuration,
    Context,
    Engine,
    EngineCard,
    FailureKind,
    HardwareCard,
    Library,
    broken_rules,
    command_of,
    effective,
    engine,
)
from autotune.engines.command import on_all_gpus
from autotune.engines.expression import evaluate, fill, fill_value, names
from autotune.engines.installed import find, named_binaries
from autotune.engines.library import line_of, load
from autotune.engines.rewrite import translate
from autotune.engines.schema import Recipe, holding

from ..backends import Backend
from ..study.options import RunOptions
from .names import engine_and_version

LOADS = (1, 16, 64, 256, math.inf)
"""Numbers of requests in flight at which the conditions of recipes are checked; the last one
    stands for an unknown load."""


def recipes_of(card: EngineCard, context: Context) -> list[Recipe]:
    """Return the recipes that apply to a model, a node and a version of the engine, in the card's
    order."""
    return holding(card.recipes, context.scope({}), context.version)


def published(kind: Engine, recipe: Recipe, context: Context) -> Command:
    """Return a recipe's command for a model and a load, in the option names of the engine's
    version.

    Its server stands on all GPUs of the study: several times, if it takes fewer. Raises `BadInput`
    as `Engine.parse` does.
    """
    scope = context.scope({}) | {"model": context.model.id}
    words = shlex.split(recipe.command)
    command = command_of([word if '"' in word else fill(word, scope) for word in words])
    files = {}
    if recipe.config:
        text = yaml.safe_dump(fill_value(recipe.config, scope), sort_keys=False)
        files = {kind.card.config_file: text}
    command, _ = translate(kind, replace(command, files=files), context.version)
    knobs = kind.knobs(kind.parse(command, context.version), context).knobs
    return on_all_gpus(command, knobs, context.gpus, context.hardware.vendor)


def read_recipe(kind: Engine, recipe: Recipe, context: Context) -> Configuration:
    """Read a recipe's effective configuration; raises `BadInput` if the engine's parser refuses the
    command."""
    parsed = kind.parse(published(kind, recipe, context), context.version)
    return effective(kind.card, kind.knobs(parsed, context), context)


def known_recipes(kind: Engine, context: Context) -> dict[str, Configuration]:
    """Return the applicable recipes, name to configuration, that the engine's parser and the rules
    accept."""
    known = {}
    for recipe in recipes_of(kind.card, context):
        with suppress(BadInput):
            read = read_recipe(kind, recipe, context)
            rules = broken_rules(kind.card, read, context)
            if all(rule.kind is FailureKind.RULE for rule in rules):
                known[recipe.name] = read
    return known


def with_recipe(
    options: RunOptions,
    context: Context,
    engines: Sequence[str],
    backend: Backend,
    library: Library,
) -> tuple[RunOptions, str | None, StringDict, list[str]]:
    """Replace ``--baseline recipe[:ENGINE]`` by the command of the first engine with a recipe; with
    files and a note.

    Raises `BadInput` naming the models and nodes that have recipes where none applies.
    """
    asked, _, named = (options.baseline or "").partition(":")
    if asked != "recipe":
        return options, None, {}, []
    kinds = [engine(name, library) for name in ([named] if named else engines)]
    for kind in kinds:
        version = _version_here(kind, backend, options, context.hardware, library)
        here = replace(context, version=version)
        for recipe in recipes_of(kind.card, here) if version else ():
            command = published(kind, recipe, here)
            note = (
                f"the baseline is the recipe {recipe.name} of {kind.name}, as published at "
                f"{recipe.source}"
            )
            baseline = replace(command, files={}).shell()
            return replace(options, baseline=baseline), kind.name, dict(command.files), [note]
    found = ((one.model.id, one.hardware.name) for _, _, one in _everywhere(kinds, library))
    nodes = by_key(dict.fromkeys(found))
    known = "; ".join(f"{model} on {', '.join(names)}" for model, names in nodes.items())
    raise BadInput(
        f"--baseline {options.baseline}: no recipe of {', '.join(kind.name for kind in kinds)} is "
        f"known for {context.model.id} on {context.gpus} x {context.hardware.name}; there are "
        f"recipes for {known or 'nothing'}"
    )


def _version_here(
    kind: Engine, backend: Backend, options: RunOptions, hardware: HardwareCard, library: Library
) -> str:
    """Return the version that launches start, in containers the image's; empty if the engine is not
    installed."""
    if backend.installed:
        with suppress(BadInput):
            program = named_binaries(options.engine_bins, library).get(kind.name)
            return find(kind.card, program).release
        return ""
    named = dict(engine_and_version(text, library) for text in options.engines).get(kind.name)
    images = backend.images(
        options.images, [kind.card], {kind.name: named} if named else {}, hardware, library
    )
    return kind.version(images.get(kind.name, (named, ""))[0])


def _everywhere(
    kinds: Sequence[Engine], library: Library
) -> Iterator[tuple[Engine, Recipe, Context]]:
    """Yield every recipe with the known versions, models, nodes and typical loads to which it
    applies."""
    for kind in kinds:
        for recipe in kind.card.recipes:
            loads = LOADS if "workload" in names(recipe.when) else LOADS[-1:]
            for model, node, most in product(
                library.models.values(), library.hardware.values(), loads
            ):
                context = Context(model, node, node.gpus, "", concurrency=most)
                if evaluate(recipe.when, context.scope({})):
                    for version in filter(recipe.is_for, kind.card.versions):
                        yield kind, recipe, replace(context, version=version)


def check_recipes(file: Path, library: Library) -> None:
    """Check the recipes of a card for every applicable version, model and node; raises
    `MalformedFile`."""
    card = load(file, EngineCard)
    kinds = [engine(card.engine, library)] if card.recipes else []
    for kind, recipe, context in _everywhere(kinds, library):
        try:
            rules = broken_rules(kind.card, read_recipe(kind, recipe, context), context)
            refusals = [f"rule {rule.name}" for rule in rules if rule.kind is not FailureKind.RULE]
        except BadInput as error:
            refusals = [str(error)]
        if refusals:
            where = (
                f"{recipe.name}, {context.version} with {context.model.id} on "
                f"{context.hardware.name}"
            )
            line = line_of(file, ("recipes", kind.card.recipes.index(recipe)))
            raise MalformedFile(file, f"{where}: {refusals[0]}", line)
