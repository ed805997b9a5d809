"""The three checks with one interface: a server's answers, and whether they are as good as the
baseline's.

A server's answers are a JSON object (the evidence), so that it can be kept in a file and judged
elsewhere. In a study `Gate` keeps it in the study's folder, ``accuracy/0007.json`` of launch 7,
readable by its owner alone: the prompts of a task file may be private. A launch's row has the
result of the check.

A task file has one JSON object per line with the question, the known answer, and how the two are
compared:

    {"prompt": "17 + 25 =", "answer": "42", "match": "number"}

The score is the share of right answers, in percent. Two servers answer the same items, so their
difference is judged item by item: its interval is that of Agresti and Min for paired proportions
(Stat. in Medicine 24, 2005), which holds its 95 % where few items differ, as they do here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import (
    BaseModel,
    Field,
    FiniteFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from autotune.base import BadInput, Interval, Json, JsonObject, frozen, silent, write_atomically
from autotune.engines import Entry, Failure, FailureKind
from autotune.load.client.target import Target
from autotune.load.workloads.prompt_files import parsed_line
from autotune.servers import ShutdownTimeouts
from autotune.servers.process import WatchdogClient
from autotune.servers.processes import MARKER
from autotune.servers.watchdog import Request

from ..study.spec import StudySpec
from ..trial import Accuracy, Example, Launch, State
from . import builtin
from .asking import AT_ONCE, Answer, NoAnswers, Token, ask, gives_logprobs
from .builtin import contexts, score

LIMIT_S = 4 * 3600
"""Time limit of one run; a server may get thousands of questions."""
_TAIL = 300
CheckEvidence = JsonObject
"""Evidence of a check: one of the objects of `_EVIDENCE`."""
Launches = Sequence[CheckEvidence]
"""Evidence of several launches."""
Answered = Callable[[int], None]
"""Callback after each prompt's answer, with the number of all prompts."""
EXAMPLES = 3
WORST_DROP = -1.0
"""Points: a drop fails if its interval is below this."""
_FORM = '{"prompt": "17 + 25 =", "answer": "42", "match": "number"}'
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_NORMAL_95 = 1.959963984540054
NO_LOGPROBS = (
    "the engine gives no log-probabilities, so answers are compared only by their words: damage of less than "
    "about 5 % of the tokens may pass"
)
_Row = tuple[str] | tuple[str, FiniteFloat, dict[str, FiniteFloat]]


def check_command(text: str) -> list[str]:
    """Return the words of a command; raises `BadInput` if it certainly cannot run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--accuracy {text!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        raise BadInput(
            f"--accuracy {text!r}: program {program!r} does not exist; give builtin, a FILE.jsonl, or a command with "
            "{url} and {model} in it"
        )
    if "{url}" not in text:
        raise BadInput(
            f"--accuracy {text!r}: the command lacks {{url}}, so it cannot query the server"
        )
    return words


def run_command(text: str, url: str, model: str) -> tuple[float, float | None]:
    """Run a command against a server; returns its score, and the standard error if printed.

    ``{url}`` and ``{model}`` in it are replaced. The last line is the score; its standard error may
    stand behind it. No shell runs it; ``sh -c '…'`` is one.

    Raises:
        BadInput: it fails, does not end, or prints no number.
    """
    words = [word.replace("{url}", url).replace("{model}", model) for word in check_command(text)]
    code, out, err = _run(text, words)
    if code != 0:
        why = (err.strip() or out.strip())[-_TAIL:] or "no output"
        raise BadInput(f"--accuracy {text!r}: ended with exit code {code}: {why}")
    last = "".join(out.strip().splitlines()[-1:]).strip()
    try:
        numbers = list(map(float, last.split()))
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(map(math.isfinite, numbers)):
        raise BadInput(
            f"--accuracy {text!r}: its last line is {last[:_TAIL]!r}; print the score there, followed by the "
            "standard error if there is one, e.g. 0.853 0.0097"
        )
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _run(text: str, words: Sequence[str]) -> tuple[int, str, str]:
    """Run a program under a watchdog, which ends all its processes: its exit code, standard output
    and error."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        out = Path(folder, "out")
        err = Path(folder, "err")
        marker = uuid.uuid4().hex
        request = Request(
            argv=[shutil.which(words[0]) or words[0], *words[1:]],
            env={**os.environ, MARKER: marker, "TMPDIR": folder},
            folder=os.getcwd(),
            log=str(err),
            log_offset=0,
            marker=marker,
            tuner=os.getpid(),
            temporary=folder,
            output=str(out),
        )
        watchdog = WatchdogClient(request)
        try:
            deadline = time.monotonic() + LIMIT_S
            while watchdog.exit_code is None and not watchdog.lost:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                watchdog.listen(left_s)
            texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
        finally:
            watchdog.stop(ShutdownTimeouts())
    if watchdog.exit_code is None:
        why = f"did not end within {LIMIT_S / 3600:g} hours"
        if watchdog.lost:
            why = "it was killed from outside"
        raise BadInput(f"--accuracy {text!r}: {why}")
    return watchdog.exit_code, texts[0], texts[1]


