"""Life of the server as a process: port, start, serving, signals, exit code.

Two servers share a node where their working folders lie in one folder two levels up, as the trials
of a study do. Each holds a socket in Linux's abstract namespace, which goes with its process, and
sees by it whether another one serves.
"""

import asyncio
import gc
import hashlib
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TextIO

import uvloop

from autotune.base import BadInput, FloatDict, FloatMap, Json, JsonObject, UnknownName
from autotune.engines import Library
from autotune.engines.entry import parse_yaml
from autotune.engines.expression import evaluate

from .completions import ANSWER_TOKENS, AnswerSettings, EngineApi
from .engine import LiveEngine
from .http import HttpConnection
from .launch import Died, EmulatedLaunch, Emulation, fill_template, prepare_launch

Faults = FloatMap
"""The value of each fault."""
VARIABLE = "AUTOTUNE_EMULATE_FAULT"
LEAKED = "autotune-emulated-"
"""Name prefix of leaked shared memory, followed by the process id."""

_FAULTS: Mapping[str, JsonObject] = parse_yaml(
    Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8")
)
FAULTS = {name: float(fault["value"]) for name, fault in _FAULTS.items()}
"""Name to its default value."""
DEATHS = {name: str(fault["telling"]) for name, fault in _FAULTS.items() if "telling" in fault}
"""Fault to the decisive log line of a server that dies of it during its start."""
DIED = DEATHS["die-at-start"]
_LOOK_S = 0.2
_SOCKETS = Path("/proc/net/unix")
_BACKLOG = 4096


def read_faults(option: str | None) -> FloatDict:
    """Read ``NAME[:VALUE],…`` of the option, else of the environment; raises `UnknownName` or
    `BadInput`.

    ``@FILE`` stands for the content of a file with the faults of one server; the file is removed if
    it names faults, and a missing one has none.
    """
    text = option if option is not None else os.environ.get(VARIABLE, "")
    values: FloatDict = {}
    parts: list[str] = []
    used: list[Path] = []
    for part in map(str.strip, text.split(",")):
        if not part.startswith("@"):
            parts.append(part)
            continue
        with suppress(FileNotFoundError):
            path = Path(part[1:])
            parts += path.read_text(encoding="utf-8").split(",")
            used.append(path)
    for part in filter(None, map(str.strip, parts)):
        name, colon, value = part.partition(":")
        if name not in FAULTS:
            raise UnknownName("fault", name, FAULTS)
        try:
            values[name] = float(value) if colon else FAULTS[name]
        except ValueError as error:
            raise BadInput(
                f"--fault {part}: {value!r} is not a number; the default is {FAULTS[name]:g}"
            ) from error
    for path in used:
        path.unlink(missing_ok=True)
    return values


def leak(megabytes: float) -> SharedMemory:
    """Leave shared memory and a temporary file behind, as an engine that is killed."""
    # Name the folder, because a forked process has its parent's `tempfile.tempdir`.
    os.close(tempfile.mkstemp(prefix="autotune-emulated-", dir=os.environ.get("TMPDIR"))[0])
    # Unregister the memory, because the tracker would remove it when this process ends.
    memory = SharedMemory(
        f"{LEAKED}{os.getpid()}", create=True, size=max(1, int(megabytes * 2**20))
    )
    resource_tracker.unregister(f"/{memory.name}", "shared_memory")
    return memory


