from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.base.errors import BadInput, MalformedFile, UnknownName
from autotune.engines.entry import spaces_root
from autotune.engines.library import Library, check, packaged
from autotune.engines.registry import engine
from autotune.load.workloads import Workload
from autotune.node.calibration import Calibration, Physics
from autotune.node.coefficients import SpeedCard
from autotune.node.emulator.launch import EmulationCard

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "vocab_size": 128256,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-V3.2",
        "DEEPSEEK-V3.2",
        "/workspace/DeepSeek-v3.2",
        "models/deepseek-v3.2/",
    ],
)
def test_a_model_is_known_by_id_alias_and_last_component(name: str) -> None:
    assert Library().model(name).id == "deepseek-ai/DeepSeek-V3.2"


def test_a_model_id_overrides_the_path() -> None:
    assert (
        Library().model("/data/weights", model_id="deepseek-ai/DeepSeek-R1").id
        == "deepseek-ai/DeepSeek-R1"
    )


def test_a_folder_is_known_by_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    card = Library().model(str(folder))
    assert (card.architecture.layers, card.kv_heads, card.architecture.head_dim) == (80, 8, 128)
    assert card.architecture.weight_bytes == 2.0
    assert not card.latent_attention


def test_a_model_s_own_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (spaces_root() / "models" / "deepseek-r1.yaml").read_text()
    path.write_text(text.replace("deepseek-ai/DeepSeek-R1", "me/mine"))
    assert Library().model(str(path)).id == "me/mine"


def test_a_config_without_figures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    with pytest.raises(MalformedFile, match="num_hidden_layers"):
        Library().model(str(tmp_path))


def test_an_unknown_model_says_which_file_would_describe_it() -> None:
    with pytest.raises(
        UnknownName, match=r"search_spaces/models/<name>\.yaml.*config\.json"
    ) as caught:
        Library().model("deepseek-ai/DeepSeek-V9")
    assert "deepseek-ai/DeepSeek-V3.2" in str(caught.value)


def test_unknown_names_are_answered_with_the_right_ones() -> None:
    with pytest.raises(UnknownName, match=r"Known: .*h200, .*local, .*mi300x"):
        Library().node("h2000")
    with pytest.raises(UnknownName, match=r"did you mean 'sglang'"):
        Library().engine("sglan")
    assert Library().engine("trtllm").engine == "tensorrt_llm"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("name: x\nvendor: nvidia\nbandwidth_tb_s: [\n", 4, "not YAML"),
        ("", 1, "empty"),
        ("name: x\nvendor: intel\nbandwidth_tb_s: 1\n", 2, "vendor"),
        (
            "name: x\nvendor: amd\nbandwidth_tb_s: 1\nspeed: 9\n",
            4,
            "missing keys: generation, gpus, .*, source$",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, problem: str
) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    with pytest.raises(MalformedFile, match=problem) as caught:
        Library().node(str(path))
    if line is not None:
        assert f":{line}: " in str(caught.value)
        assert f"node.yaml:{line}:" in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "name", "gpus"),
    [
        ("l40s", "l40s", 8),
        ("NVIDIA L40S", "l40s", 8),
        ("4xL40S", "l40s", 4),
        ("4090", "rtx4090", 1),
        ("RTX 4090", "rtx4090", 1),
        ("2 x geforce rtx 4090", "rtx4090", 2),
        ("5090", "rtx5090", 1),
        ("a10", "a10", 8),
        ("A10G", "a10g", 8),
        ("H100 PCIe", "h100-pcie", 8),
        ("rtx 6000 ada", "rtx6000-ada", 1),
        ("AMD Instinct MI300X", "mi300x", 8),
        ("8xh200", "h200", 8),
        ("DGX Spark", "gb10", 1),
        ("h20-141gb", "h20-3e", 8),
        ("h20", "h20", 8),
        ("4 x RTX A6000", "rtx-a6000", 4),
        ("a6000", "rtx-a6000", 1),
        ("16xa100", "a100", 16),
    ],
)
def test_a_node_is_found_by_what_people_type(typed: str, name: str, gpus: int) -> None:
    card = Library().node(typed)
    assert (card.name, card.gpus) == (name, gpus)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("v100", "h100"),
        ("l40g", "l40"),
        ("h1000", "h100"),
        ("mi300", "mi300x"),
        ("0xh200", "h200"),
    ],
)
def test_no_other_gpu_is_suggested_and_a_file_to_start_from_is_named(
    typed: str, nearest: str
) -> None:
    with pytest.raises(UnknownName) as caught:
        Library().node(typed)
    assert "did you mean" not in str(caught.value)
    (path,) = re.findall(r"copy the nearest, (\S+\.yaml)", str(caught.value))
    assert Library().node(path).name == nearest


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("16xh200", "a node of h200 has at most 8 GPUs, so these are 2 nodes"),
        ("24xMI300X", "a node of mi300x has at most 8 GPUs, so these are 3 nodes"),
        ("8xgb200", "a node of gb200 has at most 4 GPUs, so these are 2 nodes"),
        ("2xdgx-spark", "a node of gb10 has at most 1 GPU, so these are 2 nodes"),
        ("99xh200", "13 nodes"),
    ],
)
def test_more_gpus_than_one_box_has_are_several_nodes_and_no_server_is_over_them(
    typed: str, said: str
) -> None:
    with pytest.raises(BadInput, match=rf"^{typed}: .*{said}.*--executor ray"):
        Library().node(typed)


