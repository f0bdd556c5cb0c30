"""A model folder as ONNX graphs, for programs that have onnxruntime and neither torch nor this package."""

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from decoupled.errors import InputError, need
from decoupled.model.jsonable import JsonObject
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.parts.head import HeadKind
from decoupled.model.spec import Side

FOLDER = "onnx"
"""The folder of the graphs, within that of the model."""
OPSET = 20
BATCH, QUERY, PASSAGE, MOST = 2, 5, 7, 1 << 16
"""Sizes of the example that a graph is made with, and the bound of those that it runs with."""
VECTORS = "states", "vector"
README = """\
# {name} as ONNX graphs

`query{int8}.onnx` and `passage{int8}.onnx` read texts alone, `cross{int8}.onnx` reads a query with passages.
The numbers of texts and of tokens are free.

| graph | input | type | shape |
|---|---|---|---|
| query, passage | `ids` | int64 | texts, tokens |
| | `lengths` | int64 | texts: the tokens that are no padding |
| cross | `query` | float32 | 1, tokens, {query} |
| | `passages` | float32 | texts, tokens, {passage} |
| | `lengths` | int64 | texts |

`query` and `passage` give `states`, which are the inputs of `cross` and what an index stores, and `vector`,
for a first stage. `cross` gives {heads}.

- Texts are tokenised by `tokenizer.json`, without its special tokens, padding and truncation.
- A query is {query_prefix} + its ids + {query_suffix}, up to {query_tokens} tokens in all.
- A passage is {passage_prefix} + its ids + {passage_suffix}, up to {passage_tokens} tokens in all.
- `rank` is a logit: the larger, the more relevant. `span` begins with the score of no answer; then each token
  of the passage has a start and an end.
- States may be stored in int8: `codes * scale`, with one scale for each token, its largest absolute value
  divided by 127.
"""


class _Alone(nn.Module):
    """The input component over texts of one side."""

    def __init__(self, net: PairEncoder, side: Side) -> None:
        super().__init__()
        self.net, self.side = net, side

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.input(self.side, ids, _real(ids, lengths))


class _Together(nn.Module):
    """The cross component over one query and its passages."""

    def __init__(self, net: PairEncoder, heads: tuple[HeadKind, ...]) -> None:
        super().__init__()
        self.net, self.heads = net, heads

    def forward(self, query: Tensor, passages: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        queries = query.expand(passages.shape[0], -1, -1)
        real = torch.ones(queries.shape[:2], dtype=torch.bool)
        logits = self.net.cross(queries, real, passages, _real(passages, lengths), self.heads)
        return tuple(logits[head] for head in self.heads)


def _real(rows: Tensor, lengths: Tensor) -> Tensor:
    """Which rows are no padding."""
    return torch.arange(rows.shape[1]) < lengths[:, None]


def export_onnx(folder: Path, *, int8: bool = False) -> JsonObject:
    """Write the graphs of a model folder into its folder `onnx`; says what was written.

    In int8 the matrices are bytes, and what they are multiplied with is rounded as it comes.
    """
    need(("onnx", "onnx"), ("onnxscript", "onnx"), ("onnxruntime", "onnx"))
    model = Model.load(folder)
    spec, net, out = model.spec, model.net.float().eval(), folder / FOLDER
    if not spec.split or spec.store == "kv":
        raise InputError(f"{folder} stores no states; split it at 1 or above, with --store state")
    heads = tuple(head.kind for head in spec.heads)
    texts, tokens = Dim("texts", max=MOST), Dim("tokens", max=MOST)
    lengths, ids = torch.tensor([PASSAGE, PASSAGE - 1]), torch.zeros(BATCH, PASSAGE).long()
    query = torch.randn(1, QUERY, spec.state_width("query"))
    passages = torch.randn(BATCH, PASSAGE, spec.state_width("passage"))
    alone = {"ids": {0: texts, 1: tokens}, "lengths": {0: texts}}
    both = {"query": {1: Dim("asked", max=MOST)}, "passages": alone["ids"], "lengths": {0: texts}}
    graphs = [
        _Graph("query", _Alone(net, "query"), (ids, lengths), alone, VECTORS),
        _Graph("passage", _Alone(net, "passage"), (ids, lengths), alone, VECTORS),
        _Graph("cross", _Together(net, heads), (query, passages, lengths), both, heads),
    ]
    out.mkdir(exist_ok=True)
    files = [graph.write(out, int8=int8) for graph in graphs]
    end = "-int8" if int8 else ""
    widths = {side: spec.state_width(side) for side in ("query", "passage")}
    named = " and ".join(f"`{head}`" for head in heads)
    text = {name: [*v] if isinstance(v, tuple) else v for name, v in vars(spec.text).items()}
    readme = README.format(name=folder.name, int8=end, heads=named, **widths, **text)
    (out / "README.md").write_text(readme, encoding="utf-8")
    names = ", ".join(str(file) for file in files)
    return {"files": names, "bytes": sum(file.stat().st_size for file in files)}


@dataclass(frozen=True)
class _Graph:
    """A module to write, with an example of its inputs, the sizes that are free, and its outputs."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    shapes: Mapping[str, Mapping[int, Dim]]
    outputs: Sequence[str]

    def write(self, out: Path, *, int8: bool) -> Path:
        """The file of the graph, in fp32 or with matrices of bytes."""
        file = out / f"{self.name}{'-int8' if int8 else ''}.onnx"
        with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # It regrets the absence of torchvision, which no graph of ours needs.
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            whole = Path(scratch, "graph.onnx") if int8 else file
            torch.onnx.export(
                self.module,
                self.inputs,
                str(whole),
                input_names=list(self.shapes),
                output_names=list(self.outputs),
                dynamic_shapes=dict(self.shapes),
                opset_version=OPSET,
                external_data=False,
                dynamo=True,
                verbose=False,
            )
            if int8:
                _in_bytes(whole, file)
        return file


def _in_bytes(whole: Path, file: Path) -> None:
    """Write a graph with matrices of bytes."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(whole)
    # Shapes of the example, which the quantiser would trust.
    del graph.graph.value_info[:]
    # It advises to pre-process graphs of convolutions on the root logger.
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(graph, file, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        logging.disable(logging.NOTSET)
