"""Worker process of a load: ``python -m autotune.loadgen.client.worker IN OUT``.

The messages are those of `autotune.loadgen.client.messages`; IN and OUT are ends of two one-way
`multiprocessing.Pipe`. It lives as long as the other end of IN is held: when the process that started it is gone, by
whatever signal, it ends.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from autotune.errors import AutotuneError, BadInput
from autotune.loadgen.client.generator import Generator, event_loop
from autotune.loadgen.client.messages import READY, Schedule, TaskResult, WorkerTask


def serve(tasks: Connection, answers: Connection) -> None:
    """Work until the other end of `tasks` is closed."""
    while True:
        task = tasks.recv()
        try:
            schedule = task.schedule()
            with event_loop() as runner:
                result: TaskResult | BadInput = runner.run(_send(tasks, answers, task, schedule))
        except AutotuneError as error:
            result = BadInput(str(error))
        answers.send(result)


async def _send(tasks: Connection, answers: Connection, task: WorkerTask, schedule: Schedule) -> TaskResult:
    async with Generator(task.target, schedule, task.timeouts) as generator:
        answers.send(READY)
        start_ns = await asyncio.to_thread(tasks.recv)
        return TaskResult(*await generator.run(start_ns, answers.send))


def main() -> None:
    """Serve the pipes whose numbers are the two arguments."""
    tasks, answers = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)
    threading.Thread(target=_exit_with, args=(tasks.fileno(),), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(tasks, answers)


def _exit_with(tasks: int) -> None:
    """End this process when nobody holds the other end of the pipe any more, whatever it is busy with."""
    poll = select.poll()
    poll.register(tasks, 0)  # a hang-up is reported without being asked for
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
