"""A study that was killed, at any moment, ends as if it had not been."""

import json
import shutil
import tempfile
from pathlib import Path

import optuna
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autotune.base.errors import BadInput, MalformedFile, StudyLocked
from autotune.engines.enumeration import CandidateSet
from autotune.tuner.recommend import recommend
from autotune.tuner.study.results import Results, launch_of, read_launches
from autotune.tuner.trial import Launch, Role
from tests.tuner.search.search_landscapes import (
    SLO_ON_TPOT,
    decisions,
    evaluate,
    make_spec,
    opened,
    play,
    small,
    walled,
)

CANDIDATES = small()
SPEC = make_spec(launches=12, noise=0.03, seed=5, slos=(SLO_ON_TPOT,))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    study = opened(folder, SPEC, CANDIDATES)
    play(study, SPEC, walled)
    study.close()
    return folder


def finish(folder: Path) -> tuple[list[Launch], str]:
    study = opened(folder, SPEC, CANDIDATES)
    launches = play(study, SPEC, walled)
    study.close()
    return launches, recommend(SPEC, CANDIDATES, launches, (), study.stop_reason).model_dump_json()


@pytest.fixture(scope="module")
def reopened(undisturbed: Path) -> tuple[list[Launch], str]:
    return finish(undisturbed)


@settings(max_examples=10, deadline=None)
@given(rows=st.floats(0, 1), journal=st.floats(0, 1))
@example(rows=0.0, journal=0.5)
def test_both_files_cut_anywhere(
    undisturbed: Path, reopened: tuple[list[Launch], str], rows: float, journal: float
) -> None:
    """Nothing is lost but the torn line, nothing is launched twice, the recommendation is the
    same."""
    expected, recommendation = reopened
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, share in (("results.jsonl", rows), ("optuna.journal", journal)):
            content = (undisturbed / file).read_bytes()
            (folder / file).write_bytes(content[: int(share * len(content))])
        kept = (folder / "results.jsonl").read_bytes().count(b"\n")
        study = opened(folder, SPEC, CANDIDATES)
        assert len(study.launches) >= kept
        assert decisions(list(study.launches)) == decisions(expected[: len(study.launches)])
        study.close()
        launches, again = finish(folder)
        assert decisions(launches) == decisions(expected)
        assert again == recommendation
        assert finish(folder) == (launches, again), "what was appended behind a cut can be read"


@pytest.mark.parametrize(
    "tail",
    [
        *(
            b"{",
            b"\xcb\n\x00\xff\n\xfe",
            b'{"number": 2}\n',
            b'{"number": 2,\n\n \n',
            b"\xff\xfe",
            b"",
            b"\n\n",
            b"[]\n",
        ),
        *(b"\xcb\n{\x00\xff\n", b'{"number": 2,\n{\xb8'),
    ],
)
def test_a_launch_that_is_added_behind_a_torn_line_can_be_read(
    tmp_path: Path, undisturbed: Path, tail: bytes
) -> None:
    """And by every reader: each of them leaves a torn last line out."""
    whole = (undisturbed / "results.jsonl").read_bytes().splitlines()
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\n".join(whole[:2]) + (b"\n" if tail else b"") + tail)
    assert [launch.trial.number for launch in read_launches(path)] == [0, 1]
    torn = path.read_bytes()
    results = Results(path)
    assert len(results.launches) == 2
    results.append(launch_of(json.loads(whole[2])))
    assert [launch.trial.number for launch in read_launches(path)] == [0, 1, 2]
    assert path.read_bytes() == b"\n".join(whole[:3]) + b"\n"
    path.write_bytes(torn + b"\n" + whole[2])
    if tail.strip():
        with pytest.raises(MalformedFile, match=r"results\.jsonl:3: not a launch of a study"):
            read_launches(path)


