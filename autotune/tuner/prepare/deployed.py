"""A deployment as ``--baseline``: its model and its GPUs count unless options name others."""

import os
from collections.abc import Sequence
from dataclasses import replace

from autotune.base import BadInput, StringMap, frozen
from autotune.engines import Library
from autotune.engines.machine import node

from ..study.options import RunOptions
from .deployments import read


@frozen
class Deployed:
    """Additions of a deployment to a study: notes, its command's files, and by engine its version
    and its image."""

    notes: Sequence[str] = ()
    files: StringMap = {}
    versions: StringMap = {}
    image: StringMap = {}

    def images(self, versions: StringMap) -> list[str]:
        """Return the image as ``ENGINE=IMAGE``; none where another version was asked for."""
        kept = versions.items() >= self.versions.items()
        return [f"{name}={image}" for name, image in self.image.items() if kept]


def with_deployment(options: RunOptions, library: Library) -> tuple[RunOptions, Deployed]:
    """Replace a deployment by its engine's own command, with notes.

    Raises `BadInput` for one that cannot be read.
    """
    try:
        found = read(options.baseline or "", library)
        if found is None:
            return options, Deployed()
        notes, model, command = list(found.notes), found.model, found.command
    except BadInput as error:
        raise BadInput(f"--baseline: {error}") from error
    if model.startswith(("/", ".")) and not os.path.exists(model):
        if not options.model:
            raise BadInput(
                f"--model is missing: {model} of the deployment is no folder of this machine"
            )
        notes.append(f"the deployment's {model} is taken for {options.model}")
        argv = [word.replace(model, options.model) for word in command.argv]
        command = replace(command, argv=tuple(argv))
    if found.gpus and options.hardware:
        uses = found.gpus * command.replicas
        have = node(options.hardware, library).gpus
        asked = options.gpus or uses
        if asked != uses:
            notes.append(f"the deployment has {uses} GPUs; --gpus {asked} are tuned")
        elif asked != have:
            notes.append(f"{asked} of the node's {have} GPUs are tuned, as the deployment has them")
        options = replace(options, gpus=asked)
    name, typed = found.kind.name, replace(command, files={}).shell()
    return replace(options, model=options.model or model, baseline=typed), Deployed(
        notes,
        command.files,
        {name: found.version} if found.version else {},
        {name: found.container.image} if found.container.image else {},
    )
