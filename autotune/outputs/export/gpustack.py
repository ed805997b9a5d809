"""``gpustack.yaml``: the recommended server as a deployment that GPUStack imports.

vLLM and SGLang are backends of GPUStack's own and get their parameters; an engine that is none, or
that needs files of its own, is a custom backend with its whole command. Fields: GPUStack 2.3,
``gpustack/schemas/models.py`` (``ModelCreate``) and ``deployment_document.py``;
https://docs.gpustack.ai, "Model Deployment Management" and "Inference Backend Management".
"""

from __future__ import annotations

import shlex

from autotune.servers.docker_run import FILES_FOLDER

from . import shell
from .winner import (
    SHARED_MEMORY_GIB,
    Container,
    Winner,
    asked_for,
    container_of,
    groups,
    heading,
    yaml_file,
)

_BACKENDS = {"vllm": "vLLM", "sglang": "SGLang"}
_ADDRESS_WORDS = (
    4  # ``--host ANYWHERE --port PORT`` at the end of a container's command: GPUStack sets its own
)
_SHARED_MEMORY = "GPUSTACK_MODEL_RUNTIME_SHM_SIZE_GIB"


def render(winner: Winner) -> str:
    """Return the document's text."""
    container = container_of(winner)
    split = groups(container.argv[:-_ADDRESS_WORDS])
    left_out = [group[0].partition("=")[0] for group in split if asked_for(group, {})]
    left_out += [name for name in container.env if name not in container.plain_env]
    argv = [word for group in split if not asked_for(group, {}) for word in group]
    source = {"source": "huggingface", "huggingface_repo_id": container.model}
    if container.model_is_local:
        source = {"source": "local_path", "local_path": container.model}
    backend = None if container.files else _BACKENDS.get(winner.choice.engine)
    document = {
        "name": container.name,
        **source,
        "description": "; ".join(heading(winner)),
        "replicas": winner.replicas,
        "categories": ["llm"],
        "distributed_inference_across_workers": False,
        "gpu_selector": {"gpus_per_replica": winner.gpus} if container.vendor != "cpu" else None,
        "backend": backend or "Custom",
        "image_name": container.image,
        **(_parameters(winner, argv) if backend else _command(container, argv)),
        "env": {**container.plain_env, _SHARED_MEMORY: str(SHARED_MEMORY_GIB)},
    }
    about = [
        "use: import it under Models - Deployments in GPUStack 2.3 or later",
        f"Valid for {winner.recommendation.hardware}: add a worker_selector if the cluster also has other GPUs.",
        container.start_limit_source,
        *(
            f"left out because its value is a secret: {name} (GPUStack asks for API keys and reads weights itself)"
            for name in left_out
        ),
    ]
    return yaml_file(
        winner, about, {key: value for key, value in document.items() if value is not None}
    )


def _parameters(winner: Winner, argv: list[str]) -> dict[str, list[str]]:
    """Return one entry per option with its values; GPUStack sets the program and the model.

    GPUStack splits an entry that begins with an option as a shell does, any other is one word
    (``flatten_to_argv``).
    """
    card = winner.engine.card
    split = groups(["", *(winner.engine.arguments(argv) or ())])[1:]
    named = {group[0].partition("=")[0] for group in split}
    options = [
        group for group in split if group[0].partition("=")[0] != (card.model_flag or "--model")
    ]
    length = card.knobs["context_length"].emit[0].args[0]
    if length not in named:
        # GPUStack would set 8192; the engine's own default, with which this was tuned, is the
        # model's limit.
        options.append([length, str(winner.spec.model.architecture.context_limit)])
    entries: list[str] = []
    for name, *values in options:
        option, equals, value = name.partition("=")
        if shlex.join([name, *values]) == " ".join([name, *values]):
            entries.append(" ".join([name, *values]))
        else:
            entries += [
                f"{option}{equals}{shlex.quote(value)}" if equals else shlex.quote(option),
                *values,
            ]
    return {"backend_parameters": entries}


def _command(container: Container, argv: list[str]) -> dict[str, str]:
    """Return the whole command, split by GPUStack as a shell does; an inner shell writes the files
    first."""
    argv = ["{{model_path}}" if word == container.model else word for word in argv]
    serving = container.winner.engine.card.serving
    command = shlex.join([*argv, serving.host_flag, "{{worker_ip}}", serving.port_flag, "{{port}}"])
    if not container.files:
        return {"run_command": command}
    written = [
        f"mkdir -p {FILES_FOLDER}",
        f"cd {FILES_FOLDER}",
        *shell.writing(container.files),
        f"exec {command}",
    ]
    return {"run_command": shlex.join(["bash", "-c", " && ".join(written)])}
