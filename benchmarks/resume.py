"""Ctrl-C at 25 %, 50 % and 75 % of one large text file: what is lost, and how soon the build goes on.

    apt-get install postgresql-doc python3-doc
    python benchmarks/resume.py --manuals /usr/share/doc/postgresql-doc-15 /usr/share/doc/python3.11 \
        --json benchmarks/results/resume.json

The file is the text of both manuals, repeated up to `--megabytes`. The model is one thin random layer of
the starter's width and tokenizer, so that all of the file is encoded in minutes: what is lost is a share
of a part, and a part is some seconds of encoding with any model. Work is lost when it was spent on
encoding passages that are not stored after the signal. The restart is timed from the start of the process,
imports and model included; `by_content` is the same without the place that the build had noted.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench_report import thin_minilm
from decoupled.lab.script import options, write_report

SHARES = (0.25, 0.5, 0.75)
LATE = 2.5
"""Seconds into a part, which takes about three to encode, after which the signal comes."""


def main() -> None:
    """Interrupt one build three times, and let it end."""
    if len(sys.argv) > 1 and sys.argv[1] == "child":
        return child(*sys.argv[2:])
    args = options(__doc__, manuals=[str], megabytes=50, threads=2)
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        write_report(args, measure(args, Path(scratch)))


def measure(args: Any, work: Path) -> dict[str, Any]:
    """The three interruptions, and the run that ends."""
    thin_minilm(0, threads=args.threads).save(work / "model")
    size = make_text(args.manuals, work / "text.txt", args.megabytes * 10**6)
    stops, index = [], work / "text.idx"
    for share in SHARES:
        stops.append({"share": share, **interrupted(work, index, int(share * size))})
        copy = work / "copy.idx"
        shutil.copytree(index, copy)
        (copy / "resume.json").unlink()
        _, lines = run(work, copy, until="encoded")
        stops[-1]["by_content_seconds"] = first_encoded(lines)
        shutil.rmtree(copy)
        _, lines = run(work, index, until="encoded")
        stops[-1]["restart_seconds"] = first_encoded(lines)
    code, lines = run(work, index)
    assert code == 0, "the last run did not end"
    return {"bytes": size, "stops": stops, "passages": lines[-1]["passages"]}


def make_text(manuals: list[str], path: Path, size: int) -> int:
    """The text of the manuals, again and again."""
    from decoupled import read_passages

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
    from decoupled import Index

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
    import decoupled as dc
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
        built = dc.build_index([text], output, model=None if exists else model, on_bytes=on_bytes)
    except KeyboardInterrupt:
        say("stopped")
    else:
        say("done", passages=built.passages)


if __name__ == "__main__":
    main()