def test_every_card_says_where_its_figures_are_from_and_what_was_not_measured() -> None:
    measured = {"h200", "mi300x"}
    assert len(Library().hardware) > 20
    for name, card in Library().hardware.items():
        assert name in measured or "nothing was measured here" in card.source, name
        assert card.fp8_tflops >= card.bf16_tflops
        # PCIe 4.0 x16 is the slowest link there is, and no card's driver tells 7 % more or less
        # than its data sheet.
        assert card.link_gb_s >= 64
        assert (card.driver_memory_gb or card.memory_gb) == pytest.approx(card.memory_gb, rel=0.075)


def test_an_overlay_folder_adds_a_node(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    text = (spaces_root() / "hardware" / "h200.yaml").read_text()
    (tmp_path / "hardware" / "mine.yaml").write_text(
        text.replace("name: h200", "name: mine")
        .replace("[h200-sxm]", "[]")
        .replace("gpus: 8", "gpus: 4")
    )
    assert Library((tmp_path,)).node("mine").gpus == 4
    assert Library((tmp_path,)).node("h200").name == "h200"


def test_a_copied_card_with_another_memory_at_one_of_two_places_is_refused(tmp_path: Path) -> None:
    """An engine's memory was read from the key that the copy left as it was."""
    copied = (
        (spaces_root() / "hardware" / "h200.yaml")
        .read_text()
        .replace("memory_gb: 141", "memory_gb: 100", 1)
    )
    (tmp_path / "mine.yaml").write_text(copied.replace("name: h200", "name: mine"))
    with pytest.raises(MalformedFile, match="driver_memory_gb is over 10 % from memory_gb"):
        Library().node(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("card", "table"),
    [
        ("vllm/engine.yaml", "vllm/options/0.99.0.json"),
        ("engines/vllm.yaml", "engines/options/vllm-0.99.0.json"),
    ],
)
def test_an_overlay_folder_replaces_an_engine_s_card_and_adds_a_table(
    tmp_path: Path, card: str, table: str
) -> None:
    text = packaged("engines", "vllm").read_text()
    for file, content in (
        (
            card,
            text.replace("title: vLLM", "title: Ours").replace(
                '"0.33.0"]', '"0.33.0", "0.99.0"]', 1
            ),
        ),
        (
            table,
            (spaces_root() / "vllm/options/0.33.0.json")
            .read_text()
            .replace('"0.33.0"', '"0.99.0"'),
        ),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    library = Library((tmp_path,))
    assert (library.engine("vllm").title, library.engine("sglang").title) == ("Ours", "SGLang")
    assert set(library.engines) == set(Library().engines)
    kind = engine("vllm", library)
    assert kind.version() == "0.99.0"
    assert [kind.table(version).version for version in ("0.99.0", "0.32.0")] == ["0.99.0", "0.32.0"]
    assert check(tmp_path) == [tmp_path / card]


def test_the_packaged_spaces_are_valid() -> None:
    schemas = {
        "workloads": Workload,
        "simulation": SpeedCard,
        "physics": Physics,
        "calibrations": Calibration,
        "emulation": EmulationCard,
    }
    checked = check(None, schemas=schemas)
    engines = ("vllm", "sglang", "tensorrt_llm")
    for name in engines:
        files = {path.name for path in checked if path.parent.name == name}
        assert files == {"engine.yaml", "simulator.yaml", "emulator.yaml"}
    rest = {path.parent.name for path in checked} - set(engines)
    assert rest == {"models", "hardware", "workloads", "physics", "calibrations"}


def test_a_workload_s_mistake_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        (spaces_root() / "workloads" / "short.yaml").read_text().replace("prompts:", "promts:")
    )
    with pytest.raises(MalformedFile, match=r"promts: unknown key") as caught:
        check(path, schemas={"workloads": Workload})
    line = path.read_text()[: path.read_text().index("promts")].count("\n") + 1
    assert str(caught.value).startswith(f"{path}:{line}: ")


def engine_file(folder: Path, old: str, new: str) -> tuple[Path, int]:
    """The packaged vLLM file with one text replaced, and the line at which it stands."""
    text = packaged("engines", "vllm").read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    path = folder / "vllm.yaml"
    path.write_text(changed)
    return path, changed[: changed.index(new)].count("\n") + 1


def test_check_names_the_line_of_an_unknown_name_in_a_rule(tmp_path: Path) -> None:
    text = packaged("engines", "vllm").read_text()
    forbid = next(line for line in text[text.index("\nrules:") :].splitlines() if "forbid:" in line)
    indent = forbid[: forbid.index("forbid:")]
    path, line = engine_file(tmp_path, forbid, f"{indent}forbid: tensor_paralel > 9000")
    with pytest.raises(MalformedFile, match="tensor_paralel") as caught:
        check(path)
    assert f":{line}: " in str(caught.value)


def test_check_names_the_line_of_a_bad_expression(tmp_path: Path) -> None:
    text = packaged("engines", "vllm").read_text()
    forbid = next(line for line in text[text.index("\nrules:") :].splitlines() if "forbid:" in line)
    indent = forbid[: forbid.index("forbid:")]
    path, line = engine_file(tmp_path, forbid, f'{indent}forbid: "open(1) > 9000"')
    with pytest.raises(MalformedFile, match="may be called") as caught:
        check(path)
    assert f":{line}: " in str(caught.value)


def test_check_of_nothing_says_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="engines, models"):
        check(tmp_path)
    with pytest.raises(BadInput, match="no such file"):
        check(tmp_path / "absent.yaml")
