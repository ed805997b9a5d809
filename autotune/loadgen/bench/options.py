"""Options of ``autotune bench``, each checked before anything is sent."""

from __future__ import annotations

import os
from contextlib import suppress

from autotune.errors import BadInput
from autotune.loadgen.capacity.search import check as check_load_search
from autotune.loadgen.client.target import Target
from autotune.loadgen.results import LoadOptions
from autotune.loadgen.server_client import tokenizer_for
from autotune.loadgen.workloads import Workload, load_workload, with_speedup
from autotune.loadgen.workloads.arrivals import arrival_of
from autotune.metrics.formulas import Slo, goodput_limits, parse_goodput
from autotune.metrics.table import Rent
from autotune.space.library import Library
from autotune.study.goals import slos_of
from autotune.study.options import BenchOptions


class Bench(BenchOptions):
    """The options of a bench, and what they come to."""

    __slots__ = ()

    @property
    def seeds(self) -> list[int]:
        """One per repeat; raises `BadInput` for none."""
        if self.repeats < 1:
            raise BadInput(f"--repeats {self.repeats}: the workload is measured at least once")
        return [self.seed + (0 if self.same_prompts else repeat) for repeat in range(self.repeats)]

    @property
    def target(self) -> Target:
        """The server, with the API key that an environment variable holds."""
        key = os.environ.get(self.api_key_env, "").strip() if self.api_key_env is not None else None
        if key == "":
            raise BadInput(f"--api-key-env {self.api_key_env}: this environment variable is not set")
        return Target.parse(self.url, key)

    @property
    def rent(self) -> Rent:
        """The server's GPUs, and what they cost."""
        return Rent.of(self, self.gpus)

    def load_workload(self) -> Workload:
        """Return the workload by its name, sent as these options say."""
        (name,) = with_speedup([self.workload], self.speedup)
        workload = load_workload(name)
        if self.find_load is not None:
            self._check_find_load(workload)
        if self.concurrency and self.request_rate is not None:
            raise BadInput("--concurrency and --request-rate exclude each other: a load is closed or open")
        if self.concurrency:
            return workload.with_concurrencies(self.concurrency)
        arrival = arrival_of(None, self.request_rate, self.burstiness)
        return workload if self.request_rate is None else workload.with_arrival(arrival)

    def _check_find_load(self, workload: Workload) -> None:
        """Raise `BadInput` for what a load search decides by itself, or cannot search under."""
        decided = {
            "--concurrency": self.concurrency,
            "--request-rate": self.request_rate is not None,
            "--burstiness": self.burstiness != 1,
            "--repeats": self.repeats != 1,
            "--same-prompts": self.same_prompts,
            "--keep-cache": self.keep_cache,
        }
        if given := [option for option, value in decided.items() if value]:
            raise BadInput(f"{' and '.join(given)}: --find-load decides by itself what is sent and when; leave it out")
        assert self.find_load is not None
        check_load_search(self.find_load, workload, self.slos)

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The limits, as `slos_of` checks them."""
        return slos_of(self.slo)

    def check(self) -> None:
        """Raise `BadInput` for an option that is out of range, or a result file that cannot be written."""
        if self.prompts == "ids" and "chat" in self.endpoint:
            raise BadInput(f"--prompts ids: {self.endpoint} takes text; token ids go to /v1/completions")
        parse_goodput(self.goodput)
        if self.rent.gpus is not None and self.rent.gpus < 1:
            raise BadInput(f"--gpus {self.gpus}: a server has at least 1 GPU")
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"--workers {self.workers}: at least one process must send the load")
        self.check_result_file()

    def check_result_file(self) -> None:
        """Raise `BadInput` for a result file that cannot be written."""
        path = self.save_result  # now, as a result that cannot be kept is an hour lost
        other = path is not None and path.exists() and not path.is_file()
        if path is not None and (other or not os.access(path.absolute().parent, os.W_OK)):
            raise BadInput(f"--save-result {path}: cannot be written; give a file in a folder that exists")

    def load_options(self, workload: Workload, target: Target) -> LoadOptions:
        """Options of the load; only text, and no token ids, needs a tokenizer.

        Raises `BadInput` for an SLO or a goodput that is no limit, or a file that is no tokenizer.
        """
        architecture = None
        with suppress(BadInput):  # only of a model that the packaged library knows
            architecture = Library().model(self.model).architecture
        if architecture is not None:
            workload.check_fits(architecture.context_limit)
        text = "chat" in self.endpoint or self.prompts == "text" or workload.has_text
        return LoadOptions(
            endpoint=self.endpoint,
            api_key=target.api_key,
            vocabulary=architecture.vocab_size if architecture is not None else None,
            tokenizer=tokenizer_for(self.tokenizer, target, self.model) if text or self.tokenizer else None,
            as_text=self.prompts == "text",
            workers=self.workers,
            slos=goodput_limits(parse_goodput(self.goodput)) or self.slos,
        )
