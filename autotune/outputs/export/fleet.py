"""The servers of a recommendation in every format: one, or several that share its load.

Several differ in their GPUs alone. This file alone knows how many there are; the formats ask it for
the part of their text that depends on it.
"""

from collections.abc import Sequence
from string import Template

from autotune.base import BadInput, Json, StringMap, beside, frozen
from autotune.engines import Command
from autotune.engines.command import PORT, numbers_of, port_of_gpus


@frozen
class Fleet:
    """The servers of one recommendation, on `gpus` each.

    Attributes:
        port: at which people reach the server; of several, that before the first.
        servers: the settings of each of several servers, its GPUs; empty for one.
    """

    gpus: int
    port: int
    servers: Sequence[StringMap]

    @property
    def count(self) -> int:
        return len(self.servers) or 1

    def heading(self) -> list[str]:
        """Say that several servers share the load."""
        line = f"{self.count} servers of {self.gpus} GPUs each share the load"
        return [line] if self.servers else []

    # Shell scripts

    def apart_from_port(self, command: Command) -> tuple[Command, list[str]]:
        """Split off the port where it is another one for each server: the words that give it."""
        if not self.servers:
            return command, []
        return command.apart_from_port()[0], [f"--port {port_of_gpus(self.port)}"]

    def published(self) -> tuple[str, str]:
        """Return the addresses of the containers on the host, as ``--publish`` has them, and as a
        sentence."""
        if self.servers:
            published = f'"${{PUBLISH:-127.0.0.1}}":{port_of_gpus(self.port)}:{PORT}'
            return (
                published,
                "Their address is 127.0.0.1 by default; to change that: PUBLISH=0.0.0.0",
            )
        about = f"Its address is 127.0.0.1:{self.port} by default; to change that: PUBLISH=0.0.0.0"
        return f'"${{PUBLISH:-127.0.0.1:{self.port}}}:{PORT}"', f"{about}:{self.port}"

    def gpu_choice(self, chosen: StringMap) -> StringMap:
        """Return the variables that choose GPUs, unless each server has its own."""
        return {} if self.servers else chosen

    def balancer_note(self) -> list[str]:
        """Describe the load balancer that belongs in front of a script's servers."""
        if not self.servers:
            return []
        firsts = [int(numbers.partition(",")[0]) for numbers in numbers_of(self.servers)]
        ports = " ".join(f"server 127.0.0.1:{self.port + first};" for first in firsts)
        return [
            "If one server ends, all end. Load balancer in front of them, for nginx: "
            f"upstream {{ least_conn; {ports} }}"
        ]

    def script(self, settings: Sequence[str], words: Sequence[str]) -> list[str]:
        """Return the end of a script: it starts the servers with settings of the environment.

        One server replaces the script, so that signals reach it; ``env``, so that any variable name
        will do.
        """
        if not self.servers:
            start = ["exec env", *settings] if settings else ["exec"]
            return [" \\\n  ".join([*start, *words])]
        start = ["env", *(f'{name}="$gpus"' for name in self.servers[0]), *settings]
        return [
            # With the script, and with one of them, all end.
            "trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null || true; wait' EXIT",
            "trap 'exit 143' INT TERM",
            f"for gpus in {' '.join(numbers_of(self.servers))}; do",
            "  " + " \\\n    ".join([*start, *words]) + " &",
            "done",
            "wait -n",
        ]

    # Containers

    @property
    def names(self) -> list[str]:
        """Return the names of the services of Compose."""
        return [f"server-{i}" for i in range(self.count)] if self.servers else ["server"]

    def composed(self, server: Json, balancer: Json) -> tuple[Json, Json]:
        """Return the services of Compose, several behind a balancer, and its configuration file."""
        first, *others = self.names
        if not self.servers:
            return {first: server}, {}
        del server["ports"]
        server["environment"] |= self.servers[0]
        services = {first: server}
        for name, own in zip(others, self.servers[1:], strict=True):
            services[name] = {"extends": {"service": first}, "environment": dict(own)}
        nginx = Template(beside(__file__, "nginx.conf"))
        upstream = "\n    ".join(f"server {name}:{PORT};" for name in self.names)
        content = {"content": nginx.substitute(servers=upstream, port=PORT)}
        return {**services, "balancer": balancer}, {"balancer": content}

    def kubernetes_notes(self) -> list[str]:
        """Say for which pods the claim is, and how a request reaches one of several."""
        claim = "The claim stores weights and compiled kernels, for"
        if not self.servers:
            return [f"{claim} one pod at a time, on any node."]
        return [
            f"{claim} pods of one node (ReadWriteMany: of any).",
            "The Service chooses pods at random; the measurement chose the pod with the fewest "
            "requests.",
        ]

    def dstack(self) -> tuple[dict[str, int], list[str]]:
        """Return the keys of a dstack service, and what a reader should know of them."""
        if not self.servers:
            return {}, []
        note = "Replicas share a node if its fleet has blocks: set them to the node's GPUs over a replica's."
        return {"replicas": self.count}, [note]

    def check_alone(self) -> None:
        """Raise `BadInput` for several servers, which are no dstack task."""
        if self.servers:
            raise BadInput(
                f"a dstack task is one server, but {self.count} are recommended: use the format "
                "dstack"
            )
