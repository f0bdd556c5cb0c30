"""A model folder in pieces: fp16 weights in files under 15 MiB, and the folder made whole again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoupled.model.jsonable import to_json
from decoupled.model.model import Model, build, folder

LIMIT = 14 << 20


def save_parts(model: Model, path: Path) -> None:
    """Write the spec, the tokenizer, the history and the weights of a model in small files."""
    path.mkdir(parents=True, exist_ok=True)
    spec = {"format": folder.FORMAT, **to_json(model.spec)}
    (path / folder.SPEC).write_text(json.dumps(spec, indent=1), encoding="utf-8")
    (path / folder.TOKENIZER).write_text(model.tokenizer.json, encoding="utf-8")
    history = json.dumps(list(model.history), indent=1)
    (path / folder.HISTORY).write_text(history, encoding="utf-8")
    files: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in model.net.state_dict().items():
        for number, rows in enumerate(_rows(tensor.detach().half().cpu())):
            if size + rows.nbytes > LIMIT:
                files.append({})
                size = 0
            files[-1][f"{name}#{number}"] = rows
            size += rows.nbytes
    for number, tensors in enumerate(files):
        save_file(tensors, path / f"weights-{number:02d}.safetensors")


def _rows(tensor: Tensor) -> list[Tensor]:
    """The tensor itself, or blocks of its rows that fit a file."""
    if tensor.nbytes <= LIMIT:
        return [tensor.contiguous()]
    step = max(1, LIMIT // (tensor.nbytes // len(tensor)))
    return [tensor[i : i + step].contiguous() for i in range(0, len(tensor), step)]


def load_parts(path: Path) -> Model:
    """The model that `save_parts` wrote, in fp32 again."""
    blocks: dict[str, dict[int, Tensor]] = {}
    for file in sorted(path.glob("weights-*.safetensors")):
        for key, tensor in load_file(file).items():
            name, _, number = key.rpartition("#")
            blocks.setdefault(name, {})[int(number)] = tensor
    tensors = {
        name: torch.cat([rows[i] for i in sorted(rows)]) if len(rows) > 1 else rows[0]
        for name, rows in blocks.items()
    }
    spec = folder.read_spec(path)
    tokenizer = folder.read_tokenizer(path, spec)
    return Model(build(spec, tensors), tokenizer, folder.read_history(path))
