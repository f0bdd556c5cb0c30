"""Rerank on the CPU at the shape of BERT-base: the joint model as users run it against the split one.

    python benchmarks/cpu_rerank.py [--pairs 100] [--rounds 3] [--out benchmarks/results/cpu_rerank.json]

One set of random weights in all columns, queries of 20 tokens, passages of 150, so that no padding favours
anyone. Rounds are interleaved; a figure is the median. The joint model runs in transformers on torch fp32 in
batches of 32 (what CrossEncoder does), and quantised by NNCF on OpenVINO. The split one runs
from int8 codes, query encoding included. `--ceiling` also measures the machine's matrix products.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np

QUERY, PASSAGE, BATCH = 20, 150, 32
LAYERS, SPLIT, WIDTH, HEADS = 12, 9, 768, 12
SEED = 0


def checkpoint(folder: Path) -> None:
    """A random BERT of that shape, with a tokenizer that nothing here uses."""
    import sys

    import torch
    import transformers

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from tiny import tiny_tokenizer

    torch.manual_seed(SEED)
    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        vocab_size=2000,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tiny_tokenizer(folder)


def ids(seed: int, rows: int, length: int) -> np.ndarray:
    """Random tokens."""
    return np.random.default_rng(seed).integers(200, 1900, (rows, length)).astype(np.int32)


def pair_inputs(query: np.ndarray, passages: np.ndarray) -> dict[str, np.ndarray]:
    """What a joint model reads."""
    joined = np.concatenate([np.repeat(query, len(passages), 0), passages], 1).astype(np.int64)
    types = np.zeros_like(joined)
    types[:, query.shape[1] :] = 1
    return {"input_ids": joined, "attention_mask": np.ones_like(joined), "token_type_ids": types}


def joint_torch(folder: Path):
    """The joint model in transformers."""
    import torch
    import transformers

    net = transformers.BertForSequenceClassification.from_pretrained(folder).eval()

    def run(query, passages):
        with torch.inference_mode():
            for start in range(0, len(passages), BATCH):
                made = pair_inputs(query, passages[start : start + BATCH])
                net(**{name: torch.from_numpy(value) for name, value in made.items()})

    return run


def joint_openvino_int8(folder: Path):
    """The export that sentence-transformers makes: converted from torch, quantised by NNCF."""
    import nncf
    import openvino as ov
    import torch
    import transformers

    net = transformers.BertForSequenceClassification.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    sample = pair_inputs(ids(1, 1, QUERY), ids(2, 2, PASSAGE))
    example = {name: torch.from_numpy(value) for name, value in sample.items()}
    model = ov.convert_model(net, example_input=example)
    data = nncf.Dataset([pair_inputs(ids(n, 1, QUERY), ids(n + 50, 1, PASSAGE)) for n in range(16)])
    quantised = nncf.quantize(
        model,
        data,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=16,
        fast_bias_correction=True,
    )
    compiled = ov.Core().compile_model(quantised, "CPU", {"PERFORMANCE_HINT": "LATENCY"})

    def run(query, passages):
        for start in range(0, len(passages), BATCH):
            compiled(pair_inputs(query, passages[start : start + BATCH]))

    return run


def ours(folder: Path, passages: np.ndarray, *, frozen: bool, projection: int | None, int8: bool):
    """The split model from codes that were stored before."""
    from decoupled import codec as codecs
    from decoupled import cross, segment
    from decoupled.model import Model
    from decoupled.runtime.openvino.calibrate import calibrate
    from decoupled.runtime.openvino.runtime import OpenVinoRuntime
    from decoupled.spec import ProjectionSpec

    model = Model.split(folder, at=SPLIT)
    spec = model.spec
    if frozen:
        layers = tuple(
            replace(layer, passage="frozen" if n >= SPLIT else "advance")
            for n, layer in enumerate(spec.layers)
        )
        spec = replace(spec, encoder=replace(spec.encoder, layers=layers))
    if projection:
        spec = replace(spec, projection=ProjectionSpec(width=projection))
    model = model.rebuild(spec, {"did": "bench"})
    tensors = {n: t.numpy() for n, t in model.net.state_dict().items()}
    pairs = list(zip(ids(3, 8, QUERY), ids(4, 8, PASSAGE), strict=True))
    ranges = calibrate(spec, tensors, pairs) if int8 else None
    runtime = OpenVinoRuntime(spec, tensors, model.tokenizer, ranges=ranges)
    states = segment.encode(runtime, "passage", list(passages[:8])).states
    codec = codecs.fit("int8", states)
    # The time of the cross component does not depend on what the states are.
    block = codec.encode(states).select(np.arange(len(passages)) % 8)
    runtime.codec = codec

    def run(query, passages):
        asked = segment.encode(runtime, "query", list(query)).states
        cross.score(runtime, asked, block, ("rank",))

    return run


def ceiling() -> dict[str, float]:
    """GFLOP/s of large matrix products on this machine, fp32 and int8, all cores."""
    import openvino as ov

    from decoupled.runtime.openvino import graph as nodes
    from decoupled.runtime.openvino.runtime import settings

    found = {}
    rows, width = 4096, 1536
    x = np.random.default_rng(0).standard_normal((1, rows, width)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((width, width)).astype(np.float32)
    seen = nodes.Range(low=x.min((0, 1)), high=x.max((0, 1)), mean=x.mean((0, 1)))
    for name, ranges in (("fp32", {}), ("int8", {"x": seen})):
        graph = nodes.Graph(tensors={}, ranges=ranges)
        node = nodes.parameter("x", [-1, -1, width], "float32")
        y, source = node, graph.source(node, "x")
        # Several products of one input: the rounding of it counts little.
        outputs = [graph.linear(source, nodes.Linear(weight=weight * n)) for n in (1, 2, 3, 4)]
        y = outputs[0]
        for other in outputs[1:]:
            y = nodes.op.add(y, other)
        model = ov.Model([nodes.op.result(nodes.op.reduce_max(y, nodes.integers(1, 2)))], [node])
        together = settings() | {"NUM_STREAMS": 1}  # all cores on one product
        compiled = ov.Core().compile_model(model, "CPU", together)
        compiled([x])
        spent = []
        for _ in range(5):
            begun = time.perf_counter()
            compiled([x])
            spent.append(time.perf_counter() - begun)
        found[name] = 8 * rows * width * width / min(spent) / 1e9
    return found


def flops() -> float:
    """Multiplications and additions of the exact cross component for one pair, CLS row only at the end."""
    tokens, layer = QUERY + PASSAGE, 4 * WIDTH**2 + 8 * WIDTH**2
    full = tokens * layer + 2 * tokens**2 * WIDTH
    return 2.0 * (LAYERS - SPLIT - 1) * full


def summary(spent: dict[str, list[float]]) -> dict[str, object]:
    """Milliseconds of all rounds, and ratios: the median over rounds, and between the best rounds.

    Other programs slow whole rounds down, so that a ratio within a round says more than one of medians.
    """
    bases = [name for name in spent if name.startswith("joint")]
    over = {base: {name: np.divide(spent[base], spent[name]) for name in spent} for base in bases}
    return {
        "ms": {name: [round(v, 1) for v in values] for name, values in spent.items()},
        "ratios": {
            base: {name: round(float(np.median(r)), 1) for name, r in rows.items()}
            for base, rows in over.items()
        },
        "ratios_of_best": {
            base: {name: round(min(spent[base]) / min(spent[name]), 1) for name in spent}
            for base in bases
        },
    }


def main() -> None:
    """Time each, print and write the medians."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--projection", type=int, default=192)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    query, passages = ids(8, 1, QUERY), ids(9, args.pairs, PASSAGE)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoint(folder)
        make = {
            "joint, torch fp32": lambda: joint_torch(folder),
            "joint, OpenVINO int8": lambda: joint_openvino_int8(folder),
            "split, fp32": lambda: ours(
                folder, passages, frozen=False, projection=None, int8=False
            ),
            "split": lambda: ours(folder, passages, frozen=False, projection=None, int8=True),
            "split, projection": lambda: ours(
                folder, passages, frozen=False, projection=args.projection, int8=True
            ),
            "one-way": lambda: ours(folder, passages, frozen=True, projection=None, int8=True),
            "one-way, projection": lambda: ours(
                folder, passages, frozen=True, projection=args.projection, int8=True
            ),
        }
        runs = {name: build() for name, build in make.items() if name not in args.skip}
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(args.rounds + 1):
        for name, run in runs.items():
            few = passages if round_ else passages[:BATCH]
            begun = time.perf_counter()
            run(query, few)
            if round_:  # the first one warms up
                spent[name].append(1e3 * (time.perf_counter() - begun))
    found = {"pairs": args.pairs, "load": os.getloadavg()[0], **summary(spent)}
    if args.ceiling:
        ceilings = ceiling()
        found["ceiling_gflops"] = {name: round(value) for name, value in ceilings.items()}
        rate = flops() * args.pairs / (min(spent["split"]) / 1e3) / 1e9
        found["split_gflops"] = round(rate)
        found["split_of_ceiling"] = round(rate / ceilings["int8"], 2)
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
