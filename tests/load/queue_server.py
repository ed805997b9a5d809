"""A server in virtual time, small enough to be checked by eye: what the windows are tried on.

It computes in steps, as engines do: each step gives every running answer one token and computes up
to `CHUNK` prompt tokens; at most `slots` requests are in the batch, the others wait in order.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from autotune.load.metrics.records import RequestRecords

CHUNK = 2048
STEP_S, PER_STREAM_S, PER_PROMPT_TOKEN_S = 0.01, 1e-4, 2e-5


@dataclass(frozen=True)
class Load:
    """Requests in the order of sending: token counts, when they may be sent, and how many may be in
    flight."""

    read: np.ndarray
    written: np.ndarray
    send_s: np.ndarray | None = None
    concurrency: int | None = None

    def __len__(self):
        return len(self.read)

    def repeated(self, times, generator):
        """The same requests over and over, each time in another order."""
        order = np.concatenate([generator.permutation(len(self)) for _ in range(times)])
        return replace(self, read=self.read[order], written=self.written[order])


LENGTHS = {
    "equal": lambda n, generator: (np.full(n, 320), np.full(n, 80)),
    "prompts": lambda n, generator: (np.full(n, 2000), np.full(n, 50)),
    "answers": lambda n, generator: (np.full(n, 100), np.full(n, 400)),
    "chat": lambda n, generator: (
        generator.lognormal(4.7, 1.1, n).clip(1, 1000).astype(int),
        generator.lognormal(4.5, 1.0, n).clip(1, 800).astype(int),
    ),
}


def serve(load, slots, slow_down=lambda now_s: 1.0):
    """What a client sees of a load; `slow_down` makes steps longer by a factor that depends on the
    time."""
    return _Server(load, slots, slow_down).run()


class _Server:
    def __init__(self, load, slots, slow_down):
        self.load, self.slots, self.slow_down = load, slots, slow_down
        n = len(load)
        self.send_s = np.zeros(n) if load.send_s is None else load.send_s
        self.sent_s, self.first_s, self.finished_s = np.zeros(n), np.zeros(n), np.zeros(n)
        self.to_read, self.got = load.read.astype(float), np.zeros(n)
        self.waiting, self.reading, self.writing = deque(), deque(), np.empty(0, int)
        self.next = self.done = 0
        self.now_s = self.freed_s = 0.0
        self.times_s, self.counts = [], []

    def run(self):
        load = self.load
        while self.done < len(load):
            self.arrive()
            if self.reading or len(self.writing):
                self.step()
            else:
                self.now_s = self.send_s[self.next]
        ok = np.ones(len(load), dtype=bool)
        columns = (
            self.sent_s,
            self.first_s,
            self.finished_s,
            load.read.astype(float),
            load.written.astype(float),
            ok,
        )
        return RequestRecords(
            *columns, token_s=np.array(self.times_s), token_n=np.array(self.counts)
        )

    def arrive(self):
        most = self.load.concurrency or len(self.load)
        while (
            self.next < len(self.load)
            and self.next - self.done < most
            and self.send_s[self.next] <= self.now_s
        ):
            self.sent_s[self.next] = max(self.send_s[self.next], self.freed_s)
            self.waiting.append(self.next)
            self.next += 1
        while self.waiting and len(self.reading) + len(self.writing) < self.slots:
            self.reading.append(self.waiting.popleft())

    def step(self):
        left, begun = CHUNK, []
        while self.reading and left:
            piece = min(left, self.to_read[self.reading[0]])
            self.to_read[self.reading[0]] -= piece
            left -= piece
            if not self.to_read[self.reading[0]]:
                begun.append(self.reading.popleft())
        seconds = STEP_S + PER_STREAM_S * len(self.writing) + PER_PROMPT_TOKEN_S * (CHUNK - left)
        self.now_s += seconds * self.slow_down(self.now_s)
        self.first_s[begun] = self.now_s
        self.writing = np.concatenate([self.writing, np.array(begun, int)])
        if len(self.writing):
            self.got[self.writing] += 1
            self.times_s.append(self.now_s)
            self.counts.append(float(len(self.writing)))
        ended = self.got[self.writing] >= self.load.written[self.writing]
        self.finished_s[self.writing[ended]] = self.now_s
        if ended.any():
            self.done, self.freed_s = self.done + int(ended.sum()), self.now_s
        self.writing = self.writing[~ended]
