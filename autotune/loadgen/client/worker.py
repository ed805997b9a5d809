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
from autotune.loadgen.client.messages import READY, STOP, Schedule, TaskResult, WorkerTask


def serve(tasks: Connection, answers: Connection) -> None:
    """Work until the other end of `tasks` is closed."""
    while True:
        task = tasks.recv()
        if task == STOP:
            continue  # it crossed our last result
        try:
            schedule = task.schedule()
            with event_loop() as runner:
                result = runner.run(_send(tasks, answers, task, schedule))
        except AutotuneError as error:
            answers.send(BadInput(str(error)))
            continue
        finally:
            os.set_blocking(tasks.fileno(), True)  # the loop that polled it had made it otherwise
        if result is not None:
            answers.send(result)


async def _send(tasks: Connection, answers: Connection, task: WorkerTask, schedule: Schedule) -> TaskResult | None:
    inbox = _inbox(tasks)
    async with Generator(task.target, schedule, task.timeouts) as generator:
        answers.send(READY)
        start_ns = await inbox.get()
        if start_ns == STOP:
            return None
        running = asyncio.create_task(generator.run(int(start_ns), answers.send))
        stopping = asyncio.create_task(inbox.get())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            generator.stop()
        stopping.cancel()
        log, health = await running
    return TaskResult(log, health)


def _inbox(tasks: Connection) -> asyncio.Queue[int | str]:
    inbox: asyncio.Queue[int | str] = asyncio.Queue()

    def read() -> None:
        try:
            inbox.put_nowait(tasks.recv())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to answer

    asyncio.get_running_loop().add_reader(tasks.fileno(), read)
    return inbox


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
