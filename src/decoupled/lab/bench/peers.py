"""What people run today, with the same weights and the same texts.

The OpenVINO backend of sentence-transformers needs `optimum-intel`, whose pins exclude current releases of
torch and transformers. So the same graph is made without it: the Hugging Face model converted by OpenVINO,
quantised by NNCF as that backend does (static int8, Transformer scheme), and put in place of the torch model
inside `CrossEncoder`, which goes on to tokenise, sort and batch.
"""

import os
import timeit
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from decoupled.lab.bench.contenders import Contender, Rank
from decoupled.lab.bench.shapes import Texts

BATCHES = (32, 64, 128, 256, 512, 1024)
"""Batch sizes that a GPU peer is tried with; the best one races. 32 is the default of `CrossEncoder`."""
CALIBRATION = 16
INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Inputs of the network, and where an encoding of the tokenizer holds each."""


def ranker(model: Any, texts: Texts, batch: int = BATCHES[0]) -> Rank:
    """`CrossEncoder.rank`, with whatever runs inside it."""

    def rank(query: str, count: int, best: int) -> list[str]:
        passages = list(texts.passages[:count])
        hits = model.rank(query, passages, top_k=best, batch_size=batch, show_progress_bar=False)
        return [texts.ids[hit["corpus_id"]] for hit in hits]

    return rank


def cross_encoder_model(checkpoint: Path, device: str, *, compiled: bool) -> Any:
    """`CrossEncoder` as it comes on a CPU, in bf16 on a GPU."""
    import torch
    from sentence_transformers import CrossEncoder

    kind = {} if device == "cpu" else {"model_kwargs": {"dtype": torch.bfloat16}}
    model = CrossEncoder(str(checkpoint), device=device, max_length=512, **kind)
    if compiled:
        model.compile(dynamic=True)
    return model


def cross_encoder(checkpoint: Path, texts: Texts, device: str, *, compiled: bool) -> Contender:
    """`CrossEncoder`, on a GPU at its best batch size."""
    model, count = cross_encoder_model(checkpoint, device, compiled=compiled), len(texts.passages)

    def seconds(batch: int) -> float:
        run = partial(ranker(model, texts, batch), "w1 w2 w3", count, 10)
        return min(timeit.repeat(run, number=1, repeat=3))

    batch, notes = BATCHES[0], ""
    if device != "cpu":
        notes = "bf16, best batch size"
        batch = min((size for size in BATCHES if size // 2 <= count), key=seconds)
    return Contender(rank=ranker(model, texts, batch), facts={"batch": batch, "notes": notes})


def openvino_config(threads: int) -> dict[str, Any]:
    """As the peer comes, on no more threads than the others race with."""
    limit = {"INFERENCE_NUM_THREADS": threads} if threads < (os.cpu_count() or 1) else {}
    return {"PERFORMANCE_HINT": "LATENCY", **limit}


def openvino_int8(checkpoint: Path, texts: Texts, work: Path, threads: int) -> Contender:
    """`CrossEncoder` around a static int8 OpenVINO graph of its own model."""
    notes = "converted by OpenVINO, static int8 by NNCF; optimum-intel does not go with these pins"
    rank = ranker(openvino_model(checkpoint, texts, work, threads), texts)
    return Contender(rank=rank, facts={"batch": BATCHES[0], "notes": notes})


def openvino_model(checkpoint: Path, texts: Texts, work: Path, threads: int) -> Any:
    """The `CrossEncoder` with that graph inside; the graph is kept in the folder `work`."""
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
    return model


def _quantised(model: Any, texts: Texts) -> Any:
    import nncf
    import openvino
    import torch

    passages = [texts.passages[n % len(texts.passages)] for n in range(CALIBRATION)]
    features = model.preprocess(list(zip(texts.queries, passages, strict=False)))
    inputs = {name: features[name] for name in INPUTS}
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
            self.device, self.dtype = torch.device("cpu"), torch.float32

        def forward(
            self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None, **rest: Any
        ) -> Any:
            inputs = (input_ids, attention_mask, token_type_ids)
            feed = [x.numpy() for x in inputs if x is not None]
            logits: Any = np.array(self.request.infer(feed, share_inputs=True)[0])
            return SequenceClassifierOutput(logits=torch.from_numpy(logits))

    return Compiled()


def onnx(checkpoint: Path, texts: Texts, work: Path, threads: int, *, int8: bool) -> Contender:
    """Run onnxruntime with the tokenizers library and nothing else, in batches: the way of FlashRank.

    In fp32, or with weights and activations quantised on the fly.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    file = plain = work / f"{checkpoint.name}.onnx"
    if not plain.exists():
        _export(checkpoint, plain)
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

    def rank(query: str, count: int, best: int) -> list[str]:
        scores: list[float] = []
        for start in range(0, count, BATCHES[0]):
            passages = texts.passages[start : min(count, start + BATCHES[0])]
            encoded = tokenizer.encode_batch([(query, passage) for passage in passages])
            feed = {n: np.array([getattr(e, of) for e in encoded]) for n, of in INPUTS.items()}
            scores += session.run(None, feed)[0][:, 0].tolist()
        return [texts.ids[n] for n in np.argsort(-np.asarray(scores), kind="stable")[:best]]

    notes = "dynamic int8" if int8 else "fp32"
    return Contender(rank=rank, facts={"batch": BATCHES[0], "notes": notes})


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

    # Three different tensors: one passed twice would be taken for one input.
    example = tuple(torch.randint(0, 2, (4, 32)) for _ in INPUTS)
    batch, tokens = torch.export.Dim("batch", max=4096), torch.export.Dim("tokens", max=512)
    torch.onnx.export(
        Plain().eval(),
        example,
        str(file),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_shapes=({0: batch, 1: tokens},) * 3,
        dynamo=True,
        external_data=False,
    )
