"""Our side of the race: an index of the passages and an engine over it, with one runtime and one way."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from decoupled.lab.bench.shapes import DISTINCT, Shape, Texts

if TYPE_CHECKING:
    from decoupled.index.index import Index
    from decoupled.index.store.base import Store
    from decoupled.search.engine import Engine

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


def runtimes() -> list[str]:
    """Names that `--runtime` takes, without those that stand for others."""
    from decoupled.runtime.open import RuntimeName

    return [name for name in get_args(RuntimeName) if name not in ("auto", "openvino")]


@dataclass(frozen=True, kw_only=True)
class Ours:
    """An engine that is ready to rank the passages of a race by their ids."""

    engine: Engine
    ids: tuple[str, ...]

    def rank(self, query: str, count: int, best: int) -> list[str]:
        """Ids of the best of the first `count` passages."""
        return [hit.id for hit in self.engine.rerank(query, ids=self.ids[:count], k=best)]

    def stages(self, query: str, count: int, best: int) -> dict[str, float]:
        """Where the milliseconds of one such query go."""
        return self.engine.rerank(query, ids=self.ids[:count], k=best).timing.to_json()

    def facts(self) -> dict[str, Any]:
        """What a table should know about it."""
        index = self.engine.index
        assert index is not None and index.codec is not None
        usage = self.engine.memory
        return {
            "runtime": self.engine.runtime.name,
            "codec": index.codec.name,
            "bytes_per_token": index.codec.bytes_per_token,
            "states_in_memory": usage.bytes if usage else 0,
        }


@dataclass(frozen=True, kw_only=True)
class Joint:
    """The unsplit model in our own torch code: what the split is compared with when no peer is installed."""

    engine: Engine
    passages: tuple[str, ...]

    def rank(self, query: str, count: int, best: int) -> list[str]:
        """Ids of the best of the first `count` passages, each read in full."""
        hits = self.engine.rerank(query, texts=self.passages[:count], k=best)
        return [f"p{hit.id}" for hit in hits]

    def stages(self, query: str, count: int, best: int) -> dict[str, float]:
        """Where the milliseconds of one such query go."""
        return self.engine.rerank(query, texts=self.passages[:count], k=best).timing.to_json()

    def facts(self) -> dict[str, Any]:
        """What a table should know about it."""
        return {"runtime": self.engine.runtime.name}


def open_ours(
    shape: Shape, checkpoint: Path, way: Way, runtime: str, texts: Texts, work: Path
) -> Ours | Joint:
    """Split, index and open; the index is made once for each way that stores other states."""
    from decoupled.model.model import Model
    from decoupled.search.engine import Engine
    from decoupled.train.reshape import with_projection

    if way == "joint":
        joint = Engine(str(checkpoint), runtime=runtime)
        return Joint(engine=joint, passages=texts.passages)
    # Not passed on as a model: a runtime may do without torch, given a folder.
    stored = "exact" if way == "cascade" else way.replace(" ", "-")
    folder = work / f"{shape.name}-{stored}.model"
    if not folder.exists():
        one_way: Any = "auto" if "one-way" in way else ()
        split = Model.split(checkpoint, at=shape.split, one_way=one_way)
        if "narrow" in way:
            split = with_projection(split, shape.width // NARROW)
        split.save(folder)
        _calibrate(folder, texts)
    opened = _index(work / f"{folder.stem}.idx", folder, texts, runtime)
    engine = Engine(opened, cascade=KEEP if way == "cascade" else None, memory="8GB")
    engine.warm()
    return Ours(engine=engine, ids=texts.ids)


def _calibrate(folder: Path, texts: Texts) -> None:
    """What the int8 runtime needs to know of a model, where it is installed."""
    if find_spec("openvino") is None:
        return
    from decoupled.runtime.openvino.export import export_int8

    passages = texts.passages[:DISTINCT]
    export_int8(
        folder, [(texts.queries[n % len(texts.queries)], p) for n, p in enumerate(passages)]
    )


def _index(path: Path, model: Path, texts: Texts, runtime: str) -> Index:
    """An index of the passages. Those that repeat are stored again, not encoded again."""
    from decoupled.index.index import Index
    from decoupled.index.manifest import is_index

    if find_spec("lance") is None:
        return _in_process(model, texts, runtime)
    if not is_index(path) or len(Index.open(path)) != len(texts.passages):
        there = is_index(path)
        made = Index.open(path, write=True) if there else Index.create(path, model, codec=CODEC)
        with made as index:
            _fill(index, texts)
    return Index.open(path, runtime=runtime)


def _in_process(model: Path, texts: Texts, runtime: str) -> Index:
    """An index whose records live in this process, where Lance is not installed."""
    from decoupled.index.index import Index
    from decoupled.index.store.memory import MemoryStore

    class Held(Index):
        def _open_store(self) -> Store | None:
            if self.codec is None:
                return None
            width = self.spec.vector_width
            return MemoryStore(token_bytes=self.codec.bytes_per_token, width=width)

    with tempfile.TemporaryDirectory() as folder:
        held = Held.create(Path(folder) / "held.idx", model, codec=CODEC, runtime=runtime)
        _fill(held, texts)
        assert held.runtime  # loaded while its folder is there
        return held


def _fill(index: Index, texts: Texts) -> None:
    from decoupled.model.tokens import Passage

    named = zip(texts.ids[:DISTINCT], texts.passages[:DISTINCT], strict=True)
    index.add([Passage(id=name, text=text) for name, text in named])
    _repeat(index, texts)


def _repeat(index: Index, texts: Texts) -> None:
    from dataclasses import fields, replace

    from decoupled.index.record import Excerpt, Record

    rest = texts.ids[DISTINCT:]
    if not rest or index.store is None:
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
