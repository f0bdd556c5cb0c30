"""The table of the methods: which folder of `decoupled.methods` holds what a file or a command names.

The core never imports `decoupled.methods`. A kind in a `spec.json`, a method of `shrink` or an objective of a
recipe is looked up here by its name, and its folder is loaded then. To add a method, add its folder and its
lines of this table.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from decoupled.errors import SpecError

METHODS = "decoupled.methods"

KINDS = {
    "banded": "bands",
    "causal": "decoder",
    "complex": "complex",
    "compressive": "compressive",
    "cross": "decoder",
    "define": "define",
    "delight": "delight",
    "dextra": "define",
    "factorised": "factorise",
    "fixed": "fixed_heads",
    "hop": "hop",
    "lsh": "lsh",
    "lsra": "lsra",
    "tree": "tree",
}
"""Tag of a kind (attention, token table, block, structure) → the folder whose `part.py` describes it."""

SHRINKING = {
    "share": "share",
    "untie": "share",
    "factorise-embedding": "factorise",
    "band-embedding": "bands",
    "reduce-vocabulary": "vocabulary",
    "prune-heads": "prune_heads",
    "prune-neurons": "prune_neurons",
    "prune-weights": "prune_weights",
    "fix-heads": "fixed_heads",
    "layerdrop": "layerdrop",
    "keep-layers": "layerdrop",
    "theseus": "theseus",
    "student": "student",
    "low-rank": "low_rank",
    "quantise": "quantise",
    "chunk-ffn": "chunk",
    "checkpoint-gradients": "chunk",
    "reversible": "reversible",
    "lengthen": "lengthen",
    "lsh": "lsh",
    "compressive": "compressive",
    "tree": "tree",
    "hop": "hop",
    "complex-embedding": "complex",
    "define": "define",
    "delight": "delight",
    "lsra": "lsra",
}
"""Name of a shrinking method → the folder whose `shrink.py` defines it, in the order of `shrink --list`."""

OBJECTIVES = {
    "depth": "exits.depth",
    "exits": "exits.objective",
    "mlm": "pretrain.mlm",
    "nsp": "pretrain.nsp",
    "sop": "pretrain.sop",
    "electra": "pretrain.electra",
    "structbert": "pretrain.structbert",
    "wklm": "pretrain.wklm",
}
"""Name of an objective of a recipe → its module."""


def load(name: str) -> ModuleType:
    """The module of that name in `decoupled.methods`; `SpecError` names a folder that is missing."""
    full = f"{METHODS}.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as error:
        # A module that the method itself imports and that is absent is another fault: keep its own
        # error.
        if error.name is None or not full.startswith(error.name):
            raise
        raise SpecError(
            f"{error.name} is not part of this installation; install decoupled-transformer again, whole"
        ) from None


def load_kind(tag: object) -> None:
    """Import the method that defines this tag; afterwards its kind is a known subclass of its base."""
    if isinstance(tag, str) and tag in KINDS:
        load(f"{KINDS[tag]}.part")


def registers(registry: Any, part: object, beside: str) -> bool:
    """Return whether a registry (a `singledispatch` function) has an entry for the kind of this part.

    What a method registers stands beside the description of its kind, in the file called `beside`, which is
    loaded first: `module` holds the torch module, `openvino` the lowering.
    """
    package, _, _ = type(part).__module__.rpartition(".")
    if package.startswith(f"{METHODS}."):
        try:
            import_module(f"{package}.{beside}")
        # A method may lack this file (no lowering, say); only a module missing inside it is an
        # error.
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{beside}":
                raise
    # An unregistered kind falls through to the implementation for `object`, which raises.
    return registry.dispatch(type(part)) is not registry.dispatch(object)
