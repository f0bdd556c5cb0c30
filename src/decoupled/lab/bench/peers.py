"""What people run today, with the same weights and the same texts.

The OpenVINO backend of sentence-transformers needs `optimum-intel`, whose pins exclude current releases of
torch and transformers. So the same graph is made without it: the Hugging Face model converted by OpenVINO,
quantised by NNCF as that backend does (static int8, Transformer scheme), and put in place of the torch model
inside `CrossEncoder`, which goes on to tokenise, sort and batch.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.lab.bench.shapes import Texts

BATCHES = (32, 64, 128, 256, 512, 1024)
"""Batch sizes that a GPU peer is tried with; the best one races. 32 is the default of `CrossEncoder`."""
CALIBRATION = 16


@dataclass(frozen=True, kw_only=True)
class CrossEncoderPeer:
    """`sentence_transformers.CrossEncoder`, with whatever runs inside it."""

    model: Any
    passages: tuple[str, ...]
    batch: int = 32
    notes: str = ""

    def rank(self, query: str, count: int, best: int) -> list[str]:
        """Ids of the best of the first `count` passages."""
        passages = list(self.passages[:count])
        ranked = self.model.rank(
            query, passages, top_k=best, batch_size=self.batch, show_progress_bar=False
        )
        return [f"p{hit['corpus_id']}" for hit in ranked]

    def facts(self) -> dict[str, Any]:
        """What a table should know about it."""
        return {"batch": self.batch, "notes": self.notes}


@dataclass(frozen=True, kw_only=True)
class OnnxPeer:
    """onnxruntime with the tokenizers library and nothing else, in batches: the way of FlashRank."""

    session: Any
    tokenizer: Any
    passages: tuple[str, ...]
    batch: int
    notes: str = ""

    def rank(self, query: str, count: int, best: int) -> list[str]:
        """Ids of the best of the first `count` passages."""
        scores: list[float] = []
        for start in range(0, count, self.batch):
            pairs = [(query, p) for p in self.passages[start : min(start + self.batch, count)]]
            encoded = self.tokenizer.encode_batch(pairs)
            rows = {"input_ids": "ids", "attention_mask": "attention_mask"}
            rows["token_type_ids"] = "type_ids"
            feed = {n: np.array([getattr(e, of) for e in encoded]) for n, of in rows.items()}
            scores += self.session.run(None, feed)[0][:, 0].tolist()
        order = np.argsort(-np.asarray(scores), kind="stable")[:best]
        return [f"p{n}" for n in order]

    def facts(self) -> dict[str, Any]:
        """What a table should know about it."""
        return {"batch": self.batch, "notes": self.notes}


def cross_encoder(checkpoint: Path, texts: Texts, device: str, *, compiled: bool) -> Any:
    """`CrossEncoder` as it comes on a CPU; in bf16 at its best batch size on a GPU."""
    import torch
    from sentence_transformers import CrossEncoder

    options: dict[str, Any] = {}
    if device != "cpu":
        options["model_kwargs"] = {"dtype": torch.bfloat16}
    model = CrossEncoder(str(checkpoint), device=device, max_length=512, **options)
    if compiled:
        model.compile(dynamic=True)
    peer = CrossEncoderPeer(model=model, passages=texts.passages)
    return peer if device == "cpu" else _best_batch(peer)


def _best_batch(peer: CrossEncoderPeer) -> CrossEncoderPeer:
    found = []
    for batch in BATCHES:
        if batch // 2 > len(peer.passages):
            break
        tried = replace(peer, batch=batch, notes="bf16, best batch size")
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            tried.rank("w1 w2 w3", len(peer.passages), 10)
            times.append(time.perf_counter() - begun)
        found.append((min(times), batch, tried))
    return min(found, key=lambda one: one[:2])[2]


def openvino_config(threads: int) -> dict[str, Any]:
    """As the peer comes, on no more threads than the others race with."""
    limit = {"INFERENCE_NUM_THREADS": threads} if threads < (os.cpu_count() or 1) else {}
    return {"PERFORMANCE_HINT": "LATENCY", **limit}


def openvino_int8(checkpoint: Path, texts: Texts, work: Path, threads: int) -> Any:
    """`CrossEncoder` around a static int8 OpenVINO graph of its own model."""
    from sentence_transformers import CrossEncoder

    from decoupled.runtime.openvino import openvino
    from decoupled.runtime.openvino.graph import core

    model = CrossEncoder(str(checkpoint), device="cpu", max_length=512)
    file = work / f"{checkpoint.name}-int8.xml"
    if not file.exists():
        openvino.save_model(_quantised(model, texts), file)
    compiled = core().compile_model(core().read_model(file), "CPU", openvino_config(threads))
    inner = model[0]
    inner.model = _openvino_module(inner.model.config, compiled)
    notes = "converted by OpenVINO, static int8 by NNCF; optimum-intel does not go with these pins"
    return CrossEncoderPeer(model=model, passages=texts.passages, notes=notes)


def _quantised(model: Any, texts: Texts) -> Any:
    import nncf
    import openvino
    import torch

    passages = [texts.passages[n % len(texts.passages)] for n in range(CALIBRATION)]
    features = model.preprocess(list(zip(texts.queries, passages, strict=False)))
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    network = model[0].model.eval()
    with torch.inference_mode():
        graph = openvino.convert_model(network, example_input=inputs)
    count = len(inputs["input_ids"])
    rows = [{name: x[n : n + 1].numpy() for name, x in inputs.items()} for n in range(count)]
    kind = nncf.ModelType.TRANSFORMER
    return nncf.quantize(graph, nncf.Dataset(rows), model_type=kind, subset_size=CALIBRATION)


def _openvino_module(config: Any, compiled: Any) -> Any:
    """A module with the face of the Hugging Face model, which runs the compiled graph."""
    import torch
    from transformers.modeling_outputs import SequenceClassifierOutput

    class Compiled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = config
            self.request = compiled.create_infer_request()
            self.place = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

        @property
        def device(self) -> Any:
            return self.place.device

        @property
        def dtype(self) -> Any:
            return self.place.dtype

        def forward(
            self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None, **rest: Any
        ) -> Any:
            given = (input_ids, attention_mask, token_type_ids)
            feed = [x.numpy() for x in given if x is not None]
            logits = self.request.infer(feed, share_inputs=True)[0]
            found: Any = torch.from_numpy(np.array(logits))
            return SequenceClassifierOutput(logits=found)

    return Compiled()


def onnx(checkpoint: Path, texts: Texts, work: Path, threads: int, *, int8: bool) -> OnnxPeer:
    """A session on the exported model, in fp32 or with weights and activations quantised on the fly."""
    import onnxruntime
    from tokenizers import Tokenizer

    plain = work / f"{checkpoint.name}.onnx"
    if not plain.exists():
        _export(checkpoint, plain)
    file = plain
    if int8:
        file = work / f"{checkpoint.name}-int8.onnx"
        if not file.exists():
            _quantise_onnx(plain, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(512)
    notes = "dynamic int8" if int8 else "fp32"
    return OnnxPeer(
        session=session, tokenizer=tokenizer, passages=texts.passages, batch=32, notes=notes
    )


def _quantise_onnx(plain: Path, file: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(plain)
    # Shapes of the exporter's example, which the quantiser would trust.
    del graph.graph.value_info[:]
    quantize_dynamic(graph, file, weight_type=QuantType.QInt8)


def _export(checkpoint: Path, file: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, attn_implementation="eager"
    ).eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.network(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).logits

    names = ["input_ids", "attention_mask", "token_type_ids"]
    # Three different tensors: one passed twice would be taken for one input.
    example = tuple(torch.randint(0, 2, (4, 32)) for _ in names)
    batch, tokens = torch.export.Dim("batch", max=4096), torch.export.Dim("tokens", max=512)
    torch.onnx.export(
        Plain().eval(),
        example,
        str(file),
        input_names=names,
        output_names=["logits"],
        dynamic_shapes=({0: batch, 1: tokens},) * 3,
        dynamo=True,
        external_data=False,
    )
