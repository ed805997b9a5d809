"""What is sent and what is counted.

    workloads     what is sent, by name
    arrivals      when it is sent
    datasets      how long prompts and answers are
    sharegpt      the same, and the text, of a real ShareGPT file; jsonl: of a file of one's own
    tokenizers    who counts the tokens of text (not imported here: httpx is slow to load)
    metrics       every formula
    measurement   one workload on one warm server, over HTTP
    generator     one load point: a schedule in, a log of requests out
    stream        the measured path: HTTP and server-sent events, stamped per read of the socket
    outcomes      how a request can end
    control       `ServerClient`: all else that is said to a server (not imported here: httpx is slow to load)

The contract is `measure`. The simulated node uses the same workloads and metrics, without a server.
"""

from autotune.client.generator import Limits, Progress
from autotune.client.outcomes import Outcome, OutcomeKind
from autotune.client.target import Target
from autotune.load.measurement import LoadOptions, Measurement, PointMeasurement, measure

__all__ = [
    "Limits",
    "LoadOptions",
    "Measurement",
    "Outcome",
    "OutcomeKind",
    "PointMeasurement",
    "Progress",
    "Target",
    "measure",
]
