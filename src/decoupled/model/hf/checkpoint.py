"""The files of a Hugging Face checkpoint: find the folder, read config and weights, run no code."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from decoupled.errors import DecoupledError, InputError, WeightsError
from decoupled.model.hf.hub import BIN, SAFETENSORS, local
from decoupled.model.jsonable import JsonObject


def resolve(source: str | Path) -> Path:
    """The folder of a checkpoint: `source` itself, or a download of the hub model of that name."""
    folder = local(source)
    if folder.is_dir():
        return folder
    raise InputError(f"{folder} is a file; expected a folder that holds config.json and weights")


def read_config(folder: Path) -> JsonObject:
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


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise `InputError` for whatever a wrong file does to those who read it: no list foresees all."""
    try:
        yield
    except (DecoupledError, OSError):
        raise
    except Exception as error:
        raise InputError(
            f"{folder} cannot be read as a checkpoint ({type(error).__name__}: {_reason(error)}); "
            "download or copy it again"
        ) from error


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
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file() or index.is_file():
            tensors = read(whole) if whole.is_file() else _read_shards(index, read)
            if bad := [k for k, v in tensors.items() if not v.isfinite().all()]:
                raise WeightsError(
                    f"{folder} has weights that are NaN or infinite ({', '.join(bad[:3])}); copy it again"
                )
            return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    raise InputError(
        f"{folder} has no weights: neither {SAFETENSORS} nor {BIN}, whole or in shards; "
        "download them, or save the model again with save_pretrained"
    )


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of the files that an index names, each beside it."""
    listed = _read_object(index).get("weight_map")
    if not isinstance(listed, dict):
        raise WeightsError(f"{index} has no weight_map; download it again")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(listed.values())):
        # An index is not trusted: a name with a folder in it could point outside the checkpoint.
        if Path(name).name != name:
            raise WeightsError(f"{index} names {name!r}; expected shards in the same folder")
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index} names {name}, which is not there; download it again")
        tensors |= read(index.parent / name)
    if lost := sorted(set(listed) - set(tensors)):
        raise WeightsError(
            f"{index} promises {len(lost)} tensors that no shard holds ({', '.join(lost[:5])}); "
            "download the checkpoint again"
        )
    return tensors


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
        # weights_only refuses classes and functions; only its message tells that case.
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
    reason = "not a torch file" if "Weights only" in _reason(error) else _reason(error)
    size = path.stat().st_size if path.exists() else 0
    return WeightsError(
        f"{path} ({size} bytes) is truncated or corrupt ({reason}); download or copy it again"
    )


def _reason(error: Exception) -> str:
    # Errors of libraries run over many lines; only the first goes into ours.
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read_object(path: Path) -> JsonObject:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); download or copy it again") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}; expected a JSON object")
    return data
