"""The home folder: ``<home>/studies/<study>/``, a folder per study; the user's spaces; the address
of MLflow.

Runs go to the home folder's database, or to what ``MLFLOW_TRACKING_URI`` names; a report can say it
without MLflow.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import yaml
from pydantic import ValidationError

from autotune.base import (
    BadInput,
    JsonObject,
    MalformedFile,
    UnknownName,
    expanded,
    frozen,
    sync_folder,
    write_atomically,
)
from autotune.engines import Library, engine, spaces_root
from autotune.engines.library import KINDS, documents

from ..trial import Launch
from .recommendation import Recommendation, Regression
from .results import RESULTS, Lock, read_launches, recount_finals
from .spec import StudySpec, check_study_name

REGRESS = "regress"
"""Folder of a study's comparisons of versions."""


def make_trial_folder(folder: Path) -> None:
    """Make a study's ``trials/<number>``; raises ``OSError`` also if the study's folder is
    missing."""
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)


@frozen
class Home:
    """The folder of all studies, the MLflow database and its artefacts."""

    path: Path

    @property
    def calibration(self) -> Path:
        """File to which `autotune calibrate` writes the simulator's coefficients."""
        return self.path / "coefficients.yaml"

    @property
    def studies(self) -> Path:
        return self.path / "studies"

    def study_folder(self, study: str) -> Path:
        """Return a study's folder; the name cannot leave `studies`."""
        return self.studies / check_study_name(study)

    def resume_command(self, study: str) -> str:
        """Return the command that continues a study, in any folder and shell; messages print it on
        its own line."""
        return shlex.join(["autotune", "resume", study, "--home", os.path.abspath(self.path)])

    def names(self) -> list[str]:
        """Return the existing studies, oldest first; also one without a specification if its
        launches exist."""
        begun = {}
        for name in (RESULTS, "study.yaml"):
            for path in self.studies.glob(f"*/{name}"):
                with suppress(FileNotFoundError):  # it is just being deleted
                    begun[path.parent.name] = path.stat().st_mtime
        return sorted(begun, key=begun.__getitem__)

    def distinct_names(self) -> list[str]:
        """Return `names`, each study once: a link to its folder is another name of it."""
        names = self.names()
        links_first = sorted(names, key=lambda name: not (self.studies / name).is_symlink())
        one_of_each = {(self.studies / name).resolve(): name for name in links_first}
        return [name for name in names if name in one_of_each.values()]

    def source(self, text: str) -> Path:
        """Return the absolute path for ``--from``: a study of this home, a study's folder, or a
        file.

        Raises `UnknownName` with the studies that there are, `BadInput` for a folder that is no
        study's.
        """
        if text in self.names():
            return self.study_folder(text).absolute()
        path = expanded(text, "HOME").absolute()
        if path.is_dir() and not (path / RESULTS).is_file():
            raise BadInput(
                f"--from {text}: this folder has no {RESULTS}, so it is not a study with launches"
            )
        if not path.exists():
            hint = (
                f"Searched in {self.studies}. A study's folder, FILE.csv or {RESULTS} is also "
                "possible."
            )
            raise UnknownName("study", text, self.names(), hint)
        return path

    def check_free(self, study: str) -> None:
        """Raise `BadInput` if a study of this name exists."""
        folder = self.study_folder(study)
        if (folder / "study.yaml").exists() or (folder / RESULTS).exists():
            raise BadInput(
                f"study {study!r} exists; choose another --study name, or continue with:\n"
                f"{self.resume_command(study)}"
            )
        _check_empty(folder)

    def open(self, spec: StudySpec) -> Path:
        """Return a study's folder, created with its ``study.yaml`` if it is new.

        Raises `BadInput` when that fails, or when the name has another study, which may have begun
        a moment ago; `StudyLocked` while it begins.
        """
        folder = self.study_folder(spec.study)
        if (folder / "study.yaml").exists():
            if self.spec(spec.study) != spec:
                self.check_free(spec.study)
            return folder
        _check_empty(folder)
        try:
            (folder / "trials").mkdir(parents=True, exist_ok=True)
            # Lock before the specification: without locks there shall be no study.
            Lock(folder).release()
            write_atomically(folder / "study.yaml", spec.to_yaml())
            sync_folder(self.studies)
        except OSError as error:
            raise BadInput(
                f"home folder {self.path} is not writable ({error.strerror}); choose another one "
                "with --home DIR"
            ) from error
        return folder

    def spec(self, study: str) -> StudySpec:
        """Return the spec of an existing study, under its folder's name; raises `BadInput`
        otherwise."""
        path = self.study_folder(study) / "study.yaml"
        if not path.exists() and study not in self.names():
            raise UnknownName("study", study, self.names(), f"Searched in {self.studies}.")
        try:
            # Name the study by its folder: a copy must not lead to the first one's folder.
            return StudySpec.from_yaml(path.read_text(encoding="utf-8")).with_fields(study=study)
        except (yaml.YAMLError, ValidationError, UnicodeDecodeError, OSError) as error:
            what = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise MalformedFile(path, f"not a study's specification ({what})") from error

    def launches(self, study: str) -> list[Launch]:
        """Return a study's finished launches, in the order in which they ended.

        A last line that is torn is a launch that a crash cut off, and none. Raises `MalformedFile`
        for another one.
        """
        rows = read_launches(self.study_folder(study) / RESULTS)
        return recount_finals(rows, self.spec(study).finals_from) if rows else rows

    def extend(self, spec: StudySpec, launches: int, least: int) -> StudySpec:
        """Raise a study's budget, so that it continues; a finished study searches again and ends
        with new finals.

        Raises `BadInput` for fewer than `least` more launches, `StudyLocked` while a tuner works on
        it.
        """
        numbers = [launch.number for launch in self.launches(spec.study)]
        made = max(numbers, default=-1) + 1
        folder = self.study_folder(spec.study)
        if launches < made + least:
            raise BadInput(
                f"--launches {launches}: study {spec.study!r} has {made} launches, and new finals "
                f"take {least}; give at least {made + least}"
            )
        lock = Lock(folder)
        ended = folder / "recommendation.json"
        try:
            spec = spec.with_fields(launches=launches, finals_from=made)
            write_atomically(folder / "study.yaml", spec.to_yaml())
            ended.unlink(missing_ok=True)
            sync_folder(folder)
        finally:
            lock.release()
        return spec

    def recommendation(self, study: str) -> Recommendation | None:
        """Return a finished study's recommendation, None before its end; raises `MalformedFile` for
        an invalid file."""
        path = self.study_folder(study) / "recommendation.json"
        if not path.is_file():
            return None
        try:
            content = Recommendation.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedFile(
                path,
                "not a recommendation; remove it, then `autotune resume` writes it again from the "
                "launches",
            ) from error
        return content.with_fields(study=study)

    def regressions(self, study: str) -> list[Regression]:
        """Return a study's comparisons of versions, the latest last; raises `MalformedFile` for an
        invalid file."""
        by_time = []
        for path in (self.study_folder(study) / REGRESS).glob("*/regress.json"):
            try:
                regression = Regression.model_validate_json(path.read_bytes())
                by_time.append((path.stat().st_mtime_ns, regression))
            except (ValueError, OSError) as error:
                raise MalformedFile(
                    path, "not a comparison; remove it, then `autotune regress` makes it"
                ) from error
        return [one for _, one in sorted(by_time, key=lambda pair: pair[0])]


