"""The model folder: `spec.json`, `weights.safetensors`, `tokenizer.json`, `history.json`. No torch here.

A folder appears whole or not at all: it is written beside its place and renamed into it.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from decoupled.errors import InputError, SpecError, WeightsError
from decoupled.model.files import copy, written
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.parts.layer import in_slot
from decoupled.model.scoring import Scoring
from decoupled.model.spec import FORMAT, VECTOR, ModelSpec
from decoupled.model.sums import (
    HEADER,
    SUMS,
    Selects,
    Tensors,
    check_file,
    checksums,
    damaged,
    file_sum,
)
from decoupled.model.tokens import Tokenizer

_log = logging.getLogger(__name__)

TOKENS, SCALE = "embedding.tokens.weight", "#scale"
SPEC, WEIGHTS = "spec.json", "weights.safetensors"
TOKENIZER, HISTORY = "tokenizer.json", "history.json"
EXPORTED = Path("openvino") / "ranges.safetensors"
"""Path, within a model folder, of the activation ranges that `export --int8` measures."""


def starter_model() -> Path:
    """The bundled model, which is used when none is named."""
    path = Path(__file__).parents[1] / "assets" / "starter"
    if not is_model(path):
        raise InputError(
            "this installation carries no starter model; name a model, for example a folder made by "
            "`decoupled split`"
        )
    return path


def is_model(path: str | Path) -> bool:
    """Whether there is a model folder at this path."""
    return (Path(path) / SPEC).is_file()


def check_free(path: Path) -> None:
    """Raise `InputError` for a path that a model cannot be saved to: before hours of work, not after."""
    if _taken(path) and not is_model(path):
        raise InputError(f"{path} exists and is not a model folder; choose another path")


def _taken(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextmanager
def replacing(path: Path, marker: str) -> Iterator[Path]:
    """An empty folder that takes the place of `path` when the block ends well, and vanishes otherwise.

    An older folder of the same kind (it holds `marker`) is replaced; anything else is left alone.
    """
    if _taken(path) and not (path / marker).is_file():
        raise InputError(
            f"{path} exists and is not a folder that holds {marker}; choose another path"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        for inner, _, names in os.walk(fresh, topdown=False):
            for name in names:
                sync(Path(inner, name))
            sync(Path(inner))
        old = None
        if path.exists():
            old = fresh.with_name(f"{fresh.name}.old")
            path.replace(old)
        fresh.replace(path)
        sync(path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; what is gone needs no waiting."""
    if os.name != "posix" and path.is_dir():  # Windows can neither open a folder nor need it
        return
    try:
        descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(
    path: str | Path,
    *,
    spec: ModelSpec,
    tensors: Tensors,
    tokenizer_json: str,
    history: Sequence[Mapping[str, Any]] = (),
    compact: bool = False,
) -> None:
    """Save a model; an older model at the path is replaced.

    `compact` keeps the token table and the matrices of the layers as bytes with a scale per row and the rest
    in half precision: little more than a quarter of the size. The rounded weights are the model from then on,
    fingerprint included; to save them so once more changes nothing.
    """
    if compact:
        tensors = _compacted(tensors)
    with replacing(Path(path), SPEC) as fresh:
        _write_json(fresh / SPEC, {"format": FORMAT, **to_json(spec)})
        (fresh / TOKENIZER).write_text(tokenizer_json, encoding="utf-8")
        _write_json(fresh / HISTORY, list(history))
        whole = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
        with written(fresh / WEIGHTS) as file:
            save_file(whole, file, metadata=checksums(whole))
        (fresh / WEIGHTS).chmod(0o644)
        summed = (SPEC, TOKENIZER, WEIGHTS + HEADER)
        sums = {part: file_sum(fresh / part.removesuffix(HEADER), part) for part in summed}
        _write_json(fresh / SUMS, sums)


