"""Vendors' recipes, commands published for a model on a node: as baseline, and as good starts of
the search."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import yaml

from autotune.base import BadInput, MalformedFile
from autotune.engines import (
    Command,
    Configuration,
    Context,
    Engine,
    EngineCard,
    FailureKind,
    HardwareCard,
    Library,
    command_of,
    engine,
)
from autotune.engines.context import broken_rules, effective
from autotune.engines.installed import find, named_binaries
from autotune.engines.library import line_of, load
from autotune.engines.rewrite import translate
from autotune.engines.schema import Recipe, holding

from ..backends import Backend
from ..study.options import RunOptions
from .names import engine_and_version


def recipes_of(card: EngineCard, context: Context) -> list[Recipe]:
    """Return the recipes that apply to a model, a node and a version of the engine, in the card's
    order."""
    return holding(card.recipes, context.scope({}), context.version)


def published(kind: Engine, recipe: Recipe, context: Context) -> Command:
    """Return a recipe's command for a model, in the option names of the engine's version."""
    command = command_of(
        [context.model.id if word == "{model}" else word for word in shlex.split(recipe.command)]
    )
    files = (
        {kind.card.config_file: yaml.safe_dump(recipe.config, sort_keys=False)}
        if recipe.config
        else {}
    )
    return translate(kind, replace(command, files=files), context.version)[0]


def read_recipe(kind: Engine, recipe: Recipe, context: Context) -> Configuration:
    """Read a recipe's effective configuration; raises `BadInput` if the engine's parser refuses the
    command."""
    parsed = kind.parse(published(kind, recipe, context), context.version)
    return effective(kind.card, kind.knobs(parsed, context), context)


def known_recipes(kind: Engine, context: Context) -> dict[str, Configuration]:
    """Return the applicable recipes, name to configuration, that the engine's parser and the rules
    accept."""
    known: dict[str, Configuration] = {}
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
) -> tuple[RunOptions, str | None, dict[str, str], list[str]]:
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
    nodes: dict[str, dict[str, None]] = {}
    for _, _, there in _everywhere(kinds, library):
        nodes.setdefault(there.model.id, {})[there.hardware.name] = None
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
    """Yield every recipe with the known versions, models and nodes to which it applies."""
    for kind in kinds:
        places = product(library.models.values(), library.hardware.values(), kind.card.versions)
        for model, node, version in places:
            context = Context(model, node, node.gpus, version)
            yield from ((kind, recipe, context) for recipe in recipes_of(kind.card, context))


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
