"""llama.cpp's own HTTP server, out of the `xllamacpp` wheel, under llama-server's option names.

    python serve.py --model tiny.gguf --alias tiny --port 8080

Prints one line with its address once it serves; its log goes to stderr. SIGTERM and SIGINT end it
with exit code 0.
"""

from __future__ import annotations

import argparse
import signal
import time

import xllamacpp


def options() -> argparse.ArgumentParser:
    """llama-server's options; most are stored under the name of their field in `CommonParams`."""
    about = "Serve a GGUF model over HTTP."
    # llama-server knows no abbreviations.
    parser = argparse.ArgumentParser(
        argument_default=argparse.SUPPRESS, description=about, allow_abbrev=False
    )
    add = parser.add_argument
    add("--version", action="version", version=f"version: {xllamacpp.__version__} (xllamacpp)")
    add("-m", "--model", required=True, metavar="FILE")
    add(
        "-a",
        "--alias",
        dest="model_alias",
        type=lambda name: {name},
        metavar="NAME",
        help="its name in the API",
    )
    add("--host", dest="hostnames", type=lambda address: [address], metavar="ADDRESS")
    add("--port", type=int, default=8080, metavar="N", help="0 = a free one")
    add(
        "-c",
        "--ctx-size",
        dest="n_ctx",
        type=int,
        metavar="N",
        help="tokens of context of all slots together",
    )
    add(
        "-np",
        "--parallel",
        dest="n_parallel",
        type=int,
        metavar="N",
        help="slots: requests worked on at once",
    )
    add(
        "-t", "--threads", type=int, default=-1, metavar="N", help="-1 = as many as there are cores"
    )
    add("-b", "--batch-size", dest="n_batch", type=int, metavar="N", help="most tokens of a batch")
    add(
        "-ub",
        "--ubatch-size",
        dest="n_ubatch",
        type=int,
        metavar="N",
        help="most tokens computed at once",
    )
    add(
        "--cache-prompt",
        action=argparse.BooleanOptionalAction,
        help="reuse what prompts have in common",
    )
    for half in ("k", "v"):
        names = (f"-ct{half}", f"--cache-type-{half}")
        add(
            *names,
            type=_cache_type,
            metavar="TYPE",
            help=f"element type of the {half.upper()} cache, such as q8_0",
        )
    add(
        "--metrics",
        dest="endpoint_metrics",
        action="store_true",
        help="Prometheus metrics under /metrics",
    )
    return parser


def _cache_type(name: str) -> int:
    """A type by llama.cpp's name; raises ``ValueError`` for another one."""
    types = {
        one.name.removeprefix("GGML_TYPE_").lower(): int(one.value) for one in xllamacpp.ggml_type
    }
    if name not in types:
        raise ValueError(name)
    return types[name]


def main() -> None:
    asked = vars(options().parse_args())
    params = xllamacpp.CommonParams()
    params.model.path = asked.pop("model")
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.pop("threads")
    for field, value in asked.items():
        setattr(params, field, value)
    # The server's own threads must not take these signals, so they are blocked before there are
    # any.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        # llama.cpp writes its log, which says what is wrong, in a thread that an exit may overtake.
        time.sleep(1.0)
        raise
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main()