def write_scoring(path: str | Path, scoring: Scoring | None, **learnt: Any) -> None:
    """Keep what was learnt about the scores of a model in its folder; nothing else changes there.

    `late` and `exits` are those of the model, with what was learnt about them.
    """
    parts = {name: value for name, value in learnt.items() if value}
    spec = replace(read_spec(path), scoring=scoring, **parts)
    with replacing(Path(path), SPEC) as fresh:
        copy(path, fresh)
        _write_json(fresh / SPEC, {"format": FORMAT, **to_json(spec)})
        if (fresh / SUMS).is_file():
            sums = json.loads((fresh / SUMS).read_text(encoding="utf-8"))
            _write_json(fresh / SUMS, sums | {SPEC: file_sum(fresh / SPEC, SPEC)})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_spec(path: str | Path) -> ModelSpec:
    """The spec of a model folder."""
    folder = Path(path)
    if not is_model(folder):
        why, target = ("has no " + SPEC, "MODEL") if folder.exists() else ("does not exist", folder)
        source = folder if (folder / "config.json").is_file() else "CHECKPOINT"
        raise InputError(
            f"{folder} {why}, so it is not a model folder; "
            f"make one with: decoupled split {source} -o {target} --at K"
        )
    check_file(folder, SPEC)
    try:
        data = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{folder / SPEC} is not JSON ({error}); save the model again") from None
    version = data.pop("format", None) if isinstance(data, dict) else None
    if version != FORMAT:
        raise SpecError(
            f"{folder / SPEC} has format {version!r}, and this version reads {FORMAT}; "
            "update decoupled or save the model again"
        )
    return from_json(ModelSpec, data)


