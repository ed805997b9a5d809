"""What a server would get from an export: each form's words, read as the program that reads it
does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml
from dstack._internal.utils.interpolator import VariablesInterpolator


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def kind(text: str, wanted: str) -> dict[str, Any]:
    """The manifest of that kind."""
    return next(document for document in documents(text) if document["kind"] == wanted)


def server(text: str) -> dict[str, Any]:
    """The container of a Deployment that serves."""
    found: dict[str, Any] = kind(text, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def kubernetes_words(text: str, variables: Mapping[str, str]) -> list[str]:
    container = server(text)
    return [expanded(word, variables) for word in container.get("args") or container["command"]]


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' rule: ``$(NAME)`` is the variable, ``$$`` one ``$``, all else stands for
    itself."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda m: "$" if m[0] == "$$" else variables.get(m[1] or "", m[0]),
        word,
    )


def compose_service(text: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The service after Compose's interpolation: ``${NAME…}`` is the variable, ``$$`` one ``$``."""
    (document,) = documents(text)
    service: dict[str, Any] = _interpolated(document["services"]["server"], variables)
    return service


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolated(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    return re.sub(
        r"\$\$|\$\{(\w+)[^}]*\}", lambda m: "$" if m[0] == "$$" else variables[m[1]], value
    )


def dstack_started(text: str) -> tuple[list[str], dict[str, str]]:
    """The words of the last command and its variables, after what `dstack apply` and the server
    replace in them."""
    (document,) = documents(text)
    run = VariablesInterpolator({"run": {"args": ""}}, skip=["secrets", "groups"])
    words = shlex.split(run.interpolate_or_error(document["commands"][-1]).removeprefix("exec "))
    environment = [setting for setting in document["env"] if "=" in setting]
    # The runner replaces ${NAME} in them.
    assert not any("$" in setting for setting in environment)
    if words[0] == "env":
        program = next(i for i, word in enumerate(words[1:], 1) if "=" not in word)
        environment += words[1:program]
        words = words[program:]
    return words, dict(setting.split("=", 1) for setting in environment)


def gpustack_words(text: str, program: list[str]) -> list[str]:
    """What GPUStack makes of a document: its own program and model in front of the parameters, or
    the whole command."""
    (document,) = documents(text)
    if "run_command" not in document:
        words = [*program, document["huggingface_repo_id"]]
        for entry in document["backend_parameters"]:
            words += shlex.split(entry) if entry.startswith("-") else [entry]
        return words
    words = shlex.split(document["run_command"])
    script = words[2].rpartition("exec ")[2] if words[:2] == ["bash", "-c"] else shlex.join(words)
    given = {
        "{{model_path}}": document["huggingface_repo_id"],
        "{{worker_ip}}": "10.0.0.1",
        "{{port}}": "40000",
    }
    return [given.get(word, word) for word in shlex.split(script)]
