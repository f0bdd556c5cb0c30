"""What a user reads of a checkpoint that is damaged, incomplete, unsafe or of no known kind."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoupled.errors import DecoupledError, InputError, SpecError, WeightsError
from decoupled.model.hf import checkpoint
from decoupled.model.hf.checkpoint import read_config, read_weights, resolve, tokenizer_file
from decoupled.model.hf.convert import FAMILIES as READERS
from decoupled.model.hf.convert import load
from decoupled.model.model import Model
from tiny import FAMILIES, edit_config, edit_weights, save_tiny, tiny_config, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path, "bert", "rank")
    return tmp_path


def as_bin(folder: Path, **more: object) -> dict[str, Tensor]:
    """Replace the safetensors file by a pickle."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, **more}, folder / "pytorch_model.bin")
    return tensors


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_half_precision_becomes_fp32_and_integers_stay(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.half() for name, tensor in load_file(path).items()}
    save_file({**tensors, "bert.embeddings.position_ids": torch.arange(96)}, path)
    read = read_weights(folder)
    assert read["bert.embeddings.position_ids"].dtype == torch.int64
    assert {tensor.dtype for tensor in load(folder).weights.values()} == {torch.float32}
    assert torch.equal(read["classifier.bias"], tensors["classifier.bias"].float())


def test_shards_of_safetensors(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "whole", "bert", "rank")
    model.save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert same(load(tmp_path / "parts").weights, load(tmp_path / "whole").weights)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bert", "rank").save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    shard = min((tmp_path / "parts").glob("*.safetensors"))
    tensors = load_file(shard)
    lost = next(iter(tensors))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, shard)
    with pytest.raises(WeightsError, match=rf"promises 1 tensors that no shard holds \({lost}\)"):
        read_weights(tmp_path / "parts")
    shard.unlink()
    with pytest.raises(WeightsError, match=rf"names {shard.name}, which is not there"):
        read_weights(tmp_path / "parts")


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(WeightsError, match=r"'\.\./a\.safetensors'; expected shards in the same"):
        read_weights(tmp_path)
    index.write_text("{}")
    with pytest.raises(WeightsError, match="has no weight_map"):
        read_weights(tmp_path)


def test_a_pickle_of_tensors_alone_is_read(folder: Path) -> None:
    expected = load(folder).weights
    as_bin(folder)
    assert same(load(folder).weights, expected)