@settings(max_examples=6, deadline=None)
@given(kills=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_killed_between_any_two_calls(
    reopened: tuple[list[Launch], str], kills: list[tuple[int, bool]]
) -> None:
    """Closed after some launches, half the time with a trial asked and never told."""
    expected, recommendation = reopened
    with tempfile.TemporaryDirectory() as name:
        for count, in_flight in kills:
            study = opened(Path(name), SPEC, CANDIDATES)
            play(study, SPEC, walled, count)
            if in_flight:
                study.ask()
            study.close()
        launches, again = finish(Path(name))
        assert decisions(launches) == decisions(expected)
        assert again == recommendation


def test_an_interrupted_trial_keeps_its_number(tmp_path: Path) -> None:
    study = opened(tmp_path, SPEC, CANDIDATES)
    play(study, SPEC, walled, 5)
    asked = study.ask()
    study.close()
    again = opened(tmp_path, SPEC, CANDIDATES)
    assert again.ask() == asked
    again.close()
    assert asked is not None
    assert asked.number == 5


def test_parallel_trials_in_flight_all_come_back(tmp_path: Path) -> None:
    study = opened(tmp_path, SPEC, CANDIDATES)
    play(study, SPEC, walled, 2)
    asked = [study.ask() for _ in range(3)]
    assert asked[1] is not None
    study.tell(evaluate(SPEC, walled, asked[1]))
    study.close()
    again = opened(tmp_path, SPEC, CANDIDATES)
    assert [again.ask(), again.ask()] == [asked[0], asked[2]]
    assert [launch.trial.number for launch in again.launches] == [0, 1, 3]
    again.close()
    (tmp_path / "optuna.journal").unlink()
    anew = opened(tmp_path, SPEC, CANDIDATES)
    numbers = [launch.trial.number for launch in play(anew, SPEC, walled)]
    anew.close()
    assert numbers == list(range(len(numbers)))


def test_a_finished_study_asks_for_nothing(undisturbed: Path) -> None:
    before = (undisturbed / "results.jsonl").read_bytes()
    study = opened(undisturbed, SPEC, CANDIDATES)
    assert study.ask() is None
    assert study.stop_reason
    assert study.phase == "done"
    study.close()
    assert (undisturbed / "results.jsonl").read_bytes() == before


def test_a_second_tuner_is_kept_out(tmp_path: Path) -> None:
    study = opened(tmp_path, SPEC, CANDIDATES)
    with pytest.raises(StudyLocked, match="another tuner"):
        opened(tmp_path, SPEC, CANDIDATES)
    study.close()
    opened(tmp_path, SPEC, CANDIDATES).close()


@pytest.mark.parametrize(
    "content", [b"", b"garbage\n", b'{"op_code":99}\n', b'{"op_code":0}\n', b"\xff\xfe\n\x00"]
)
def test_an_unusable_journal_is_written_anew(
    undisturbed: Path, tmp_path: Path, content: bytes
) -> None:
    shutil.copy(undisturbed / "results.jsonl", tmp_path)
    (tmp_path / "optuna.journal").write_bytes(content)
    (tmp_path / "optuna.journal.lock").symlink_to("nowhere")
    launches, _ = finish(tmp_path)
    assert [t.number for t in optuna_trials(tmp_path)] == [
        launch.trial.number for launch in launches
    ]


def optuna_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    return optuna.load_study(study_name=SPEC.study, storage=storage).trials


def test_optuna_sees_what_the_rows_say(undisturbed: Path) -> None:
    launches, _ = finish(undisturbed)
    assert len(launches) == SPEC.launches
    for trial, launch in zip(optuna_trials(undisturbed), launches, strict=True):
        knobs = dict(launch.trial.configuration.knobs)
        assert trial.params == {"engine": "vllm", **knobs}
        if launch.result.failure:
            assert trial.state is TrialState.PRUNED
            assert trial.constraints == {"starts": 1.0}
        else:
            measured = launch.result.metrics["chat"]
            assert trial.value == measured["total_token_throughput"]
            assert trial.constraints == {
                str(SLO_ON_TPOT): pytest.approx(measured["mean_tpot_ms"] - 8)
            }


def test_a_damaged_line_in_the_middle_is_named(undisturbed: Path, tmp_path: Path) -> None:
    lines = (undisturbed / "results.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = b'{"number": 2}\n'
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(MalformedFile, match=r"results\.jsonl:3"):
        opened(tmp_path, SPEC, CANDIDATES)
    opened(tmp_path / "another", SPEC, CANDIDATES).close()


def test_rows_of_other_candidates_are_refused(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copy(undisturbed / "results.jsonl", tmp_path)
    fewer = CandidateSet(CANDIDATES.items[-3:], 0)
    with pytest.raises(BadInput, match="start a new study"):
        opened(tmp_path, SPEC, fewer)
    opened(tmp_path, SPEC, CANDIDATES).close()


def test_telling_twice_or_unasked_is_a_bug(tmp_path: Path) -> None:
    study = opened(tmp_path, SPEC, CANDIDATES)
    trial = study.ask()
    assert trial is not None
    launch = evaluate(SPEC, walled, trial)
    study.tell(launch)
    with pytest.raises(ValueError, match="not asked"):
        study.tell(launch)
    study.close()


def test_rows_are_json_with_the_promised_keys(undisturbed: Path) -> None:
    rows = [json.loads(line) for line in (undisturbed / "results.jsonl").read_text().splitlines()]
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert rows[0]["role"] == Role.BASELINE
    assert {"fingerprint", "argv", "env", "failure", "metrics", "times_s"} <= rows[0].keys()
