"""How long a load that is under way will take as a whole, and how sure that is.

A load in which new answers begin as others end goes by turnovers, as in `autotune.metrics.steady`: with S answers
written at once, each place in the batch changes hands once in S beginnings. A request keeps its place for ``p`` seconds
per prompt token and ``q`` per token of its answer: ``q`` is seen of the answers that ended, and ``p`` is what the
turnovers took beside that. So the rest of the load is known from its requests' lengths, which are planned. At the end
no more requests come, and steps become shorter as the batch empties, down to the part that does not depend on it.

A load that is begun as a whole has no turnovers: then the forecast lies in the middle of what its tokens and what its
answers say, and the wider they are apart the less sure it is.

Measured on 37 simulated configurations of DeepSeek-V3.2 on eight H200 under nine loads, with 32 requests or more
in turnovers: ln(duration) was 0.02 too small to 0.05 too large on average, by load, with a spread of 0.004 to 0.08.
`Forecast.sd` is meant to be too large rather than too small; ``benchmarks/fidelity.py`` shows how often it held.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats
from autotune.metrics.records import RequestRecords
from autotune.metrics.steady import under_way

LEAST_REQUESTS = 32
"""Requests that the turnovers must hold: 16 in each half. With fewer, lengths as in chats were 30 % off and more."""

_FIXED_STREAMS = 50.0
"""Streams whose own share of a decode step is as long as the share that all have in common, the weights' reading."""

_FIXED_SHARE = 0.25
"""That share is at least this part of the streams: a full batch is never more than five times as slow as one stream."""

_MODEL_SD = 0.02
_LENGTHS_SD = 0.8
_DRAIN_SD = 0.8
_BURST_SD = 0.05
_APART_SD = 0.5
"""Standard deviations of ln(duration): of the model by itself; times the lengths' own spread over the root of the
requests seen, of the share of the rest; of the share of the drain; without turnovers, of the model by itself, and as a
part of the logarithm by which what tokens and answers say is apart."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A load at one moment; columns of shape (n,) with one element per planned request, NaN for what is not yet.

    Attributes:
        now_s: the moment, on the clock of the columns.
        read: prompt tokens.
        wanted: tokens of the answer.
        begun_s: first token, or when it was sent where answers are not streamed.
        written: tokens of its answer that had come; 0 where that is not told.
    """

    now_s: float
    read: Floats
    wanted: Floats
    sent_s: Floats
    begun_s: Floats
    finished_s: Floats
    written: Floats

    @classmethod
    def until(cls, run: RequestRecords, now_s: float, streaming: bool = True) -> Seen:
        """What was to be seen of a finished run, its requests in the order of sending, at an earlier moment.

        Answers that were under way are taken to have come evenly.
        """
        begun_s = run.first_token_s if streaming else run.sent_s
        took_s = np.maximum(run.finished_s - begun_s, 1e-9)
        share = np.clip((now_s - begun_s) / took_s, 0.0, 1.0)
        sent_s, begun_s, finished_s = (
            np.where(column <= now_s, column, np.nan) for column in (run.sent_s, begun_s, run.finished_s)
        )
        return cls(now_s, run.input_tokens, run.output_tokens, sent_s, begun_s, finished_s, share * run.output_tokens)

    @property
    def start_s(self) -> float:
        return float(np.nanmin(self.sent_s))

    @property
    def elapsed_s(self) -> float:
        return self.now_s - self.start_s

    def tokens_since(self, since_s: float) -> float:
        """Prompt and answer tokens from a moment on; those of an answer are taken to have come evenly."""
        begun = ~np.isnan(self.begun_s)
        begun_s, written, wanted = self.begun_s[begun], self.written[begun], self.wanted[begun]
        finished_s = self.finished_s[begun]
        ended = ~np.isnan(finished_s)
        until_s, came = np.where(ended, finished_s, self.now_s), np.where(ended, wanted, written)
        share = (until_s - np.maximum(begun_s, since_s)) / np.maximum(until_s - begun_s, 1e-9)
        return float(self.read[begun][begun_s > since_s].sum() + (np.clip(share, 0.0, 1.0) * came).sum())


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long a load takes as a whole.

    Attributes:
        sd: standard deviation of ln(`duration_s`).
    """

    duration_s: float
    sd: float

    def surely_above(self, limit_s: float, sds: float) -> bool:
        """Whether it takes longer than a limit even if it is so many standard deviations too long."""
        return self.duration_s * math.exp(-sds * self.sd) > limit_s


class Turnovers:
    """The turnovers of a load so far; see the top of this file.

    Attributes:
        count: how many there were.
        requests: how many they hold.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        begun, ended = (np.flatnonzero(~np.isnan(column)) for column in (seen.begun_s, seen.finished_s))
        streams = under_way(seen.begun_s[begun], seen.finished_s[ended], ends_first=False)[1] if len(begun) else [0]
        self.streams = max(int(max(streams)), 1)
        self._order = begun[np.argsort(seen.begun_s[begun], kind="stable")]
        at = slice(self.streams - 1, None, self.streams)
        self._marks_s = seen.begun_s[self._order][at]
        self._read, self._wanted = (np.cumsum(column[self._order])[at] for column in (seen.read, seen.wanted))
        self._ended = ended
        self.count = max(len(self._marks_s) - 1, 0)
        self.requests = self.count * self.streams

    @property
    def enough(self) -> bool:
        """Whether each half holds something to go by."""
        half = self.count // 2
        if half < 1 or self.requests < LEAST_REQUESTS:
            return False
        return bool(self._marks_s[0] < self._marks_s[half] < self._marks_s[self.count])

    def whole(self) -> Forecast:
        """The load, given what has happened and that the rest goes on like it."""
        known_s = float(self._marks_s[-1]) - self._seen.start_s
        found = self._forecast(known_s, 0, self.count, self.count)
        return Forecast(max(found.duration_s, self._seen.elapsed_s), found.sd)

    def halves(self) -> tuple[Forecast, Forecast]:
        """The load if all of it had gone as the first half of the turnovers did, and as the second half did.

        A batch that took longer to fill than a turnover took was cold: then it counts as one turnover.
        """
        half = self.count // 2
        filled_s = float(self._marks_s[0]) - self._seen.start_s
        pairs = ((0, half), (half, self.count))
        first, second = (self._forecast(min(filled_s, self._per_turnover_s(i, j)), i, j, 0) for i, j in pairs)
        return first, second

    def _per_turnover_s(self, i: int, j: int) -> float:
        return float(self._marks_s[j] - self._marks_s[i]) / (j - i)

    def _forecast(self, known_s: float, i: int, j: int, since: int) -> Forecast:
        """As turnovers i to j; `known_s` had passed at mark `since`."""
        seen = self._seen
        per_read_s, per_written_s = self._costs(i, j)
        read, wanted = seen.read.sum() - self._read[since], seen.wanted.sum() - self._wanted[since]
        rest_s = float(per_read_s * read + per_written_s * wanted) / self.streams
        drain_s = self._drain_s(per_written_s)
        duration_s = known_s + rest_s + drain_s
        spread = float(seen.wanted.std() / seen.wanted.mean()) / math.sqrt((j - i) * self.streams)
        sds = (_MODEL_SD, _LENGTHS_SD * spread * rest_s / duration_s, _DRAIN_SD * drain_s / duration_s)
        return Forecast(duration_s, math.hypot(*sds))

    def _costs(self, i: int, j: int) -> tuple[float, float]:
        """Seconds of a place in the batch per prompt token and per token of an answer."""
        seen, begin_s, end_s = self._seen, self._marks_s[i], self._marks_s[j]
        ended = self._ended[(seen.finished_s[self._ended] > begin_s) & (seen.finished_s[self._ended] <= end_s)]
        places_s = self.streams * float(end_s - begin_s)
        read, wanted = self._read[j] - self._read[i], self._wanted[j] - self._wanted[i]
        writing_s = (seen.finished_s[ended] - seen.begun_s[ended]).sum()
        per_written_s = float(writing_s / max(seen.wanted[ended].sum() - len(ended), 1.0))
        if per_written_s * wanted > places_s or read <= 0:
            return 0.0, places_s / float(wanted)
        return (places_s - per_written_s * float(wanted)) / float(read), per_written_s

    def _drain_s(self, per_written_s: float) -> float:
        """From the last beginning to the end: the last batch begins as the latest one did."""
        last = self._seen.wanted[-self.streams :]
        begun_s = self._seen.begun_s[self._order][self.count * self.streams : (self.count + 1) * self.streams]
        ages_s = float(self._marks_s[-1]) - begun_s[-len(last) :]
        return _emptied_s(last - ages_s / max(per_written_s, 1e-12), per_written_s, self.streams)


