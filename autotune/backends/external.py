"""One server that somebody else runs, by its URL: the only candidate, and its own baseline."""

from __future__ import annotations

from pathlib import Path

from autotune.backends import OwnCandidates
from autotune.backends.servers import Launched, ServerBackend
from autotune.engines import Engine
from autotune.engines.choose import engine_of
from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.notify import silent
from autotune.serving.command import read_secret
from autotune.serving.server import ExternalServer, connect, normalised
from autotune.space.cards import HardwareCard
from autotune.space.context import Context
from autotune.space.enumeration import Candidate, CandidateSet
from autotune.space.library import Library
from autotune.study.options import RunOptions
from autotune.study.spec import StudySpec, is_local
from autotune.trial import Command, Configuration, Evidence, Trial


class External(ServerBackend):
    """See `autotune.backends.Backend`."""

    form = "external:URL"
    evidence = Evidence.MEASURED
    foreign = True

    @classmethod
    def of(cls, on: str) -> External:
        if not cls(on).url:
            raise BadInput(f"--on {on} names no server: write {cls.form}, e.g. external:http://127.0.0.1:8000")
        normalised(cls(on).url)
        return cls(on)

    @property
    def url(self) -> str:
        return self.on.partition(":")[2]

    def check(self, options: RunOptions, hardware: HardwareCard) -> None:
        refused = {"--baseline": options.baseline, "--engine-arg": options.engine_args, "--set": options.pins}
        asked = [option for option, value in refused.items() if value]
        if not is_local(options.executor):
            raise BadInput(f"--executor {options.executor}: nodes would load one server at the same time; leave it out")
        if asked:
            raise BadInput(
                f"{' and '.join(asked)}: nothing can be set on a server that somebody else runs; leave it out"
            )

    def own_candidates(self, spec: StudySpec, library: Library) -> OwnCandidates:
        # Asks only whether it answers and serves the model: better now than after a study has begun.
        owner = self._connect(spec).owner
        choice = next((e for e in spec.engines if e.name == owner), spec.engines[0])
        kind = engine_of(choice.name, {}, library, silent)
        longest = max(load_workload(name, library).longest_request for name in spec.workloads)
        context = Context(spec.model, spec.hardware, spec.gpus, choice.version, longest)
        candidate = Candidate(Configuration(kind.name, {"url": self.url}), choice.version)
        # Its command line is unknown; the stand-in names its address.
        return OwnCandidates(CandidateSet((candidate,), 0), {kind.name: (kind, context)}, lambda _: Command((self.on,)))

    def start(self, run: Launched, trial: Trial, kind: Engine, folder: Path) -> ExternalServer:
        return self._connect(run.spec)

    def _connect(self, spec: StudySpec) -> ExternalServer:
        return connect(self.url, spec.model.id, read_secret(spec.api_key_env, spec.api_key_file, "--api-key"))
