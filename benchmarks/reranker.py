"""A real reranker, split: quality, agreement, speed and bytes beside the joint model, on TREC DL21.

    python benchmarks/reranker.py --teacher CHECKPOINT --models SPLIT ADAPTED --data DATA --json OUT

DATA holds `rank/trec_dl21.jsonl.xz`: the passages of each query that BM25 ranks among its first hundred, with
the judges' grades. MODELS are folders that `decoupled split` or `adapt` wrote; each is compared by `certify`
with the joint checkpoint, in turns, through an index of its own.
"""

import json
import lzma
import sys
from pathlib import Path

from decoupled.lab.script import options, write_report
from decoupled.measure.certify import certify
from decoupled.runtime import cpu


def main() -> None:
    """Compare the models that the command line names."""
    defaults = {"teacher": Path, "models": [Path], "data": Path("data"), "limit": int, "codec": str}
    args = options(__doc__ or "", **defaults, runtime="openvino-int8")
    cpu.protect()
    work = args.work or Path("work")
    work.mkdir(parents=True, exist_ok=True)
    pairs = work / "dl21_pairs.jsonl"
    with (
        pairs.open("w", encoding="utf-8") as file,
        lzma.open(args.data / "rank/trec_dl21.jsonl.xz", "rt", encoding="utf-8") as lines,
    ):
        for row in map(json.loads, lines):
            for doc in row["docs"]:
                if "BM25" in doc["ranks"]:
                    pair = {"query": row["query"], "passage": doc["text"], "label": doc["rel"] or 0}
                    file.write(json.dumps(pair) + "\n")
    certificates = []
    for model in args.models:
        how = {"data": pairs, "codec": args.codec, "limit": args.limit, "runtime": args.runtime}
        made = certify(model, teacher=args.teacher, **how)
        print(made.card(), file=sys.stderr, flush=True)
        certificates.append(made.to_json())
    write_report(args, {"data": "TREC DL21", "models": certificates})


if __name__ == "__main__":
    main()
