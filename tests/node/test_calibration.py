"""Figures are physics times factors, groups without rows have none, and every figure keeps its
range."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput, MalformedFile
from autotune.engines.library import Library
from autotune.node.calibration import (
    Calibration,
    Learned,
    ServerSetup,
    calibration_in,
    calibration_of,
    composed,
    groups_of,
    nothing_learned,
    packaged_calibration,
    packaged_physics,
    pressing,
)

PHYSICS = packaged_physics()
H200 = Library().node("h200")
MEASURED = {"all": "all", "engine": "vllm", "vendor": "nvidia"}


def calibration(**factors):
    return Calibration(fitted_to=[], factors=factors, errors={})


def test_without_factors_a_figure_is_what_physics_expects():
    figures = composed(PHYSICS, nothing_learned(), MEASURED)
    assert figures == pytest.approx(
        {name: figure.typical for name, figure in PHYSICS.figures.items()}
    )


def test_the_factors_of_all_its_groups_multiply_and_those_of_others_do_not():
    known = calibration(
        all={"all": {"layer_us": 1.5}},
        engine={"vllm": {"layer_us": 2.0}, "sglang": {"layer_us": 3.0}},
        vendor={"amd": {"layer_us": 1.2}},
    )
    typical = PHYSICS.figures["layer_us"].typical
    assert composed(PHYSICS, known, MEASURED)["layer_us"] == pytest.approx(typical * 3.0)
    assert composed(PHYSICS, known, {**MEASURED, "vendor": "amd"})["layer_us"] == pytest.approx(
        typical * 3.6
    )
    unknown = {"all": "all", "engine": "another", "vendor": "cpu"}
    assert composed(PHYSICS, known, unknown)["layer_us"] == pytest.approx(typical * 1.5)


def test_a_figure_at_its_limit_is_named_with_its_groups_and_its_limit():
    figure = PHYSICS.figures["bandwidth_share"]
    factor = figure.high / figure.typical
    known = calibration(vendor={"nvidia": {"bandwidth_share": factor}})
    said = f"bandwidth_share of vendor nvidia presses on its limit {figure.high:g}"
    assert pressing(known, [MEASURED, {**MEASURED, "vendor": "amd"}]) == [said]
    inside = calibration(vendor={"nvidia": {"bandwidth_share": 0.95 * factor}})
    assert pressing(inside, [MEASURED]) == []


def test_no_shipped_figure_of_a_measured_engine_and_node_presses_on_its_limit():
    library = Library()
    families = {model.family: model for model in library.models.values()}
    setups = {
        (one.engine, one.version, one.gpu, one.model)
        for one in packaged_calibration().errors.covered
    }
    members = [
        groups_of(ServerSetup(engine, version, {}, families[family], library.node(gpu), 1))
        for engine, version, gpu, family in sorted(setups)
    ]
    assert len(members) > 50
    assert pressing(packaged_calibration(), members) == []


def test_engines_of_one_time_share_its_era_for_the_models_that_were_measured_then():
    r1, dense = Library().model("deepseek-ai/DeepSeek-R1"), Library().model("Qwen/Qwen3-8B")
    old = [
        groups_of(ServerSetup(e, v, {}, r1, H200, 8))["era"]
        for e, v in (("vllm", "0.7.3"), ("sglang", "0.4.3.post2"))
    ]
    assert old[0] == old[1]
    assert "era" not in groups_of(ServerSetup("vllm", "0.13.0", {}, r1, H200, 8))
    assert "era" not in groups_of(ServerSetup("vllm", "0.7.3", {}, dense, H200, 8))


@given(st.floats(-8, 8))
def test_a_figure_never_leaves_its_range(log):
    factors = {"all": {name: math.exp(log) for name in PHYSICS.figures}}
    found = composed(PHYSICS, calibration(all=factors), MEASURED)
    assert found.keys() == PHYSICS.figures.keys()
    for name, value in found.items():
        assert PHYSICS.figures[name].low <= value <= PHYSICS.figures[name].high


def test_a_library_takes_the_users_own_coefficients_first(tmp_path):
    own = packaged_calibration().model_copy(
        update={"factors": {"all": {"all": {"layer_us": 1.25}}}}
    )
    path = tmp_path / "coefficients.yaml"
    path.write_text(yaml.safe_dump(own.model_dump(mode="json")))
    assert calibration_of(Library()) == packaged_calibration()
    assert calibration_of(Library(files=(path,))) == own
    assert calibration_of(Library(calibration=own.model_dump(mode="json"))) == own


def test_coefficients_that_are_none_are_refused_by_line(tmp_path):
    path = tmp_path / "coefficients.yaml"
    path.write_text(
        "fitted_to: []\nfactors: {}\nerrors: {engines: {vllm: {x: {group: -1, row: 0}}}}\n"
    )
    with pytest.raises(MalformedFile, match=r"coefficients.yaml:3: errors.engines.vllm.x.group"):
        calibration_of(Library(files=(path,)))


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        ("{all: {all: {layer_us: -1}}}", "greater than 0"),
        ("{all: {all: {layer_us: .inf}}}", "finite"),
        ("{everything: {all: {layer_us: 2}}}", "unknown level 'everything'"),
        ("{all: {all: {layr_us: 2}}}", "unknown figure 'layr_us'"),
    ],
)
def test_factors_that_cannot_be_are_refused_wherever_they_come_from(tmp_path, factors, told):
    path = tmp_path / "coefficients.yaml"
    path.write_text(f"fitted_to: []\nfactors: {factors}\nerrors: {{}}\n")
    with pytest.raises(MalformedFile, match=told):
        calibration_in(path)
    with pytest.raises(BadInput, match=told):
        calibration_of(Library(calibration=yaml.safe_load(path.read_text())))


def test_what_was_not_measured_is_told():
    rows = [Learned(source="mine.csv", points=2, evidence="measured")]
    assert "not all" not in (
        told := packaged_calibration().model_copy(update={"fitted_to": rows}).fit_summary
    )
    assert "mine.csv (2 points, measured)" in told
    rows.append(Learned(source="study", points=3, evidence="simulated"))
    assert (
        "not all of it measured"
        in packaged_calibration().model_copy(update={"fitted_to": rows}).fit_summary
    )
