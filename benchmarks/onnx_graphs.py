"""The exported graphs in onnxruntime beside the engine on OpenVINO: the same scores, and how fast.

    python benchmarks/onnx_graphs.py --json onnx.json

The bundled model is exported in fp32 and in int8; `--model` names another split folder. Each sample question
ranks its hundred candidates from states that were stored in int8 before, in turns.
"""

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import decoupled as dc
from decoupled.lab.script import options, write_report
from decoupled.lab.study.timing import interleaved
from decoupled.measure.metrics import kendall
from decoupled.model.folder import starter_model
from decoupled.runtime import cpu
from decoupled.search.starter import sample_passages, sample_questions
from decoupled.train.export import export

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from onnx_rank import Ranker

CANDIDATES = 100
RUNTIMES = ("openvino-fp32", "openvino-int8")


def main() -> None:
    """Export, compare the scores, and race."""
    args = options(__doc__, model=Path, rounds=20)
    cpu.protect()
    with tempfile.TemporaryDirectory() as scratch:
        write_report(args, compared(args.model or starter_model(), Path(scratch), args.rounds))


def compared(model: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Differences of scores and milliseconds of each way."""
    folder, passages = work / "model", list(sample_passages())
    shutil.copytree(model, folder)
    export(folder, runtime="onnx")
    facts = export(folder, runtime="onnx", int8=True)
    rankers = {
        f"onnx-{'int8' if int8 else 'fp32'}": Ranker(folder, int8=int8) for int8 in (False, True)
    }
    engines = {}
    for runtime in RUNTIMES:
        with dc.Index.create(
            work / f"{runtime}.idx", folder, codec="int8", runtime=runtime
        ) as index:
            index.add(passages)
        engines[runtime] = dc.Engine(work / f"{runtime}.idx", runtime=runtime)
    texts = {passage.id: passage.text for passage in passages}
    largest, taus, ways = 0.0, [], dict[str, Any]()
    for sample in sample_questions():
        ids = [p.id for p in engines[RUNTIMES[0]].candidates(sample.question, CANDIDATES)]
        stored = {name: one.store([texts[i] for i in ids]) for name, one in rankers.items()}
        scores = {n: one.rank(sample.question, stored[n]) for n, one in rankers.items()}
        for name, engine in engines.items():
            by_id = {h.id: h.score for h in engine.rerank(sample.question, ids=ids, raw=True)}
            scores[name] = np.asarray([by_id[i] for i in ids])
            ways[name] = partial(engine.rerank, sample.question, ids=ids)
        ways |= {n: partial(one.rank, sample.question, stored[n]) for n, one in rankers.items()}
        fp32, int8 = (scores[f"openvino-{kind}"] for kind in ("fp32", "int8"))
        largest = max(largest, float(np.abs(scores["onnx-fp32"] - fp32).max()))
        taus.append([kendall(scores["onnx-int8"].tolist(), x.tolist()) for x in (fp32, int8)])
    times = interleaved(ways, rounds=rounds)
    return {
        "candidates": CANDIDATES,
        "largest_difference_fp32": largest,
        "tau_int8": dict(
            zip(("openvino-fp32", "openvino-int8"), np.mean(taus, 0).tolist(), strict=True)
        ),
        "bytes_int8": facts["bytes"],
        "milliseconds": {name: latency.to_json() for name, latency in times.items()},
    }


if __name__ == "__main__":
    main()
