"""Make the executor named by ``--executor``, and set Ray's environment before its import."""

import os
import secrets
import tempfile
from collections.abc import Sequence

from autotune.base import BadInput, Evidence, beside
from autotune.engines import parse_yaml

from ..backends import EvaluationSetup, backend_of
from ..study.spec import check_executor, is_local
from . import Executor, LocalExecutor
from .side_by_side import SideBySideExecutor, shares_of

_LONGEST_TMPDIR = (
    40  # Characters of a folder below which the paths of Ray's sockets, 107 at most, still fit
)


def executor_for(
    name: str, setup: EvaluationSetup, needs: Sequence[int], most_nodes: int
) -> Executor:
    """Make the executor of a name: ``local``, ``local:N``, ``ray`` or ``ray:HOST:PORT``.

    `needs` has the numbers of GPUs that candidates need; nodes, or places on this one, are
    `most_nodes` at most. Raises `UnknownName` where no executor has this name, `BadInput` where Ray
    is not installed or no node fits.
    """
    check_executor(name)
    if is_local(name):
        shares = shares_of(setup.spec, most_nodes, setup.notify)
        if len(shares) > 1:
            return SideBySideExecutor(setup, shares)
        return LocalExecutor(setup.evaluator())
    address = name.partition(":")[2] or os.environ.get("RAY_ADDRESS", "")
    address = "" if address in ("auto", "local") else address
    # Start a cluster of this machine only where no launch needs GPUs.
    own_cluster = not address and backend_of(setup.spec).evidence is not Evidence.MEASURED
    prepare_environment(own_cluster)
    try:
        # Imported when asked for: it takes seconds.
        from .ray import RayExecutor
    except ImportError as error:
        raise BadInput(
            f"--executor {name} needs Ray Tune ({error}); install it with: pip install '.[ray]' in "
            "a clone of autotune"
        ) from error
    return RayExecutor(address, own_cluster, setup, needs, most_nodes)


def prepare_environment(own_cluster: bool) -> None:
    """Set Ray's environment variables before its import. The user's harmless settings remain.

    A cluster of this machine alone gets a token that nobody else has; Ray would leave one in the
    user's home, which changes how clusters that are started later behave. Source:
    https://docs.ray.io/en/latest/ray-security/token-auth.html.
    """
    settings = parse_yaml(beside(__file__, "ray_environment.yaml"))
    os.environ.update(settings["always"])
    for name, value in settings["unless_set"].items():
        os.environ.setdefault(name, value)
    if own_cluster and len(tempfile.gettempdir()) > _LONGEST_TMPDIR:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    if own_cluster and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