def _check_empty(folder: Path) -> None:
    """Raise `BadInput` for a folder that no study has made: what lies there would be overwritten.

    A study that was killed before its specification was written has left no more than these.
    """
    left = r"lock|traffic|trials|\.study\.yaml\..+\.tmp"
    others = [path for path in folder.glob("*") if not re.fullmatch(left, path.name)]
    others += folder.glob("trials/*")
    if others:
        raise BadInput(
            f"{folder} is no study's folder, but {others[0].relative_to(folder)} lies there; "
            "choose another --study name or --home, or move it away"
        )


def library_of(spec: StudySpec) -> Library:
    return library_for(Path(spec.space) if spec.space else None, spec.calibration, spec.traffic)


def context_limit(spec: StudySpec, name: str, version: str) -> int:
    """Return the tokens that an engine's version serves without an option; of an unknown engine the
    model's."""
    context = spec.context(version)
    with suppress(BadInput):
        context = context.as_read(engine(name, library_of(spec)).card)
    return context.model.architecture.context_limit


def calibration_of_home(given: Path | None, home: Path) -> Path | None:
    """Find the coefficients: the given file, else the file of `autotune calibrate` in the home
    folder."""
    left = Home(home).calibration
    return given or (left if left.is_file() else None)


def library_for(
    space: Path | None,
    calibration: JsonObject | None = None,
    traffic: Mapping[str, JsonObject] | None = None,
) -> Library:
    """Return the packaged spaces, overlaid by the user's folder or engine file, with other
    coefficients and with workloads of servers' metrics if given."""
    if space and not space.exists():
        raise BadInput(f"--space {space}: no such file or folder")
    if space is None or not space.is_dir():
        return Library((), () if space is None else (space,), calibration, traffic)
    read = {path for kind in KINDS for _, path in documents(space, kind)}
    own = {p for p in space.glob("*.y*ml") if not (spaces_root() / p.name).exists()}
    if (unread := sorted({*space.glob("*/*.y*ml"), *own} - read)) or not read:
        right = ", ".join(f"{kind}/*.yaml" for kind in KINDS)
        raise BadInput(
            f"--space {unread[0] if unread else space}: is not read; right: {right}, "
            "ENGINE/engine.yaml"
        )
    return Library((space,), (), calibration, traffic)


