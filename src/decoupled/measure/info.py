"""`info`: what a model or an index on disk holds."""

from pathlib import Path

from decoupled.errors import InputError
from decoupled.index.index import Index
from decoupled.index.manifest import is_index
from decoupled.measure.counts import held, weights_in
from decoupled.model import folder
from decoupled.model.parts.exits import stopping
from decoupled.model.parts.late import reading
from decoupled.model.spec import ModelSpec


def info(path: str | Path) -> dict[str, object]:
    """Facts of a model folder or of an index: its kind, its sizes, what made it."""
    if is_index(path):
        index = Index.open(path)
        # Counting documents reads all metadata, so that a server's own information is without it.
        facts = {"documents": index.store.snapshot.documents, **index.info()}
        return {"kind": "index", **facts, "adds": _adds(index.spec)}
    if not folder.is_model(path := Path(path)):
        raise InputError(f"{path} is neither an index nor a model folder; check the path")
    spec, tensors = folder.read_spec(path), folder.read_tensors(path)
    sizes = {n: weights_in(n, int(t.size), str(t.dtype)) for n, t in tensors.items()}
    counted, tokenizer = held(sizes), folder.read_tokenizer(path, spec)
    return {
        "kind": "model",
        "family": spec.family,
        "layers": len(spec.layers),
        "split": spec.split,
        "one_way": list(spec.one_way),
        "width": spec.encoder.width,
        "positions": spec.positions,
        "cross_embed": spec.cross_embed,
        "heads": [head.kind for head in spec.heads],
        "reads": reading(spec.late),
        "exits": stopping(spec.exits),
        "adds": _adds(spec),
        "query_tokens": spec.text.query_tokens,
        "passage_tokens": spec.text.passage_tokens,
        "parameters": counted.total,
        "embedding_parameters": counted.embedding,
        "layer_parameters": counted.layers,
        "head_parameters": counted.pooler + counted.outputs,
        "split_parameters": counted.split,
        "input_parameters": sum(size for name, size in sizes.items() if spec.is_input(name)),
        "exported": ["openvino int8"] if (path / folder.EXPORTED).is_file() else [],
        "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
        "fingerprint": folder.fingerprint(spec, tensors, tokenizer.json),
        "history": folder.read_history(path),
    }


def _adds(spec: ModelSpec) -> dict[str, float]:
    """Weights of the first-stage scores that a search adds to the rank logit, by their names."""
    blend = spec.scoring.blend if spec.scoring is not None else {}
    return {name: round(weight, 4) for name, weight in blend.items()}