class Check(Protocol):
    """One way to check answers, of a kind as in `Accuracy`; it can judge after this number of
    baseline launches."""

    kind: str
    baselines: int

    @property
    def sha256(self) -> str | None:
        """Return the digest of the task file, which identifies it in a resumed study; None without
        a file."""
        ...

    def run(self, target: Target, model: str, answered: Answered = silent) -> Json:
        """Query a warm server; raises `NoAnswers` if it fails, `BadInput` if the user's command
        does."""
        ...

    def alone(self, evidence: CheckEvidence) -> Accuracy:
        """Return the score of one server."""
        ...

    def judge(self, baselines: Launches, mine: CheckEvidence, *again: CheckEvidence) -> Accuracy:
        """Return whether a server answers as well as the baseline; `again` is of the same launch as
        `mine`."""
        ...


def check_of(text: str) -> Check:
    """Return the check named by ``--accuracy``; raises `BadInput` for visible errors."""
    if text == "builtin":
        return Builtin()
    path = Path(text).expanduser()
    if text.endswith(".jsonl") or path.is_file():
        return TaskFile.read(path)
    check_command(text)
    return ScoreCommand(text)


def timed(check: Check, target: Target, model: str, answered: Answered = silent) -> Json:
    """Run a check; returns its evidence, with the seconds it took."""
    started_ns = time.perf_counter_ns()
    evidence = check.run(target, model, answered)
    return {**evidence, "seconds": (time.perf_counter_ns() - started_ns) / 1e9}


class Builtin:
    """Agreement with the baseline on our own contexts, alone and under load."""

    kind = "builtin"
    baselines = 2
    sha256 = None

    def run(self, target: Target, model: str, answered: Answered = silent) -> Json:
        logprobs = gives_logprobs(target, model)
        count = partial(answered, len(contexts()))
        answers = {}
        for alone, at_once in ((True, 1), (False, AT_ONCE)):
            asked = [context for context in contexts() if context.alone is alone]
            bodies = [context.body for context in asked]
            replies = ask(target, model, bodies, at_once, logprobs=logprobs, answered=count)
            for context, answer in zip(asked, replies, strict=True):
                answers[context.name] = answer and list(map(_row, answer.tokens))
        if not any(answers.values()):
            raise NoAnswers(
                "every answer of the accuracy check is empty, or its prompt was refused"
            )
        return {"kind": self.kind, "logprobs": logprobs, "answers": answers}

    def alone(self, evidence: CheckEvidence) -> Accuracy:
        # Without a reference there is no score.
        note = "" if evidence["logprobs"] else NO_LOGPROBS
        return Accuracy(self.kind, None, note=note, seconds=evidence["seconds"])

    def judge(self, baselines: Launches, mine: CheckEvidence, *again: CheckEvidence) -> Accuracy:
        groups = {context.name: context.group for context in contexts()}
        reference, *others = map(_answers, baselines)
        ours, *repeats = map(_answers, (mine, *again))
        alike = [(reference, other) for other in others] + [(ours, other) for other in repeats]
        verdict = builtin.judge(reference, ours, alike, groups)
        if not verdict.null.total:
            raise BadInput(
                "two launches of the baseline have no context in common, so there is no comparison"
            )
        own = Accuracy(self.kind, *verdict.null.score)
        score, ci95 = verdict.agreement.score
        texts = {context.name: context.prompt for context in contexts()}
        worst = [one.context for one in verdict.worst[:EXAMPLES] if verdict.reasons]
        examples = [
            Example(_end(texts[name]), _text(reference[name]), _text(ours[name])) for name in worst
        ]
        result = replace(self.alone(mine), score=score, ci95=ci95)
        return _compared(own, result, verdict.threshold, verdict.reasons, examples)


