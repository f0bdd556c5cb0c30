"""Who races: our runtimes and ways of reading, and the peers, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from decoupled.errors import InputError
from decoupled.lab.bench.shapes import DISTINCT, SHAPES, Shape, Texts, shape_named, write_checkpoint
from decoupled.runtime import cpu
from decoupled.runtime.open import NAMES as RUNTIMES

if TYPE_CHECKING:
    from decoupled.index.index import Index
    from decoupled.search.results import Hits

Way = Literal["exact", "narrow", "one-way", "one-way narrow", "cascade", "joint"]
"""The exact split; its states projected to a quarter of their width; passages frozen above it; both; a
cascade before it; or the same model unsplit."""
WAYS: dict[str, tuple[Way, ...]] = {"torch": ("exact", "one-way"), "openvino-fp32": ("exact",)}
"""Ways of the runtimes that are raced for comparison; the others race in all of them."""
ALL_WAYS: tuple[Way, ...] = ("exact", "narrow", "one-way", "one-way narrow", "cascade")
NARROW = 4

KEEP = 0.3
"""Share that the raced cascade reads; what quality allows is measured elsewhere."""
CODEC = "int8"

CROSS_ENCODER = "CrossEncoder torch"
COMPILED = "CrossEncoder torch compiled"
OPENVINO = "CrossEncoder OpenVINO int8"
ONNX, ONNX_INT8 = "onnxruntime fp32", "onnxruntime int8"
FLASHRANK = "FlashRank's shape (TinyBERT-L2, onnxruntime int8)"
MODERN = "ModernBERT-17M, CrossEncoder torch"
JOINT = "decoupled torch joint"

OURS: dict[str, tuple[str, Way]] = {
    JOINT: ("torch", "joint"),
    **{
        f"decoupled {runtime} {way}": (runtime, way)
        for runtime in RUNTIMES
        if runtime not in ("auto", "openvino")  # these stand for others
        for way in WAYS.get(runtime, ALL_WAYS)
    },
}
"""Our contenders: runtime and way."""
_TRANSFORMERS, _ONNX = ("sentence_transformers",), ("onnxruntime", "onnxscript", "transformers")
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((CROSS_ENCODER, COMPILED, MODERN), _TRANSFORMERS),
    **dict.fromkeys((ONNX, ONNX_INT8, FLASHRANK), _ONNX),
    OPENVINO: (*_TRANSFORMERS, "openvino", "nncf"),
}
"""Peers and the packages that they need, all in the extra `bench`."""
OWN_SHAPE = {FLASHRANK: "TinyBERT-L2", MODERN: "ModernBERT-17M"}
"""Peers that race with a model of their own, on speed alone."""

RACED = tuple(name for name, shape in SHAPES.items() if shape.split)
"""Shapes that we race with."""
BASELINES = (CROSS_ENCODER, JOINT)
"""What ratios are against: the first of these that raced."""

Rank = Callable[[str, int, int], list[str]]
"""From a query, a number of passages and how many are asked for: the ids of the best of the first ones."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something that ranks the passages of the race."""

    rank: Rank
    facts: dict[str, Any]
    """What a table should know about it."""
    stages: Callable[[str, int, int], dict[str, float]] | None = None
    """Where the milliseconds of such a query go, if it knows."""


def contenders(device: str, *, quick: bool) -> list[str]:
    """Everyone who could race on this kind of machine, our own last."""
    peers = [CROSS_ENCODER, OPENVINO, ONNX, ONNX_INT8, FLASHRANK, MODERN]
    if quick:
        peers = [CROSS_ENCODER]
    elif device != "cpu":
        peers = [CROSS_ENCODER, COMPILED, MODERN]
    gpu = device != "cpu"
    return [*peers, *(n for n, (runtime, _) in OURS.items() if gpu or "cuda" not in runtime)]


def missing(name: str) -> str | None:
    """Why a contender cannot race here, or None."""
    lacking = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if lacking:
        return f"{lacking[0]} is not installed (extra `bench`)"
    if "openvino" in name and find_spec("openvino") is None:
        return "openvino is not installed"
    return None


def arithmetic(name: str, facts: dict[str, Any]) -> str:
    """The kind of matrix product that a contender lives on."""
    if "int8" in name or "int8" in str(facts.get("runtime", "")):
        return "int8"
    return "bf16" if "bf16" in str(facts.get("notes", "")) or "cuda" in name else "fp32"


