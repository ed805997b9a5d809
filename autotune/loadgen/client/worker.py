"""A worker process: takes shares of loads from one pipe, sends them, tells another one what it saw.

``python -m autotune.loadgen.client IN OUT``: ends of two one-way `multiprocessing.Pipe`. It lives as long as the other
end of IN is held: when the process that started it is gone, by whatever signal, it ends.

What comes and goes, in this order, for each load: in comes a `Share`, out goes `READY`, in comes the start in ns or
`STOP`, out go `Report`s, during which `STOP` may come, out goes `Done`. A share that cannot be sent is answered with
a `BadInput`.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from autotune.errors import AutotuneError, BadInput
from autotune.loadgen.client.generator import Load, Schedule, event_loop
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.worker_task import Share

READY = "ready"
STOP = "stop"


@dataclass(frozen=True, slots=True)
class Done:
    """What a share came to."""

    log: RequestLog
    health: ClientHealth


def serve(orders: Connection, answers: Connection) -> None:
    """Work until nobody gives orders any more."""
    while True:
        share = orders.recv()
        if share == STOP:
            continue  # it crossed our last `Done`
        try:
            schedule = share.schedule()
            with event_loop() as runner:
                done = runner.run(_sent(orders, answers, share, schedule))
        except AutotuneError as error:
            answers.send(BadInput(str(error)))
            continue
        finally:
            os.set_blocking(orders.fileno(), True)  # the loop that polled it had made it otherwise
        if done is not None:
            answers.send(done)


async def _sent(orders: Connection, answers: Connection, share: Share, schedule: Schedule) -> Done | None:
    inbox = _inbox(orders)
    async with Load(share.target, schedule, share.limits) as load:
        answers.send(READY)
        start_ns = await inbox.get()
        if start_ns == STOP:
            return None
        running = asyncio.create_task(load.run(int(start_ns), answers.send))
        told = asyncio.create_task(inbox.get())
        await asyncio.wait((running, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            load.stop()
        told.cancel()
        log, health = await running
    return Done(log, health)


def _inbox(orders: Connection) -> asyncio.Queue[int | str]:
    inbox: asyncio.Queue[int | str] = asyncio.Queue()

    def read() -> None:
        try:
            inbox.put_nowait(orders.recv())
        except (EOFError, OSError):
            os._exit(0)  # nobody is left to tell

    asyncio.get_running_loop().add_reader(orders.fileno(), read)
    return inbox


def main() -> None:
    """Serve the pipes whose numbers are the two arguments."""
    orders, answers = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)
    threading.Thread(target=_leave_with, args=(orders.fileno(),), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(orders, answers)


def _leave_with(orders: int) -> None:
    """End this process when nobody holds the other end of the pipe any more, whatever it is busy with."""
    watch = select.poll()
    watch.register(orders, 0)  # a hang-up is told without being asked for
    watch.poll()
    os._exit(0)