DATABASE = "mlflow.db"
"""The database's file in the home folder."""

_SQLITE = "sqlite:///"
# Match up to the last "@": a password may hold signs that it should not: "/", "?" or "#".
_CREDENTIALS = re.compile(r"([\w+.-]*://)([^/?#@]*:.*|[^/?#]*)@", re.DOTALL)


def database_uri(home: Path) -> str:
    """Return the address of a home's own MLflow database."""
    return f"{_SQLITE}{home.resolve() / DATABASE}"


def tracking_uri(home: Path) -> str:
    """Return the current MLflow address of this home's studies; it may hold a password."""
    return os.environ.get("MLFLOW_TRACKING_URI", "").strip() or database_uri(home)


def is_server(uri: str) -> bool:
    """Return whether a server is in front of the database; it has its own storage for files."""
    return bool(re.match(r"https?://|databricks\b", uri, re.IGNORECASE))


def database_file(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other address."""
    if not uri.startswith(_SQLITE):
        return None
    path = unquote(uri.removeprefix(_SQLITE).partition("?")[0])
    return Path(path) if path and path != ":memory:" else None


def credentials(uri: str) -> str:
    """Return the part before the ``@`` of an address; empty without one."""
    match = _CREDENTIALS.match(uri)
    return match[2] if match else ""


def without_credentials(uri: str) -> str:
    """Return an address without user, password and query, for people; also if it is malformed."""
    if path := database_file(uri):
        return str(path)
    return re.split(r"[?#]", _CREDENTIALS.sub(r"\1", uri), maxsplit=1)[0]


def runs_address(home: Path) -> str:
    """Return the address of the runs for people; the path of a relative home folder is relative."""
    uri = tracking_uri(home)
    return str(home / DATABASE) if uri == database_uri(home) else without_credentials(uri)


def ui_command(home: Path) -> str:
    """Return the command that shows the runs, on loopback; for a server, the address to open."""
    uri = tracking_uri(home)
    if is_server(uri):
        return without_credentials(uri)
    store = uri if database_file(uri) else without_credentials(uri)
    if uri == database_uri(home):
        store = f"{_SQLITE}{runs_address(home)}"
    return f"mlflow ui --backend-store-uri {shlex.quote(store)} --host 127.0.0.1"
