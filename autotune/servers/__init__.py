"""How a server starts, is watched, and ends; independent of search and load::

    with ProcessLauncher().launch(command, folder, card) as server:
        failure = server.wait_ready()
        ...  # load it, asking `failure()` when requests fail
        report = server.stop()

`process.ProcessLauncher` starts a `server.Server` as a process of this machine,
`docker.DockerLauncher` in a container, and `server.connect` finds one that somebody else runs.
Three kinds of outcome are kept apart:

* a configuration that cannot run is a *value*: `Server.wait_ready` and `Server.failure` return a
  `trial.Failure`;
* what the user has to put right (a program that is not there, a folder that cannot be written, a
  URL that does not answer, a model that is not served) raises `BadInput`, before anything was
  started;
* a server that cannot be ended, or whose port stays taken, is in `StopReport.problem`: it says
  nothing about the configuration.

The watchdog's process imports this module, so it imports nothing that takes time.
"""

from autotune.base import Strings, frozen


@frozen
class StartupTimeouts:
    """Time limits of a start, in seconds. They count from the last progress.

    Attributes:
        total_s: from launch to the first generated token, whatever the log says. A first start may
            compile kernels for 20 minutes and read 700 GB of weights.
        silence_s: without a new byte in the log. Loading prints each shard, compilation each stage.
    """

    total_s: float = 7200.0
    silence_s: float = 900.0


@frozen
class ShutdownTimeouts:
    """Time limits of processes after SIGTERM, and after SIGKILL, which a GPU driver can delay."""

    terminate_s: float = 20.0
    kill_s: float = 10.0


@frozen
class StopReport:
    """Steps taken to end a server, and the proof that it is gone.

    Attributes:
        signals: those that were needed, in order; empty when the server had ended by itself.
        survivors: processes of the launch that still live, as ``pid name (state)``, and its
            container.
        port_free: whether the server's port can be bound again.
    """

    seconds: float = 0.0
    signals: Strings = ()
    survivors: Strings = ()
    port_free: bool = True

    def left_behind(self) -> str:
        """Describe the processes that could not be ended, in a sentence; empty for none."""
        if not self.survivors:
            return ""
        return (
            f"The server could not be stopped: {', '.join(self.survivors)} outlived SIGKILL after "
            f"{self.seconds:.0f} s. State D is a process held by the GPU driver: reset the GPU or "
            "restart the node."
        )

    def problem(self) -> str:
        """Describe survivors or a taken port, in a sentence; empty for neither."""
        if self.survivors or self.port_free:
            return self.left_behind()
        return "The server is gone, but another process holds its port."
