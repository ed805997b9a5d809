"""What is sent and what is counted.

    workloads     what is sent, by name
    arrivals      when it is sent
    datasets      how long prompts and answers are
    sharegpt      the same, and the text, of a real ShareGPT file; jsonl: of a file of one's own
    tokenizers    who counts the tokens of text (not imported here: httpx is slow to load)
    metrics       every formula
    measuring     one workload on one warm server, over HTTP
    measurement   what it is asked for and what came of it
    workers       the processes that send a load together; what runs in them is `autotune.loadgen.client`
    request_file  one row per request, in a columnar file
    control       `ServerClient`: all else that is said to a server (not imported here: httpx is slow to load)

The contract is `measure`. The simulated node uses the same workloads and metrics, without a server.
"""

from autotune.loadgen.client.generator import Limits
from autotune.loadgen.client.outcomes import Outcome, OutcomeKind
from autotune.loadgen.client.progress import Progress
from autotune.loadgen.client.target import Target
from autotune.loadgen.measurement import LoadOptions, Measurement, PointMeasurement
from autotune.loadgen.measuring import measure

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