def check_shapes(
    expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise `WeightsError` unless there are exactly these tensors: none missing, none surplus."""
    if missing := sorted(expected.keys() - actual.keys()):
        raise WeightsError(f"the weights lack {_some(missing)}; save the model again")
    if surplus := sorted(actual.keys() - expected.keys()):
        raise WeightsError(f"the weights hold {_some(surplus)}, which the spec does not use")
    for name, shape in expected.items():
        if actual[name] != shape:
            raise WeightsError(f"{name} has shape {actual[name]}; the spec expects {shape}")


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def read_tokenizer(path: str | Path, spec: ModelSpec) -> Tokenizer:
    """The tokenizer of a model folder."""
    file = Path(path) / TOKENIZER
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the tokenizer.json of the model into the folder")
    check_file(Path(path), TOKENIZER)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text ({error}); save the tokenizer again") from None
    return Tokenizer(text, spec.text, spec.encoder.embedding.vocab)


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """How the model was made; empty when nobody wrote it down, or when it is damaged: no model needs it."""
    file = Path(path) / HISTORY
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    except (ValueError, RecursionError) as error:
        _log.warning("%s cannot be read (%s); the model is loaded without it", file, error)
        return []


def read_tensors(
    path: str | Path, selects: Selects = lambda name: True
) -> dict[str, npt.NDArray[np.generic]]:
    """Read only the tensors whose names `selects` accepts, in full precision."""

    def with_scales(name: str) -> bool:
        return selects(name.removesuffix(SCALE))

    with _weights(path) as weights:
        names = list(filter(with_scales, weights.keys()))
        tensors = {name: weights.get_tensor(name) for name in names}
        if wrong := damaged(tensors, weights.metadata() or {}, with_scales):
            raise _damage(Path(path) / WEIGHTS, wrong, len(tensors))
        return {n: _widened(n, tensors) for n in names if not n.endswith(SCALE)}


def _damage(file: Path, wrong: Sequence[str], count: int) -> WeightsError:
    return WeightsError(
        f"{file} is damaged: {len(wrong)} of {count} tensors, first {wrong[0]}, are not what was saved; "
        "restore it from a copy, or save the model again"
    )


@contextmanager
def _weights(path: str | Path) -> Iterator[Any]:
    """Yield the opened weights of a folder; damage becomes a `WeightsError` of one line."""
    file = Path(path) / WEIGHTS
    if not file.is_file():
        raise WeightsError(f"{file} is missing; save the model again")
    check_file(Path(path), WEIGHTS)
    try:
        with safe_open(file, framework="numpy") as weights:
            yield weights
    except (SafetensorError, AttributeError, KeyError, TypeError) as error:
        # The last three for types that numpy does not have, such as float8.
        raise WeightsError(f"{file} is damaged ({error}); save the model again") from None


class StoredTensors(Mapping[str, npt.NDArray[np.generic]]):
    """All tensors of a folder: checked once, read from disk on access and cached while something holds them.

    A runtime that turns them into another form so keeps one copy of them, not two. The file stays open:
    who replaces the folder meanwhile changes nothing here.
    """

    def __init__(self, path: str | Path) -> None:
        self._where = Path(path) / WEIGHTS
        with _weights(path) as weights:
            self._notes, names = weights.metadata() or {}, list(weights.keys())
            types = {name: weights.get_slice(name).get_dtype() for name in names}
            self._types = {name: _numpy_type(kind) for name, kind in types.items()}
        self._lock, self._held = Lock(), WeakValueDictionary[str, npt.NDArray[np.generic]]()
        self._file = self._where.open("rb")
        finalize(self, self._file.close)
        size = int.from_bytes(self._file.read(8), "little")
        self._header, self._start = json.loads(self._file.read(size)), 8 + size
        own = [name for name in names if not name.endswith(SCALE)]
        self.shapes = {name: self[name].shape for name in own}

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        with self._lock:
            if (held := self._held.get(name)) is not None:
                return held
            names = [one for one in (name, name + SCALE) if one in self._types]
            if name not in names:
                raise KeyError(name)
            tensors = {one: self._read(one) for one in names}
            if wrong := damaged(tensors, self._notes, names.__contains__):
                raise _damage(self._where, wrong, len(self._types))
            tensor = self._held[name] = _widened(name, tensors)
            return tensor

    def _read(self, name: str) -> npt.NDArray[np.generic]:
        first, _ = self._header[name]["data_offsets"]
        tensor = np.empty(self._header[name]["shape"], self._types[name])
        self._file.seek(self._start + first)
        self._file.readinto(tensor.reshape(-1).view(np.uint8).data)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _numpy_type(kind: str) -> np.dtype[Any]:
    """The numpy type of a safetensors type name; `KeyError` for those that numpy does not have."""
    sizes = {"F": (16, 32, 64), "I": (8, 16, 32, 64), "U": (8, 16, 32, 64)}
    dtypes = {f"{k}{bits}": np.dtype(f"{k.lower()}{bits // 8}") for k in sizes for bits in sizes[k]}
    return (dtypes | {"BOOL": np.dtype(bool)})[kind]


def _compacted(tensors: Tensors) -> dict[str, npt.NDArray[np.generic]]:
    compacted: dict[str, npt.NDArray[np.generic]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            compacted[name] = tensor  # codes are as small as they get
        elif name == TOKENS or _is_matrix(name, tensor):
            values = np.asarray(tensor, np.float32)
            scale = _row_scales(values)
            compacted[name] = np.rint(values / scale).clip(-127, 127).astype(np.int8)
            compacted[name + SCALE] = scale
        else:
            compacted[name] = tensor.astype(np.float16)
    return compacted


def _is_matrix(name: str, tensor: npt.NDArray[np.generic]) -> bool:
    """Return whether the tensor is a matrix of a layer, or a factor of one."""
    own = in_slot(name.removeprefix(VECTOR)) and name.endswith(".weight")
    return own and tensor.ndim == 2


def _row_scales(tensor: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """`[rows,1]` steps, 127 to a row's largest value, of so few bits that 127 times a step is exact.

    So weights that were rounded once have the same steps, and are rounded to themselves.
    """
    steps = np.abs(tensor).max(1, keepdims=True) / np.float32(127)
    bits = (np.maximum(steps, np.float32(1e-12)).view(np.uint32) + 128) & np.uint32(0xFFFFFF00)
    return bits.view(np.float32)


def _widened(name: str, tensors: Tensors) -> npt.NDArray[np.generic]:
    """A tensor in full precision, however it was stored; codes of a quantised map stay codes."""
    tensor, scale = tensors[name], tensors.get(name + SCALE)
    if scale is not None:
        return tensor.astype(np.float32) * scale.astype(np.float32)
    return tensor.astype(np.float32) if tensor.dtype.kind == "f" else tensor


def fingerprint(spec: ModelSpec, tensors: Tensors, tokenizer_json: str) -> str:
    """A digest of everything that decides the states of a passage: what an index must agree on.

    The cross component is left out: another head or retrained upper layers keep an index valid.
    """
    digest = hashlib.sha256()
    described = to_json(spec)
    encoder = described["encoder"]
    fixed = {
        name: described[name]
        for name in ("family", "text", "split", "positions", "projection", "vector", "store")
        if name in described  # `store` is not at its default
    }
    fixed |= {name: encoder[name] for name in ("embedding", "relative")}
    fixed["layers"] = encoder["layers"][: spec.split]
    digest.update(json.dumps(fixed, sort_keys=True).encode())
    digest.update(hashlib.sha256(tokenizer_json.encode("utf-8", "surrogatepass")).digest())
    for name in sorted(n for n in tensors if spec.is_input(n)):
        tensor = np.ascontiguousarray(tensors[name])
        digest.update(f"{name}{tensor.dtype}{tensor.shape}".encode())
        digest.update(tensor.data)
    return digest.hexdigest()[:32]