def forecast(seen: Seen) -> Forecast | None:
    """How long the load will take, by the best that is known of it; None while no answer has begun."""
    turnovers = Turnovers(seen)
    return turnovers.whole() if turnovers.enough else _without_turnovers(seen, turnovers.streams)


def _without_turnovers(seen: Seen, streams: int) -> Forecast | None:
    """Between the least and the most that its tokens and its answers say.

    By tokens it goes on at the pace so far, prompts included. By answers those under way are written on at their own
    pace, and faster as others end or not, and those that wait take the first place to be free.
    """
    begun, ended = ~np.isnan(seen.begun_s), ~np.isnan(seen.finished_s)
    written = np.where(ended, seen.wanted, np.minimum(seen.written, seen.wanted))
    writing = begun & ~ended
    of = writing if written[writing].sum() else begun
    if not written[of].sum():
        return None
    until_s = np.where(ended, seen.finished_s, seen.now_s)
    pace_s = float((until_s - seen.begun_s)[of].sum() / written[of].sum())
    left, waiting = (seen.wanted - written)[writing], seen.wanted[~begun]
    rests_s = [_queued_s(left, waiting, streams) * pace_s]
    if not len(waiting):
        rests_s.append(_emptied_s(left, pace_s, int(writing.sum())))
    share = float((seen.read[begun].sum() + written[begun].sum()) / (seen.read.sum() + seen.wanted.sum()))
    ways_s = [seen.elapsed_s / share, *(seen.elapsed_s + rest_s for rest_s in rests_s)]
    least_s, most_s = min(ways_s), max(ways_s)
    return Forecast(math.sqrt(least_s * most_s), math.hypot(_BURST_SD, _APART_SD * math.log(most_s / least_s)))


def _queued_s(left: Floats, waiting: Floats, streams: int) -> float:
    """When the last of the waiting has its tokens, where each takes the first place to be free; in times of a token."""
    places = [*left.tolist(), *[0.0] * max(streams - len(left), 1)]
    heapq.heapify(places)
    for tokens in waiting.tolist():
        heapq.heapreplace(places, places[0] + tokens)
    return float(max(places))


def _emptied_s(left: Floats, per_token_s: float, streams: int) -> float:
    """How long answers take that have so many tokens left, with steps that become shorter as they end."""
    ends = np.sort(np.maximum(left, 0.0))
    alive = np.arange(len(ends), 0, -1)
    gaps = np.diff(np.concatenate([np.zeros(1), ends]))
    fixed = max(_FIXED_STREAMS, streams * _FIXED_SHARE)
    return float((gaps * per_token_s * (fixed + alive) / (fixed + streams)).sum())
