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

    @property
    def heading(self) -> str:
        """Return the number of servers and their GPUs; empty for one."""
        servers = f"{self.count} servers of {self.gpus} GPUs each share the load"
        return servers if self.servers else ""

    @property
    def ports(self) -> list[int]:
        """Return the port of each of several servers."""
        firsts = [int(numbers.partition(",")[0]) for numbers in numbers_of(self.servers)]
        return [self.port + first for first in firsts]

    def apart_from_port(self, command: Command) -> tuple[Command, list[str]]:
        """Split off the port where it is another one for each server: the words that give it."""
        if not self.servers:
            return command, []
        return command.apart_from_port()[0], [f"--port {port_of_gpus(self.port)}"]

    @property
    def published(self) -> str:
        """Return the address and the ports of `docker run --publish`, for a shell."""
        if self.servers:
            return f'"${{PUBLISH:-127.0.0.1}}":{port_of_gpus(self.port)}:{PORT}'
        return f'"${{PUBLISH:-127.0.0.1:{self.port}}}:{PORT}"'

    def gpu_choice(self, chosen: StringMap) -> StringMap:
        """Return the variables that choose GPUs, unless each server has its own."""
        return {} if self.servers else chosen

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

    def check_alone(self) -> None:
        """Raise `BadInput` for several servers, which are no dstack task."""
        if self.servers:
            raise BadInput(
                f"a dstack task is one server, but {self.count} are recommended: use the format "
                "dstack"
            )
