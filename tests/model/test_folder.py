"""The model folder: exact, whole or not at all, and honest about what is wrong with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from decoupled.errors import DecoupledError, InputError, SpecError, WeightsError, in_words
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model, folder
from decoupled.model.spec import ModelSpec
from decoupled.model.sums import check_file
from decoupled.model.tokens import Tokenizer
from decoupled.runtime.open import open_runtime


def test_save_and_load_are_inverse(model, family, tmp_path):
    split = Model.split(model(family, "rank"), at=2)
    split.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    assert again.spec == split.spec
    assert again.fingerprint == split.fingerprint
    assert [step["did"] for step in again.history] == ["read", "split"]
    mine, theirs = split.net.state_dict(), again.net.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[n], theirs[n]) for n in mine)


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_a_disk_that_takes_no_more_is_an_error_of_the_disk(model, tmp_path):
    import resource

    split = Model.split(model("bert", "rank"), at=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            split.save(tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = r".*/weights\.safetensors: File too large; raise the limit on the size of files"
    assert re.fullmatch(said, in_words(raised.value))
    assert not list(tmp_path.iterdir())
    split.save(tmp_path / "m")


def test_spec_survives_json(model, family):
    spec = model(family, "span").spec
    assert from_json(ModelSpec, json.loads(json.dumps(to_json(spec)))) == spec


def test_the_types_of_a_spec_are_found_out_once(model, monkeypatch):
    """Which takes ten times longer than all the rest."""
    written = to_json(model("bert", "span").spec)
    from_json(ModelSpec, written)
    monkeypatch.setattr("typing.get_type_hints", lambda kind: pytest.fail(f"{kind} again"))
    from_json(ModelSpec, written)


def test_fingerprint_sees_the_input_component_and_nothing_else(model):
    whole = model("bert", "rank")
    split = Model.split(whole, at=2)

    def changed(name: str) -> str:
        other = Model.split(whole, at=2)
        with torch.no_grad():
            other.net.get_parameter(name).add_(0.01)
        return other.fingerprint

    assert changed("stack.attention.1.attention.query.weight") != split.fingerprint
    assert changed("embedding.tokens.weight") != split.fingerprint
    assert changed("stack.ffn.2.up.weight") == split.fingerprint
    assert changed("heads.rank.out.weight") == split.fingerprint
    assert Model.split(whole, at=1).fingerprint != split.fingerprint
    assert Model.split(whole, at=2, positions="offset").fingerprint != split.fingerprint
    assert Model.split(whole, at=2, stride=7).fingerprint != split.fingerprint
    words = split.tokenizer.json.replace('"lowercase": true', '"lowercase": false')
    assert words != split.tokenizer.json
    other = Model(split.net, Tokenizer(words, split.spec.text))
    assert other.fingerprint != split.fingerprint, "other tokens of a passage are other states"


def test_a_failed_write_leaves_nothing(model, tmp_path):
    split = Model.split(model("bert", "rank"), at=1)
    split.save(tmp_path / "m")
    before = split.fingerprint
    with pytest.raises(RuntimeError), folder.replacing(tmp_path / "m", folder.SPEC) as fresh:
        (fresh / "spec.json").write_text("half")
        raise RuntimeError
    assert Model.load(tmp_path / "m").fingerprint == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_model_is_on_the_disk_before_it_has_its_name(model, tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def spy(descriptor):
        assert not (tmp_path / "m").exists() or len(synced) >= 5
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    model("bert", "rank").save(tmp_path / "m")
    files = {p.name for p in (tmp_path / "m").iterdir()}
    assert files <= set(synced[:-2]) and synced[-1] == tmp_path.name


def test_other_peoples_folders_are_left_alone(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"exists and is not a folder that holds spec\.json"):
        Model.split(model("bert", "rank"), at=1).save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_saving_twice_replaces_the_model(model, tmp_path):
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    assert Model.load(tmp_path / "m").spec.split == 2


def damage(path, name):
    (path / "sums.json").unlink()  # as someone who changes a folder by hand must
    spec = json.loads((path / "spec.json").read_text())
    match name:
        case "truncated weights":
            data = (path / "weights.safetensors").read_bytes()
            (path / "weights.safetensors").write_bytes(data[: len(data) // 2])
        case "no weights":
            (path / "weights.safetensors").unlink()
        case "no tokenizer":
            (path / "tokenizer.json").unlink()
        case "unknown field":
            spec["colour"] = "blue"
        case "future format":
            spec["format"] = 99
        case "wrong type":
            spec["split"] = "two"
        case "unknown kind":
            spec["encoder"]["layers"][0]["attention"]["kind"] = "telepathic"
        case "no json":
            (path / "spec.json").write_text("{")
            return
        case "fewer layers":
            spec["encoder"]["layers"].pop()
        case "wider":
            spec["encoder"]["embedding"]["vocab"] += 1
    (path / "spec.json").write_text(json.dumps(spec))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "truncated weights",
            WeightsError,
            r"weights\.safetensors is damaged .* save the model again",
        ),
        ("no weights", WeightsError, r"weights\.safetensors is missing"),
        ("no tokenizer", InputError, r"tokenizer\.json is missing; copy"),
        ("unknown field", SpecError, "unknown fields colour; was it made by a newer version"),
        ("future format", SpecError, "has format 99, and this version reads 1; update decoupled"),
        ("wrong type", SpecError, r"ModelSpec\.split is 'two'; expected int"),
        ("unknown kind", SpecError, "of no known kind"),
        ("no json", SpecError, r"spec\.json is not JSON"),
        (
            "fewer layers",
            WeightsError,
            r"the weights hold stack\.attention\.2.* and \d+ more, which the spec",
        ),
        (
            "wider",
            WeightsError,
            r"embedding\.tokens\.weight has shape \(1000, 32\); the spec expects \(1001, 32\)",
        ),
    ],
)
def test_damage_is_named(model, tmp_path, name, kind, message):
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    damage(tmp_path / "m", name)
    with pytest.raises(kind, match=message):
        Model.load(tmp_path / "m")


@pytest.mark.parametrize("file", ["spec.json", "tokenizer.json"])
def test_a_changed_byte_of_a_description_is_named(model, tmp_path, file):
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    target = tmp_path / "m" / file
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    target.write_bytes(content)
    with pytest.raises(WeightsError, match=f"{file} in .* was damaged or replaced since"):
        Model.load(tmp_path / "m")


def test_checksums_that_would_never_end_are_refused(tmp_path):
    (tmp_path / "sums.json").symlink_to("/dev/zero")
    with pytest.raises(WeightsError, match=r"sums\.json is damaged \(it is no regular file\)"):
        check_file(tmp_path, "spec.json")


def test_the_bundled_model_has_a_checksum_for_all_that_decides_scores():
    path = folder.starter_model()
    sums = json.loads((path / "sums.json").read_text())
    with safe_open(path / "weights.safetensors", framework="numpy") as weights:
        assert "weights.safetensors" in sums or "crc32" in (weights.metadata() or {})
    with safe_open(path / folder.EXPORTED, framework="numpy") as ranges:
        assert "crc32" in ranges.metadata()
    assert {"spec.json", "tokenizer.json"} <= sums.keys()


def craft(path, name):
    """What only an attacker writes."""
    weights = path / "weights.safetensors"
    spec, tokenizer = (json.loads((path / f).read_text()) for f in ("spec.json", "tokenizer.json"))
    (path / "sums.json").unlink()
    match name:
        case "checksums that are no JSON":
            save_file(folder.read_tensors(path), weights, metadata={"crc32": "{"})
        case "checksums that are a list":
            save_file(folder.read_tensors(path), weights, metadata={"crc32": "[1]"})
        case "float8":
            tensors = {n: torch.from_numpy(t) for n, t in folder.read_tensors(path).items()}
            tensors = {n: t.to(torch.float8_e4m3fn) for n, t in tensors.items()}
            safetensors.torch.save_file(tensors, weights)
        case "nested":
            (path / "spec.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
            return
        case "wide":
            spec["encoder"]["width"] = 10**9
        case "long":
            spec["encoder"]["layers"] *= 1_000
        case "eps":
            spec["encoder"]["embedding"]["norm"]["eps"] = float("nan")
        case "token 2**32 - 1" | "token 2**31 - 1":
            spec["text"]["query_prefix"] = [eval(name.partition(" ")[2])]
        case "id":
            tokenizer["model"]["vocab"]["river"] = 2**32 - 1
        case "panic":
            tokenizer["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
        case "panic while it is read":
            tokenizer["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (path / "spec.json").write_text(json.dumps(spec))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("checksums that are no JSON", "the list of checksums, are not what was saved"),
        ("checksums that are a list", "the list of checksums, are not what was saved"),
        ("float8", r"weights\.safetensors is damaged"),
        ("nested", r"spec\.json is not JSON"),
        ("wide", "the encoder is 1000000000 wide; expected 1 to 65536"),
        ("long", r"encoder\.layers has \d+ items; expected at most 1024"),
        ("eps", r"norm\.eps is nan; expected a number"),
        ("token 2**32 - 1", "is 4294967295; expected a number within"),
        ("token 2**31 - 1", "token 2147483647 is none of the 1000 of the vocabulary"),
        ("id", "makes a token of id 4294967295, and the model has 1000 tokens"),
        ("panic", r"tokenizer\.json cannot be read \(chunk size must be non-zero\)"),
        ("panic while it is read", r"tokenizer\.json cannot be read \(Precompiled"),
    ],
)
def test_a_crafted_folder_is_one_error(model, tmp_path, name, message, runtime):
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    craft(tmp_path / "m", name)
    with pytest.raises(DecoupledError, match=message):
        open_runtime(tmp_path / "m", name=runtime).tokenizer.query("the river")


@pytest.mark.parametrize("name", ["embedding.tokens.weight", "heads.rank.out.weight"])
def test_a_changed_byte_of_the_weights_is_named(model, tmp_path, name):
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    file = tmp_path / "m" / "weights.safetensors"
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[:8], "little")
    content[8 + size + json.loads(content[8 : 8 + size])[name]["data_offsets"][0]] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        WeightsError, match=f"1 of .* tensors, first {name}, are not what was saved"
    ):
        folder.read_tensors(tmp_path / "m")
    folder.read_tensors(tmp_path / "m", lambda other: other != name)
    with pytest.raises(WeightsError, match=f"first {name}, are not what was saved"):
        folder.StoredTensors(tmp_path / "m")


@pytest.mark.parametrize("compact", [False, True])
def test_stored_tensors_are_read_when_asked_for_and_held_while_used(model, tmp_path, compact):
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m", compact=compact)
    expected = folder.read_tensors(tmp_path / "m")
    stored = folder.StoredTensors(tmp_path / "m")
    shutil.rmtree(tmp_path / "m")
    assert stored.keys() == expected.keys() and len(stored) == len(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(stored[name], tensor)
        assert stored[name].dtype == tensor.dtype and stored.shapes[name] == tensor.shape
    used = stored["embedding.tokens.weight"]
    assert stored["embedding.tokens.weight"] is used
    gone = weakref.ref(used)
    del used
    assert gone() is None
    with pytest.raises(KeyError):
        stored["nobody"]


def test_a_damaged_history_keeps_no_model_from_loading(model, tmp_path, caplog):
    Model.split(model("bert", "rank"), at=2).save(tmp_path / "m")
    (tmp_path / "m" / "history.json").write_text("[{")
    assert Model.load(tmp_path / "m").history in ([], ())
    assert "the model is loaded without it" in caplog.text


def test_a_missing_folder_says_how_to_make_one(tmp_path):
    with pytest.raises(
        InputError, match="does not exist, so it is not a model folder; make one with"
    ):
        folder.read_spec(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=rf"split {re.escape(str(tmp_path))} -o MODEL --at K"):
        folder.read_spec(tmp_path)  # a checkpoint, which the remedy must not write over


def test_only_wanted_tensors_are_read(model, tmp_path):
    Model.split(model("bert", "rank"), at=1).save(tmp_path / "m")
    got = folder.read_tensors(tmp_path / "m", lambda name: name.startswith("heads."))
    assert set(got) == {
        "heads.rank.out.weight",
        "heads.rank.out.bias",
        "heads.rank.dense.weight",
        "heads.rank.dense.bias",
    }
    assert all(t.dtype == np.float32 for t in got.values())
