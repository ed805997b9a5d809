"""Emulate an engine on a node with GPUs in a process: ``autotune emulate -- vllm serve …``.

    process.py      `emulate`: port, log of the start, requested faults, signals, exit codes
    launch.py       the engine's command line, as its version reads it, and its dialect: the card
                    search_spaces/<engine>/emulator.yaml
    http.py         a lean HTTP server, and the bodies of requests
    completions.py  routes and answers, and the words of greedy answers, right or wrong
    page.py         the engine's Prometheus page: counters, gauges, histograms
    engine.py       the simulated node by the wall clock, and its prefix caches by token ids

The HTTP server is our own small protocol on httptools and uvloop. With 1000 streams it sends 16,000
tokens/s with 14 % of a core and 34,000 with 20 %, the engine's arithmetic included; uvicorn with
starlette, doing nothing but pacing, takes 24 % for 15,000 and 45 % for 30,000
(``benchmarks/node/emulator.py``, one run). An ASGI server would do, then; but the emulator shares a
machine of few cores with the client that is measured, so it should take as little as it can, and
faults such as a stream that breaks off are simpler below ASGI.

Its numbers are *emulated*: the times of the simulated node, through real processes, sockets and
clients.
"""
