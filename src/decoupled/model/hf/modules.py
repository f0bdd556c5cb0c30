"""A reranker that sentence-transformers saved as modules: its head lies in folders beside the encoder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.hf.checkpoint import read_config, read_weights
from decoupled.model.jsonable import JsonObject

KINDS = ("Transformer", "Pooling", "Dense", "LayerNorm", "Dense")
"""The sequence of sentence-transformers modules that equals `ModernBertForSequenceClassification`."""


def with_head(
    folder: Path, config: JsonObject, weights: dict[str, Tensor]
) -> tuple[JsonObject, dict[str, Tensor]]:
    """Config and weights merged into one checkpoint; unchanged where no such modules are listed."""
    listed = folder / "modules.json"
    if config.get("model_type") != "modernbert" or not listed.is_file():
        return config, weights
    modules = json.loads(listed.read_text(encoding="utf-8"))
    if tuple(str(one["type"]).rpartition(".")[2] for one in modules) != KINDS:
        return config, weights
    # Only the last part of a path: modules.json must not lead outside the checkpoint.
    places = [folder / Path(one["path"]).name for one in modules[1:]]
    pooling, dense, _, scores = (read_config(place) for place in places)
    if _activation(scores) != "identity" or scores["out_features"] != 1:
        raise InputError(
            f"{places[-1]} gives {scores['out_features']} values through {_activation(scores)}; expected one "
            "value as it is: use a reranker"
        )
    head = {
        "architectures": ["ModernBertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "classifier_pooling": _pooling(pooling, places[0]),
        "classifier_activation": _activation(dense),
        "classifier_bias": bool(dense["bias"]),
        # Their LayerNorm module has a bias, even where the encoder's norms have none.
        "classifier_norm_bias": True,
    }
    names = {"linear": "head.dense", "norm": "head.norm"}
    renamed = {f"model.{name}": tensor for name, tensor in weights.items()}
    for place in places[1:3]:
        for name, tensor in read_weights(place).items():
            module, _, kind = name.partition(".")
            renamed[f"{names[module]}.{kind}"] = tensor
    renamed |= {
        name.replace("linear", "classifier"): tensor
        for name, tensor in read_weights(places[-1]).items()
    }
    return {**config, **head}, renamed


def _activation(config: Mapping[str, Any]) -> str:
    return str(config["activation_function"]).rpartition(".")[2].lower()


def _pooling(config: Mapping[str, Any], place: Path) -> str:
    """`cls` or `mean`, as older and newer versions write it."""
    modes = [mode for mode in ("cls_token", "mean_tokens") if config.get(f"pooling_mode_{mode}")]
    mode = str(config.get("pooling_mode") or "+".join(modes)).removesuffix("_token")
    mode = mode.removesuffix("_tokens")
    if mode not in ("cls", "mean"):
        raise InputError(f"{place} pools by {mode or 'nothing'}; expected cls or mean")
    return mode