def _row(token: Token) -> list[Any]:
    if token.logprob is None:
        return [token.text]
    others = {
        text: round(value, 4)
        for text, value in (token.others or {}).items()
        if math.isfinite(value)
    }
    return [token.text, round(max(token.logprob, -1e4), 4), others]


def _answers(evidence: CheckEvidence) -> dict[str, Answer | None]:
    answers = {}
    for name, rows in evidence["answers"].items():
        tokens = tuple(Token(*row) for row in rows or ())
        text = "".join(token.text for token in tokens)
        answers[name] = None if rows is None else Answer(text, tokens)
    return answers


def _text(answer: Answer | None) -> str:
    return "" if answer is None else answer.text


def _compared(
    baseline: Accuracy,
    result: Accuracy,
    threshold: float,
    reasons: Sequence[str],
    examples: Sequence[Example] = (),
) -> Accuracy:
    """Return a server's result with the baseline's; it passes if no reason is against it."""
    return replace(
        result,
        baseline=baseline.score,
        baseline_ci95=baseline.ci95,
        threshold=threshold,
        passed=not reasons,
        reasons=tuple(reasons),
        examples=tuple(examples),
    )


def _end(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"… {text[-most:]}"


class Message(Entry):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Task(Entry):
    """One item of a task file; exactly one of prompt and messages."""

    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    answer: str | int | float
    match: Literal["exact", "number", "contains"]
    max_tokens: PositiveInt = 256

    @model_validator(mode="after")
    def _check(self) -> Task:
        if (self.prompt is None) is (self.messages is None):
            raise ValueError("exactly one of prompt and messages is required")
        if self.match == "number" and number_in(str(self.answer)) is None:
            raise ValueError(f"match is number, but the answer {self.answer!r} holds none")
        if self.match != "number" and not (isinstance(self.answer, str) and self.answer.strip()):
            raise ValueError(f"match is {self.match}, so the answer must be a non-empty text")
        return self

    @property
    def body(self) -> Json:
        """Return the body of the request."""
        fields = {"messages" if self.messages else "prompt", "max_tokens"}
        return self.model_dump(include=fields)

    @property
    def question(self) -> str:
        """Return the prompt as one text."""
        if self.prompt is not None:
            return self.prompt
        return "\n".join(one.content for one in self.messages or ())

    def is_right(self, text: str) -> bool:
        """Return whether an answer is right; the last of its numbers counts."""
        if self.match == "number":
            return number_in(text) == number_in(str(self.answer))
        right = str(self.answer).strip()
        return right in text if self.match == "contains" else text.strip() == right


def number_in(text: str) -> float | None:
    """Return the last number of a text, without its thousands separators."""
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def read_tasks(path: Path) -> list[Task]:
    """Read a task file; raises `BadInput` with the line and the valid form."""
    try:
        # Other line breaks may stand within JSON texts.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"--accuracy {path}: cannot be read ({error}); give a file of lines like {_FORM}"
        ) from None
    tasks = [
        parsed_line(path, number, line, Task, f"a line like {_FORM}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not tasks:
        raise BadInput(f"--accuracy {path}: holds no task; write lines like {_FORM}")
    return tasks


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> Interval:
    """Return the 95 % interval of the difference of two scores of the same items, in points."""
    pairs = list(zip(before, after, strict=True))
    lost = pairs.count((True, False)) + 0.5
    won = pairs.count((False, True)) + 0.5
    count = len(before) + 2
    middle = (won - lost) / count
    half = _NORMAL_95 * math.sqrt(lost + won - (won - lost) ** 2 / count) / count
    return 100 * (middle - half), 100 * (middle + half)


@frozen
class TaskFile:
    """Questions with known answers, from a file."""

    tasks: Sequence[Task]
    sha256: str
    kind = "tasks"
    baselines = 1

    @classmethod
    def read(cls, path: Path) -> TaskFile:
        """Read a file; raises `BadInput`."""
        return cls(read_tasks(path), hashlib.sha256(path.read_bytes()).hexdigest())

    def run(self, target: Target, model: str, answered: Answered = silent) -> Json:
        bodies = [task.body for task in self.tasks]
        replies = ask(target, model, bodies, AT_ONCE, answered=partial(answered, len(bodies)))
        if not any(replies):
            raise NoAnswers("the server accepts none of the task file's prompts")
        texts = list(map(_text, replies))
        marks = list(map(Task.is_right, self.tasks, texts))
        return {"kind": self.kind, "sha256": self.sha256, "marks": marks, "texts": texts}

    def alone(self, evidence: CheckEvidence) -> Accuracy:
        return Accuracy(self.kind, *score(evidence["marks"]), seconds=evidence["seconds"])

    def judge(self, baselines: Launches, mine: CheckEvidence, *again: CheckEvidence) -> Accuracy:
        """Judge as `Check`: compared with the baseline's first launch, item by item."""
        before = baselines[0]
        if before["sha256"] != self.sha256 or len(before["marks"]) != len(self.tasks):
            raise BadInput("the earlier answers belong to other tasks: the task file has changed")
        low, high = paired_difference(before["marks"], mine["marks"])
        own = self.alone(before)
        result = self.alone(mine)
        assert own.score is not None
        reasons = []
        examples = []
        if high < WORST_DROP:
            reasons.append(
                f"{result.score:.1f} % of {len(self.tasks)} answers are right, the baseline's {own.score:.1f} % "
                f"(95 % interval of the difference {low:+.1f} to {high:+.1f} points)"
            )
            lost = [i for i, right in enumerate(before["marks"]) if right and not mine["marks"][i]]
            for i in lost[:EXAMPLES]:
                texts = self.tasks[i].question, before["texts"][i], mine["texts"][i]
                examples.append(Example(*map(_end, texts)))
        threshold = own.score + WORST_DROP
        return _compared(own, result, threshold, reasons, examples)


@frozen
class ScoreCommand:
    """An external evaluation command."""

    text: str
    kind = "command"
    baselines = 1
    sha256 = None

    def run(self, target: Target, model: str, answered: Answered = silent) -> Json:
        """Run as `Check`; the command's own output shows its progress."""
        score, error = run_command(self.text, target.url, model)
        return {"kind": self.kind, "score": score, "error": error}

    def alone(self, evidence: CheckEvidence) -> Accuracy:
        score = evidence["score"]
        ci95 = None
        if (error := evidence["error"]) is not None:
            ci95 = score - 1.96 * error, score + 1.96 * error
        return Accuracy(self.kind, score, ci95, seconds=evidence["seconds"])

    def judge(self, baselines: Launches, mine: CheckEvidence, *again: CheckEvidence) -> Accuracy:
        """Judge as `Check`. A point is a hundredth of a score of at most 1, else 1.

        With standard errors the interval of the difference must lie below the threshold; without,
        the difference.
        """
        own = self.alone(baselines[0])
        result = self.alone(mine)
        assert own.score is not None
        assert result.score is not None
        threshold = own.score + WORST_DROP * (0.01 if own.score <= 1 else 1.0)
        errors = [evidence["error"] or 0.0 for evidence in (baselines[0], mine)]
        reasons = []
        if result.score + 1.96 * math.hypot(*errors) < threshold:
            reasons.append(f"its score is {result.score:g}, the baseline's {own.score:g}")
        return _compared(own, result, threshold, reasons)


class _Evidence(BaseModel):
    seconds: FiniteFloat


class _BuiltinEvidence(_Evidence):
    kind: Literal["builtin"]
    logprobs: bool
    answers: dict[str, list[_Row] | None]


class _TaskEvidence(_Evidence):
    kind: Literal["tasks"]
    sha256: str
    marks: list[bool]
    texts: list[str]


class _CommandEvidence(_Evidence):
    kind: Literal["command"]
    score: FiniteFloat
    error: FiniteFloat | None


_EVIDENCE: TypeAdapter[_Evidence] = TypeAdapter(
    Annotated[_BuiltinEvidence | _TaskEvidence | _CommandEvidence, Field(discriminator="kind")]
)


def read_evidence(path: Path, kind: str) -> CheckEvidence:
    """Read the evidence of an earlier ``bench --accuracy … --save-result``; raises `BadInput`."""
    try:
        evidence = _EVIDENCE.validate_json(path.read_bytes()).model_dump()
    except OSError as error:
        raise BadInput(f"--reference {path}: cannot be read ({error})") from None
    except ValidationError:
        evidence = {}
    if evidence.get("kind") != kind:
        raise BadInput(
            f"--reference {path}: holds no answers of this check; "
            "write them with bench --accuracy … --save-result FILE on a running server"
        )
    return evidence


def check_of_study(spec: StudySpec) -> Check | None:
    """Return the check of a study, None for none; raises `BadInput` if its task file has
    changed."""
    if spec.accuracy is None:
        return None
    check = check_of(spec.accuracy)
    if check.sha256 != spec.accuracy_sha256:
        raise BadInput(
            f"--accuracy {spec.accuracy}: the task file has changed since the study began"
        )
    return check


class Gate(NamedTuple):
    """Judge the launches of one study, in its folder, by the fingerprint of the baseline's
    configuration."""

    spec: StudySpec
    folder: Path
    baseline: str

    def judge(self, launch: Launch, launches: Sequence[Launch]) -> Launch:
        """Return a launch with the result of the check, failed if the baseline's launches answer
        better."""
        result = launch.result
        check = check_of_study(self.spec)
        if check is None:
            return launch
        evidence = result.answers
        path = self._path(launch)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, json.dumps(evidence), mode=0o600)
        accuracy = check.alone(evidence)
        is_baseline = launch.fingerprint == self.baseline
        references = [] if is_baseline else self._references(launches)
        # Without enough references there is no comparison: the baseline itself, or it did not run.
        if len(references) >= check.baselines:
            try:
                accuracy = check.judge(references, evidence)
            except BadInput as error:  # the baseline's answers cannot be compared
                accuracy = replace(accuracy, note=str(error))
        result = replace(result, answers={}, accuracy=accuracy)
        if accuracy.passed is False:
            failure = Failure(
                FailureKind.ACCURACY,
                f"It answers worse than the baseline: {'; '.join(accuracy.reasons)}.",
            )
            result = replace(result, state=State.FAILED, failure=failure, metrics={})
        return replace(launch, result=result)

    def _path(self, launch: Launch) -> Path:
        return self.folder / "accuracy" / f"{launch.number:04d}.json"

    def _references(self, launches: Sequence[Launch]) -> list[CheckEvidence]:
        """Return the baseline's answers, launch by launch, without those of missing or invalid
        files."""
        references = []
        for launch in launches:
            check = launch.result.accuracy
            if check and launch.fingerprint == self.baseline:
                with suppress(BadInput):
                    references.append(read_evidence(self._path(launch), check.kind))
        return references
