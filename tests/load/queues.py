"""Queues in virtual time whose capacity is known: one server, first come, first served.

A request waits, is served, and has its two tokens at once when that ends, so TTFT is the whole time
in the queue.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from autotune.load.capacity.search import LoadSearch
from autotune.load.metrics.records import RequestRecords
from autotune.load.workloads import load_workload

WORKLOAD = load_workload("random:10:2")


def open_queue(sent_s, service_s):
    """When requests end that are sent at these times (D. V. Lindley's recursion)."""
    ends = np.empty(len(sent_s))
    free = 0.0
    for i, (sent, service) in enumerate(zip(sent_s.tolist(), service_s.tolist(), strict=True)):
        free = max(free, sent) + service
        ends[i] = free
    return ends


def closed_queue(begins_s, service_s):
    """When requests are sent and end if each stream, from its begin on, sends its next one when one
    ends."""
    sent, ends = np.empty(len(service_s)), np.empty(len(service_s))
    free, waiting = 0.0, sorted(begins_s.tolist())
    for i, service in enumerate(service_s.tolist()):
        sent[i] = heappop(waiting)
        free = max(free, sent[i]) + service
        ends[i] = free
        heappush(waiting, free)
    return sent, ends


def records_of(sent_s, ends_s, ok=None):
    n = len(sent_s)
    fine = np.ones(n, dtype=bool) if ok is None else ok
    return RequestRecords(sent_s, ends_s, ends_s, np.full(n, 10.0), np.full(n, 2.0), fine, token_s=ends_s,
                          token_n=np.full(n, 2.0))  # fmt: skip


class Queue:
    """One server with a mean rate of service; ``spread`` 0: every service takes as long, 1:
    exponential."""

    def __init__(self, rate, spread=0.0, seed=0, slower=lambda load: 1.0):
        self.rate, self.spread, self.slower = rate, spread, slower
        self.draw = np.random.default_rng(seed)
        self.requests = self.seconds = 0

    def send(self, probe, seed):
        requests = probe.workload(WORKLOAD).draw(0, probe.seed(seed))
        mean_s = self.slower(probe.load) / self.rate
        service_s = mean_s * (
            (1 - self.spread) + self.spread * self.draw.standard_exponential(len(requests))
        )
        if probe.by == "rate":
            sent, ends = requests.send_s, open_queue(requests.send_s, service_s)
        else:
            sent, ends = closed_queue(requests.begins_s, service_s)
        self.requests += len(requests)
        self.seconds += float(ends.max())
        return records_of(sent, ends)


def find(by, slos, server, seed=0, most=1000, confirm_s=0.0):
    """The whole search; its lines too."""
    search, lines = (
        LoadSearch(by, slos, load_workload(f"random:1:1:{most}"), confirm_s=confirm_s),
        [],
    )
    while (probe := search.ask()) is not None:
        lines.append(search.tell(server.send(probe, seed)))
    return search.found, lines