def test_shards_of_pickles(folder: Path) -> None:
    tensors = as_bin(folder)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    places = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(places.values()):
        torch.save({n: tensors[n] for n in names if places[n] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert same(read_weights(folder), tensors)


class Malicious:
    """Unpickled carelessly, it leaves a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_code_in_a_pickle_is_refused_and_not_run(folder: Path) -> None:
    trace = folder / "ran"
    as_bin(folder, extra=Malicious(trace))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin .* needs code .* safetensors"):
        load(folder)
    assert not trace.exists()


def test_a_pickle_of_something_else_is_refused(folder: Path) -> None:
    as_bin(folder, epoch=3)
    with pytest.raises(WeightsError, match="holds no plain table of tensors"):
        load(folder)


def test_a_pickle_is_refused_where_torch_is_too_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_bin(folder)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(WeightsError, match=r"torch 2\.5\.1\+cpu cannot read it safely; .* 2\.6"):
        load(folder)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0, 30, 0.5, 0.99])
def test_a_truncated_file_is_named(folder: Path, kind: str, keep: float) -> None:
    if kind.endswith(".bin"):
        as_bin(folder)
    data = (folder / kind).read_bytes()
    size = int(keep if keep >= 1 else keep * len(data))
    (folder / kind).write_bytes(data[:size])
    with pytest.raises(WeightsError, match=rf"{kind} \({size} bytes\) is truncated or corrupt"):
        load(folder)


def test_a_pointer_in_place_of_weights_is_not_taken_for_code(folder: Path) -> None:
    as_bin(folder)
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(WeightsError, match=r"truncated or corrupt \(not a torch file\)"):
        load(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no weights: neither model\.safetensors nor pytorch"):
        load(folder)


def test_config_json_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json, so it is not a Hugging Face"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config\.json holds a list; expected a JSON object"):
        read_config(tmp_path)


def test_tokenizer_json_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"AutoTokenizer\.from_pretrained\(.*\)\.save_pretrained"):
        tokenizer_file(tmp_path)
    tiny_tokenizer(tmp_path)
    assert tokenizer_file(tmp_path) == tmp_path / "tokenizer.json"


def test_resolve_takes_a_folder_and_refuses_a_file(folder: Path) -> None:
    assert resolve(str(folder)) == folder
    with pytest.raises(InputError, match=r"config\.json is a file; expected a folder"):
        resolve(folder / "config.json")


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="'nobody/nothing' is neither a folder here nor") as caught:
        resolve("nobody/nothing")
    assert "check the name or path and the connection" in str(caught.value)
    with pytest.raises(InputError, match=r"'\./not/there/at/all' is neither a folder here nor"):
        resolve("./not/there/at/all")


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_a_download_asks_for_pickles_only_where_there_is_no_safetensors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind.endswith(".bin"):
        as_bin(folder)
    asked: list[list[str]] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert (name, revision) == ("someone/model", None)
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load("someone/model").folder == folder
    pickles = [any(".bin" in pattern for pattern in patterns) for patterns in asked]
    assert pickles == ([False] if kind == checkpoint.SAFETENSORS else [False, True])
    assert all("config.json" in patterns and "tokenizer*" in patterns for patterns in asked)


def test_missing_tensors_are_named_and_counted(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bert", "rank")
    layer = "bert.encoder.layer.1."
    names = [name for name in load_file(tmp_path / "model.safetensors") if name.startswith(layer)]
    edit_weights(tmp_path, drop=names)
    with pytest.raises(WeightsError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert f"{tmp_path} (BertForSequenceClassification) does not fit its config.json" in message
    assert "16 missing: bert.encoder.layer.1.attention.self.query.weight, " in message
    assert message.count(layer) == 5 and ", …" in message


def test_surplus_tensors_are_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "roberta", "span")
    edit_weights(tmp_path, add={"roberta.adapter.weight": torch.zeros(2)})
    with pytest.raises(WeightsError, match=r"1 surplus: roberta\.adapter\.weight;"):
        load(tmp_path)


def test_misshapen_tensors_show_both_shapes(tmp_path: Path) -> None:
    save_tiny(tmp_path, "modernbert", "rank")
    edit_config(tmp_path, intermediate_size=40)
    expected = (
        r"misshapen: model\.layers\.0\.mlp\.Wi\.weight \(expected \[80, 32\], found \[96, 32\]\)"
    )
    with pytest.raises(WeightsError, match=expected):
        load(tmp_path)


def test_an_unknown_family_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bert", "rank")
    edit_config(tmp_path, model_type="gpt2")
    with pytest.raises(SpecError, match="model_type='gpt2', which is no known family") as caught:
        load(tmp_path)
    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("bert", {"position_embedding_type": "relative_key"}, "'relative_key'.*'absolute'"),
        ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads="),
        ("bert", {"quantization_config": {"bits": 8}}, "quantization_config="),
        ("bert", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu'.*gelu_new"),
        ("bert", {"hidden_size": ...}, "hidden_size=None; expected a whole number"),
        ("bert", {"num_attention_heads": 5}, "hidden size 32 and 5 attention heads"),
        ("bert", {"layer_norm_eps": "small"}, "layer_norm_eps='small'; expected a number"),
        ("modernbert", {"rope_scaling": {"type": "linear"}}, "rope_scaling=.*'default'"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_parameters=.*'yarn'",
        ),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types=.*4 of 'full_attention'"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size=3"),
        ("deberta-v2", {"pos_att_type": ["p2p"]}, r"pos_att_type=\['p2p'\]"),
        ("deberta-v2", {"pos_att_type": None}, "pos_att_type=None"),
        ("deberta-v2", {"relative_attention": False}, "relative_attention=false and pos_att_type"),
        ("deberta-v2", {"attention_head_size": 6}, "attention_head_size=6.*expected 8"),
    ],
)
def test_what_the_encoder_cannot_compute_is_refused(
    family: str, options: dict[str, Any], message: str
) -> None:
    config = {**tiny_config(family).to_dict(), **options}
    config = {key: value for key, value in config.items() if value is not ...}
    with pytest.raises(SpecError, match=message):
        READERS[family].encoder(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"summary_type": "mean"}, "summary_type='mean'.*'first'"),
        ({"summary_use_proj": False}, "summary_use_proj=False"),
        ({"summary_activation": None}, "summary_activation=None, which is no known activation"),
    ],
)
def test_summaries_that_no_head_computes_are_refused(options: dict[str, Any], message: str) -> None:
    config = {**tiny_config("electra").to_dict(), **options}
    with pytest.raises(SpecError, match=message):
        READERS["electra"].head(config, "ElectraForMultipleChoice")


def deep(text: str) -> str:
    return text[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"


CRAFTED = {
    "architectures": lambda folder: edit_config(folder, architectures=5),
    "activation": lambda folder: edit_config(folder, hidden_act=[]),
    "labels": lambda folder: edit_config(folder, id2label={"a": 1}),
    "layers": lambda folder: edit_config(folder, num_hidden_layers=10**9),
    "width": lambda folder: edit_config(folder, hidden_size=10**40),
    "deep": lambda folder: (folder / "config.json").write_text(
        deep((folder / "config.json").read_text().strip())
    ),
    "shards": lambda folder: (
        (folder / "model.safetensors").unlink(),
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5, "b": []}}'),
    ),
    "weights": lambda folder: edit_weights(
        folder, add={"classifier.bias": torch.tensor([float("nan")])}
    ),
    "encoding": lambda folder: (folder / "tokenizer.json").write_bytes(b'{"\xff": 1}'),
    "replacing": lambda folder: (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                **json.loads((folder / "tokenizer.json").read_text()),
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
                    ]
                    * 8,
                },
            }
        )
    ),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_checkpoint_is_one_line(folder: Path, name: str) -> None:
    tiny_tokenizer(folder)
    Model.open(folder)
    CRAFTED[name](folder)
    began = time.process_time()
    with pytest.raises(DecoupledError) as error:
        Model.open(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000
    assert time.process_time() - began < 10
