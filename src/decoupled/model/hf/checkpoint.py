"""The files of a Hugging Face checkpoint: find the folder, read config and weights, run no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from decoupled.errors import InputError, MissingDependency, WeightsError

SAFETENSORS = "model.safetensors"
BIN = "pytorch_model.bin"

_ALWAYS = (
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
_SAFE_PATTERNS = (*_ALWAYS, "model*.safetensors", "model.safetensors.index.json")
_BIN_PATTERNS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def resolve(source: str | Path) -> Path:
    """The folder of a checkpoint: `source` itself, or a download of the hub model of that name."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(
            f"{folder} is a file; expected a folder that holds config.json and weights"
        )
    return _download(str(source))


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingDependency("huggingface_hub", "torch") from error
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_SAFE_PATTERNS)))
        # Second choice, asked for alone: many repositories hold both, and either may be gigabytes.
        if not (folder / SAFETENSORS).exists() and not _index(SAFETENSORS, folder).exists():
            patterns = [*_ALWAYS, *_BIN_PATTERNS]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{name!r} is neither a folder here nor a model that the Hugging Face hub gave "
            f"({reason}); give the path of a local folder, or check the name and the connection"
        ) from error
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json."""
    path = folder / "config.json"
    if (folder / "model" / "spec.json").is_file():
        raise InputError(f"{folder} is an index, not a model; its model is {folder / 'model'}")
    if not path.is_file():
        raise InputError(
            f"{folder} has no config.json, so it is not a Hugging Face checkpoint; "
            "give the folder that save_pretrained wrote"
        )
    return _read_object(path)


def tokenizer_file(folder: Path) -> Path:
    """The checkpoint's tokenizer.json, or an error that says how to make one."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            f"{folder} has no tokenizer.json; make one with transformers: "
            f'AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}")'
        )
    return path


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the checkpoint on the CPU, floating ones as fp32."""
    for name, read in ((SAFETENSORS, _read_safetensors), (BIN, _read_bin)):
        index = _index(name, folder)
        if (folder / name).is_file():
            tensors = read(folder / name)
        elif index.is_file():
            tensors = {}
            for shard in _shards(index):
                tensors.update(read(shard))
            _check_shards(index, tensors)
        else:
            continue
        return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    raise InputError(
        f"{folder} has no weights: neither {SAFETENSORS} nor {BIN}, whole or in shards; "
        "download them, or save the model again with save_pretrained"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _read_bin(path: Path) -> dict[str, Tensor]:
    version = torch.__version__.split(".")
    if (int(version[0]), int(version[1])) < (2, 6):
        # Before 2.6 even weights_only=True could run code from the file (CVE-2025-32434).
        raise WeightsError(
            f"{path} is a pickle, and torch {torch.__version__} cannot read it safely; "
            "install torch 2.6 or newer, or convert the checkpoint to safetensors"
        )
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can trip its reader in any way
        if any(word in str(error) for word in ("GLOBAL", "global", "unrecognized function")):
            raise WeightsError(
                f"{path} is a pickle that needs code to be run, and nothing in it was run; "
                "convert the checkpoint to safetensors where you trust it"
            ) from error
        raise _unreadable(path, error) from error
    if not isinstance(tensors, dict) or not all(isinstance(v, Tensor) for v in tensors.values()):
        raise WeightsError(f"{path} holds no plain table of tensors; save the model's state_dict()")
    return tensors


def _unreadable(path: Path, error: Exception) -> WeightsError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "Weights only" in reason:
        reason = "not a torch file"
    size = path.stat().st_size if path.exists() else 0
    return WeightsError(
        f"{path} ({size} bytes) is truncated or corrupt ({reason}); download or copy it again"
    )


def _index(name: str, folder: Path) -> Path:
    return folder / f"{name}.index.json"


def _shards(index: Path) -> list[Path]:
    """The files that an index names, each beside it."""
    names = sorted(set(_weight_map(index).values()))
    for name in names:
        if Path(name).name != name:
            raise WeightsError(f"{index} names {name!r}; expected shards in the same folder")
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index} names {name}, which is not there; download it again")
    return [index.parent / name for name in names]


def _check_shards(index: Path, tensors: dict[str, Tensor]) -> None:
    if lost := sorted(set(_weight_map(index)) - set(tensors)):
        raise WeightsError(
            f"{index} promises {len(lost)} tensors that no shard holds ({', '.join(lost[:5])}); "
            "download the checkpoint again"
        )


def _weight_map(index: Path) -> dict[str, str]:
    found = _read_object(index).get("weight_map")
    if not isinstance(found, dict):
        raise WeightsError(f"{index} has no weight_map; download it again")
    return found


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); download or copy it again") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}; expected a JSON object")
    return data