def hold_lock(path: Path) -> TextIO:
    """Leave a lock file behind, as AITER does when it is killed while it compiles a kernel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w")


def fork_away(listener: socket.socket, lifetime_s: float) -> None:
    """Leave an orphan in its own session that holds the port, and ends by itself after
    `lifetime_s`."""
    script = f"sleep {lifetime_s} & echo autotune emulate: fork-away left process $! >&2"
    subprocess.run(
        ["sh", "-c", script], pass_fds=[listener.fileno()], start_new_session=True, check=True
    )


class Log:
    """Write the engine's log, with the current ``{time}`` and ``{date}``, to stderr if stdout must
    stay free."""

    def __init__(self, launch: EmulatedLaunch, port: int, to_stderr: bool) -> None:
        parsed = launch.parsed
        given = {name: parsed.args[name] for name in sorted(parsed.given) if name in parsed.args}
        self._launch = launch
        self._facts: dict[str, object] = {
            **launch.scope,
            "pid": os.getpid(),
            "model": parsed.model,
            "version": parsed.version,
            "host": launch.host,
            "port": port,
            "given": given,
            "context": launch.context,
            "tokens": f"{launch.memory.capacity_tokens:,}",
            "count": launch.memory.capacity_tokens,
            "weights_gib": f"{launch.memory.weights / 2**30:.2f}",
            "kv_gib": f"{max(0.0, launch.memory.kv_cache) / 2**30:.2f}",
            "seconds": f"{launch.startup_s:.2f}",
        }
        self._stream: TextIO = (
            sys.stderr if to_stderr or launch.card.stream == "stderr" else sys.stdout
        )

    def lines(self, templates: Iterable[str], **more: object) -> None:
        now = self._now(more)
        text = "".join(f"{fill_template(template, now)}\n" for template in templates)
        if text:
            print(text, end="", file=self._stream, flush=True)

    def progress(self, template: str, **more: object) -> None:
        print("\r" + fill_template(template, self._now(more)), end="", file=sys.stderr, flush=True)

    def crash(self, message: str, kind: str = "") -> Died:
        """Write the log of a server that dies of `message`: the decisive line, then the engine's
        usual tail."""
        crash = self._launch.crash(message, kind)
        # Leave out the exception's class, as `str` does.
        reason = re.sub(r"^(?:\w+\.)*\w+(?:Error|Exception): ", "", message)
        self.lines([*crash.before, crash.telling, *crash.after], message=message, reason=reason)
        return Died(crash.exit_code)

    def _now(self, more: Mapping[str, object]) -> dict[str, object]:
        now = datetime.now()
        forms = {"time": "%H:%M:%S", "date": "%m-%d", "iso": "%Y-%m-%d", "us": "%m/%d/%Y"}
        clock = {name: f"{now:{form}}" for name, form in forms.items()}
        return {**self._facts, **clock, **more}


def start(launch: EmulatedLaunch, faults: Faults, log: Log) -> None:
    """Run the card's phases in the start's duration; raises `Died` if it fails."""
    due_s = time.perf_counter()
    total_s = launch.startup_s * faults.get("slow-start", 1.0)
    failure = launch.failure
    until = None
    message = ""
    if failure is not None:
        message = failure.log_excerpt or failure.message
        until = launch.crash(message, failure.kind).until
    if last_words := _last_words(launch, faults, loaded=0.0):
        raise log.crash(last_words)
    for phase in launch.card.startup:
        if phase.name == until:
            break
        if not phase.holds(launch.scope, launch.parsed.version):
            continue
        log.lines(phase.lines)
        begin_s = due_s
        due_s = due_s + phase.share * total_s
        if phase.shard is not None:
            _load(launch, faults, log, phase.shard, begin_s, due_s)
        _wait_until(due_s)
    if failure is not None:
        raise log.crash(message, failure.kind)


def _load(
    launch: EmulatedLaunch,
    faults: Faults,
    log: Log,
    template: str,
    begin_s: float,
    end_s: float,
) -> None:
    """Write a progress line per shard, spread over the phase."""
    checkpoint_gb = launch.memory.weights * launch.server.gpus / 1e9
    shards = max(1, math.ceil(checkpoint_gb / launch.card.shard_gb))
    for shard in range(shards + 1):
        _wait_until(begin_s + (end_s - begin_s) * shard / shards)
        passed_s = time.perf_counter() - begin_s
        log.progress(
            template,
            shard=shard,
            shards=shards,
            percent=f"{100 * shard // shards:3d}",
            passed=f"{passed_s:.0f}",
            rate=f"{shard / max(passed_s, 1e-3):.2f}",
        )
        while shard >= shards * faults.get("hang-at-start", math.inf):
            time.sleep(faults.get("heartbeat", 3600))
            log.lines([_FAULTS["heartbeat"]["line"]] if "heartbeat" in faults else [])
        if last_words := _last_words(launch, faults, shard / shards):
            break
    print(file=sys.stderr, flush=True)  # ends the line of the progress bar
    if last_words:
        raise log.crash(last_words)


def _last_words(launch: EmulatedLaunch, faults: Faults, loaded: float) -> str:
    """Return the decisive line of a fault that ends the start at this share of the shards; empty:
    it continues."""
    words = next((DEATHS[name] for name in DEATHS if loaded >= faults.get(name, math.inf)), "")
    return fill_template(words, {"model": launch.parsed.model})


def _wait_until(due_s: float) -> None:
    time.sleep(max(0.0, due_s - time.perf_counter()))


async def _slow_beside_others(engine: LiveEngine, share: float) -> None:
    """Slow the steps down while another server of the node serves, until cancelled; 0: never."""
    if not share:
        return
    node = hashlib.sha256(str(Path.cwd().parents[1:2]).encode()).hexdigest()[:12]
    prefix = f"autotune-emulated-{node}-"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as shown:
        shown.bind(f"\0{prefix}{os.getpid()}")
        while True:
            # Count abstract names, which have an @ for the zero byte there (proc(5)).
            served = _SOCKETS.read_text().count(f"@{prefix}")
            engine.slowness = 1.0 + share * (served > 1)
            await asyncio.sleep(_LOOK_S)


def emulate(asked: Emulation, library: Library, as_json: bool = False) -> int:
    """Serve until a signal; return the engine's exit code. Raises `BadInput` for an unknown model,
    fault or version."""
    if not (asked.speed > 0 and math.isfinite(asked.speed)):
        raise BadInput(
            f"--speed {asked.speed:g}: must be above 0 and finite, e.g. 10 for ten times as fast"
        )
    if asked.startup_s is not None and not math.isfinite(asked.startup_s):
        raise BadInput(f"--startup-s {asked.startup_s:g}: must be a number of seconds, 0 or more")
    AnswerSettings.read(asked.answers)
    try:
        return _serve(prepare_launch(asked, library), read_faults(asked.fault), as_json)
    except Died as death:
        return death.exit_code


def _serve(launch: EmulatedLaunch, faults: Faults, as_json: bool) -> int:
    if "ignore-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Allow as many connections as the system does.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Hold the memory as long as the process lives.
    leaked = leak(faults["leak"]) if "leak" in faults else None
    locked = hold_lock(Path("aiter/build/lock_emulated")) if "lock" in faults else None
    log = Log(launch, launch.port, as_json)
    listener = None if "late-bind" in faults else _bind(launch, log)
    if listener is not None:
        log = Log(launch, listener.getsockname()[1], as_json)
    start(launch, faults, log)
    if "flood" in faults:
        # Let a child fill the log with this many MB, as fast as it can, while this process serves.
        line = "DEBUG emulated: a line that nobody wanted to read, and so the next one and the one after that"
        subprocess.run(
            ["sh", "-c", f"yes '{line}' | head -c {int(faults['flood'] * 1e6)} >&2 &"], check=True
        )
    if listener is not None and "fork-away" in faults:
        listener.listen(_BACKLOG)
        fork_away(listener, faults["fork-away"])
    try:
        return uvloop.run(_until_stopped(launch, faults, log, as_json, listener))
    finally:
        if leaked is not None:
            leaked.close()
        if locked is not None:
            locked.close()


def _bind(launch: EmulatedLaunch, log: Log) -> socket.socket:
    """Bind the port; clients can only connect after the server listens."""
    family = socket.AF_INET6 if ":" in launch.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((launch.host, launch.port))
    except OSError as error:
        listener.close()
        log.lines(
            [launch.card.port_taken], errno=error.errno, problem=os.strerror(error.errno or 0)
        )
        raise Died(launch.crash("", "").exit_code) from error
    return listener


async def _until_stopped(
    launch: EmulatedLaunch,
    faults: Faults,
    log: Log,
    as_json: bool,
    listener: socket.socket | None,
) -> int:
    """Serve until a signal; raises exceptions of callbacks, because the server would otherwise
    hang."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    bugs: list[BaseException] = []

    def note_bug(_: asyncio.AbstractEventLoop, context: Json) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):
            bugs.append(error)
            stop.set()

    loop.set_exception_handler(note_bug)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if "ignore-sigterm" not in faults:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    engine = LiveEngine(
        launch.server,
        launch.memory.capacity_tokens,
        int(evaluate(launch.card.block_tokens, launch.scope)),
        launch.asked.speed,
        answer=ANSWER_TOKENS,
    )
    if listener is None:
        log.lines(launch.card.ready)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), faults["late-bind"])
        listener = _bind(launch, log)
    api = EngineApi(launch, engine, faults)
    connections: set[HttpConnection] = set()
    server = await loop.create_server(
        lambda: HttpConnection(api, connections), sock=listener, backlog=_BACKLOG
    )
    if "late-bind" not in faults:
        log.lines(launch.card.ready)
    if as_json:
        url = f"http://{launch.host}:{listener.getsockname()[1]}"
        print(json.dumps({"url": url, "pid": os.getpid(), "models": launch.models}), flush=True)
    tasks = (
        asyncio.ensure_future(_die_mid_load(engine, faults.get("die-mid-load"), log)),
        asyncio.ensure_future(_slow_beside_others(engine, faults.get("slow-beside-others", 0.0))),
    )
    # Leave all objects out of every collection: none that exists now will become garbage.
    gc.collect()
    gc.freeze()
    await stop.wait()
    for task in tasks:
        task.cancel()
    server.close()
    if bugs:
        raise bugs[0]
    log.lines(launch.card.stopping)
    for connection in tuple(connections):
        connection.close()
    return 128 + signal.SIGTERM if launch.card.stop_signal else 0


async def _die_mid_load(engine: LiveEngine, tokens: float | None, log: Log) -> None:
    """End the process after this number of generated tokens; None: never."""
    if tokens is None:
        return
    while engine.generated_tokens < tokens:
        await asyncio.sleep(0.002)
    death = log.crash(DIED, "serving")
    sys.stdout.flush()
    os._exit(death.exit_code)
