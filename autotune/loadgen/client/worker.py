"""Worker process of a load: ``python -m autotune.loadgen.client.worker IN OUT``.

The messages are those of `autotune.loadgen.client.messages`; IN and OUT are ends of two one-way
`multiprocessing.Pipe`. It lives as long as the other end of IN is held: when the process that started it is gone, by
whatever signal, it ends.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from autotune.errors import AutotuneError, BadInput, ClientFailed
from autotune.loadgen.client.generator import Generator, event_loop
from autotune.loadgen.client.messages import READY, ClientHealth, RequestLog, WorkerTask


def serve(tasks: Connection, answers: Connection) -> None:
    """Work until the other end of `tasks` is closed."""

    def start_ns() -> int:
        answers.send(READY)
        return int(tasks.recv())

    while True:
        task: WorkerTask = tasks.recv()
        try:
            schedule = task.schedule()
            with event_loop() as runner:
                generator = Generator(task.target.beginning_with(task.worker), schedule, task.timeouts)
                result: tuple[RequestLog, ClientHealth] | BadInput
                result = runner.run(generator.run(start_ns, answers.send))
        except AutotuneError as error:
            result = BadInput(str(error))
        except Exception as error:
            traceback.print_exc()  # first: who gets the answer closes the pipes, which ends this process
            answers.send(ClientFailed(f"the load client failed: {type(error).__name__}: {error}"))
            sys.exit(1)
        answers.send(result)


def main() -> None:
    """Serve the pipes whose numbers are the two arguments."""
    tasks, answers = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)
    poll = select.poll()
    poll.register(tasks.fileno(), 0)  # a hang-up is reported without being asked for

    def exit_with_parent() -> None:
        """End when nobody holds the other end of the pipe any more, whatever this process is busy with."""
        poll.poll()
        os._exit(0)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(tasks, answers)


if __name__ == "__main__":
    main()