def open_contender(
    name: str, shape: Shape, checkpoint: Path, texts: Texts, work: Path, device: str
) -> Contender:
    """Load a contender in this process."""
    from decoupled.lab.bench import peers

    cpu.protect()
    if name in OURS:
        return open_ours(name, shape, checkpoint, texts, work)
    if name not in NEEDS:
        raise InputError(f"contender {name!r} is unknown; choose one of {', '.join(NEEDS)}")
    if name in OWN_SHAPE:
        own = OWN_SHAPE[name]
        checkpoint = write_checkpoint(shape_named(own), work / own)
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    if name == OPENVINO:
        return peers.openvino_int8(checkpoint, texts, work, threads)
    if NEEDS[name] == _ONNX:
        return peers.onnx(checkpoint, texts, work, threads, int8=name != ONNX)
    return peers.cross_encoder(checkpoint, texts, device, compiled=name == COMPILED)


# Our side: an index of the passages and an engine over it, with one runtime and one way -----------


def open_ours(name: str, shape: Shape, checkpoint: Path, texts: Texts, work: Path) -> Contender:
    """An engine that ranks the passages: stored ones by their ids; or, unsplit, their texts."""
    from decoupled.search.engine import Engine

    runtime, way = OURS[name]
    if way == "joint":
        engine = Engine(str(checkpoint), runtime=runtime)
        facts: dict[str, Any] = {"runtime": engine.runtime.name}
    else:
        index = _index(_split_model(shape, checkpoint, way, texts, work), texts, runtime)
        engine = Engine(index, cascade=KEEP if way == "cascade" else 1.0, memory="8GB")
        engine.warm()
        assert index.codec is not None
        facts = {
            "runtime": engine.runtime.name,
            "codec": index.codec.name,
            "bytes_per_token": index.codec.bytes_per_token,
            "states_in_memory": engine.memory.bytes if engine.memory else 0,
        }

    def hits(query: str, count: int, best: int) -> Hits:
        if way == "joint":
            return engine.rerank(query, texts=texts.passages[:count], k=best)
        return engine.rerank(query, ids=texts.ids[:count], k=best)

    prefix = "p" if way == "joint" else ""
    return Contender(
        rank=lambda *order: [prefix + hit.id for hit in hits(*order)],
        facts=facts,
        stages=lambda *order: hits(*order).timing.to_json(),
    )


def _split_model(shape: Shape, checkpoint: Path, way: Way, texts: Texts, work: Path) -> Path:
    """The folder of the split model, made once for each way that stores other states."""
    stored = "exact" if way == "cascade" else way.replace(" ", "-")
    folder = work / f"{shape.name}-{stored}.model"
    if not folder.exists():
        from decoupled.model.model import Model
        from decoupled.train.reshape import with_projection

        one_way: Any = "auto" if "one-way" in way else ()
        split = Model.split(checkpoint, at=shape.split, one_way=one_way)
        if "narrow" in way:
            split = with_projection(split, shape.width // NARROW)
        split.save(folder)
        _calibrate(folder, texts)
    # A folder and not a model: a runtime may do without torch.
    return folder


def _calibrate(folder: Path, texts: Texts) -> None:
    """What the int8 runtime needs to know of a model, where it is installed."""
    if find_spec("openvino") is None:
        return
    from decoupled.runtime.openvino.calibrate import export_int8

    export_int8(folder, list(zip(cycle(texts.queries), texts.passages[:DISTINCT], strict=False)))


def _index(model: Path, texts: Texts, runtime: str) -> Index:
    """The index `<model>.idx`, filled first unless it holds all passages; in memory without Lance.

    Passages that repeat are stored again, and not encoded again.
    """
    from decoupled.index.index import Index
    from decoupled.index.manifest import is_index

    path = model.with_suffix(".idx")
    if not is_index(path) or len(Index.open(path)) != len(texts.passages):
        there = is_index(path)
        opened = Index.open(path, write=True) if there else Index.create(path, model, codec=CODEC)
        with opened as index:
            _fill(index, texts)
    return Index.open(path, runtime=runtime)


def _fill(index: Index, texts: Texts) -> None:
    from decoupled.index.record import Excerpt, Record
    from decoupled.model.tokens import Passage

    named = zip(texts.ids[:DISTINCT], texts.passages[:DISTINCT], strict=True)
    index.add([Passage(id=name, text=text) for name, text in named])
    rest = texts.ids[DISTINCT:]
    if not rest:
        return
    view = index.store.snapshot
    rows = view.locate(texts.ids[:DISTINCT])
    originals = [
        Record(
            states=np.asarray(states, np.uint8),
            **{f.name: getattr(excerpt, f.name) for f in fields(Excerpt)},
        )
        for excerpt, states in zip(view.texts(rows), view.states(rows), strict=True)
    ]
    copies = [replace(originals[n % DISTINCT], id=name) for n, name in enumerate(rest)]
    index.store.append(copies, part="copies")
    index.store.optimise()
