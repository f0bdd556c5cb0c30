"""Reranking on one GPU, piece by piece: how near to the machine's ceiling, in how much memory, against whom.

    python benchmarks/gpu_rerank.py --json benchmarks/results/gpu_rerank.json

`decoupled lab bench --preset gpu` races whole queries; this times the cross component alone against the joint
forward alone, counts the arithmetic, and weighs both. Shapes, texts and CrossEncoder are those of the race;
the states of the passages lie in GPU memory, `int8` or `project:W/4+int8`. `clients` is how many queries of a
hundred candidates each are ranked a second. A section that fails says why and stops nothing. `--smoke` runs
all of it on a CPU in a tiny size, `--base` BERT-base alone and ours alone.
"""

import argparse
import gc
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.index.encode import encode_texts
from decoupled.lab.bench import shapes
from decoupled.lab.bench.contenders import NARROW
from decoupled.lab.bench.peers import cross_encoder_model, ranker
from decoupled.lab.bench.report import joint_flops
from decoupled.lab.bench.shapes import PASSAGE_TOKENS, QUERY_TOKENS, Shape
from decoupled.lab.bench.worker import in_use, peak_since, reset_peak
from decoupled.lab.script import options, write_report
from decoupled.model.codec import Codec, fit_codec
from decoupled.model.model import Model
from decoupled.model.states import Encoded, States
from decoupled.runtime.base import Runtime
from decoupled.runtime.cuda.runtime import CudaRuntime
from decoupled.runtime.torch import TorchRuntime
from decoupled.search import cross

Runs = dict[str, Callable[[], Any]]
CLIENTS = (1, 8, 32, 128)
SIZES = (32, 64, 128, 256, 512)
"""Batches of CrossEncoder."""


class Clock:
    """Times alternatives in turns, on the wall and on the device; on a CPU both are the wall."""

    def __init__(self, device: str) -> None:
        self.device = device

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)

    def once(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds of one run: on the device, and on the wall."""
        self.wait()
        begun = time.perf_counter()
        if self.device == "cpu":
            run()
            wall = (time.perf_counter() - begun) * 1e3
            return wall, wall
        import torch

        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        self.wait()
        wall = (time.perf_counter() - begun) * 1e3
        return float(first.elapsed_time(last)), wall

    def compare(
        self, runs: Mapping[str, Callable[[], Any]], *, rounds: int, warm: int = 3
    ) -> dict[str, dict[str, float]]:
        """Every run in turn, round after round: medians, and the 95th percentile of the wall."""
        for run in runs.values():
            for _ in range(warm):
                run()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                times[name].append(self.once(run))
        found = {}
        for name, pairs in times.items():
            device, wall = np.asarray(pairs).T
            found[name] = {
                "device_ms": round(float(np.median(device)), 4),
                "wall_ms": round(float(np.median(wall)), 4),
                "wall_p95_ms": round(float(np.percentile(wall, 95)), 4),
                "n": rounds,
            }
        return found


def main() -> None:
    """Every section in turn."""
    args = options(__doc__, smoke=False, no_compile=False, base=False)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        base = Subject(bench, "BERT-base")
        bench.section("ceilings", lambda: ceilings(bench.clock, size=256 if args.smoke else 8192))
        bench.section("BERT-base", lambda: ours(bench, base, *base.codecs))
        bench.section("clients", lambda: many_clients(bench, base))
        if args.base:
            return
        bench.section("BERT-base joint", lambda: joint(bench, base, compiled=not args.no_compile))
        bench.section("BERT-base CrossEncoder", lambda: peer(bench, base, *SIZES))
        bench.section("memory", lambda: memory(bench, base))
        for name in ("MiniLM-L6",) if args.smoke else ("MiniLM-L6", "MiniLM-L12", "BERT-large"):
            bench.section(name, lambda n=name: other(bench, Subject(bench, n)))
        if not args.no_compile:
            name = "BERT-base CrossEncoder compiled"
            bench.section(name, lambda: peer(bench, base, 256, compiled=True))


class Bench:
    """Settings, the clock, and what was found so far, written down after every section."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.smoke = args, folder, args.smoke
        self.clock = Clock("cpu" if args.smoke else "cuda")
        self.device = torch.device(self.clock.device)
        self.tops = (4, 8, 16) if self.smoke else (20, 100, 1000)
        self.rounds = 2 if self.smoke else 15
        named = "cpu" if self.smoke else torch.cuda.get_device_name(self.device)
        self.results: dict[str, Any] = {"device": named}
        self.started = time.perf_counter()

    def section(self, name: str, work: Callable[[], Any]) -> None:
        """Run, keep what comes back, write it down; a failure is kept too."""
        try:
            self.results[name] = work()
        except Exception:
            self.results[name] = {"failed": traceback.format_exc()}
        self.results["seconds"] = round(time.perf_counter() - self.started, 1)
        write_report(self.args, self.results)


class Subject:
    """One shape: its checkpoint, its split models, and passages whose states the device keeps."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.shape = bench, shapes.SHAPES["tiny" if bench.smoke else name]
        self.folder = shapes.write_checkpoint(self.shape, bench.folder / name)
        ways = {"exact": (), "one-way": "auto"}
        at = self.shape.split
        self.models = {kind: Model.split(self.folder, at=at, one_way=w) for kind, w in ways.items()}
        self.texts = shapes.texts(2 * bench.tops[-1])
        self.codecs = f"project:{self.shape.width // NARROW}+int8", "int8"
        self.runtimes = cache(self._runtimes)

    @cached_property
    def states(self) -> States:
        """Of all passages, through the runtime itself."""
        runtime = CudaRuntime(self.models["exact"], device=self.bench.device)
        ids = [windows[0].ids for windows in runtime.tokenizer.windows(self.texts.passages)]
        return encode_texts(runtime, "passage", ids).states

    def _runtimes(self, codec: str) -> dict[str, tuple[CudaRuntime, Any]]:
        """For each kind of upper layers a runtime and the passages that it keeps."""
        fitted = fit_codec(codec, self.states.select(np.arange(min(200, len(self.states)))))
        encoded = fitted.encode(self.states)
        return {kind: self.keeping(kind, fitted, encoded) for kind in self.models}

    def keeping(self, kind: str, codec: Codec, encoded: Encoded) -> tuple[CudaRuntime, Any]:
        """A runtime for a kind of upper layers, and passages that it keeps."""
        runtime = CudaRuntime(self.models[kind], codec, device=self.bench.device)
        return runtime, runtime.keep(encoded)

    def rerank(self, runtime: CudaRuntime, kept: Any, top: int) -> Callable[[], list[str]]:
        """Query text and rows in, ids in ranked order out; each call another query and other passages."""
        draw, queries = np.random.default_rng(top), cycle(self.texts.queries)
        drawn = cycle([draw.choice(len(kept), top, replace=False) for _ in range(32)])
        names = np.asarray(self.texts.ids[: len(kept)], object)

        def run() -> list[str]:
            rows = next(drawn)
            ids = [runtime.tokenizer.query(next(queries))]
            states = encode_texts(runtime, "query", ids, vectors=False).states
            logits = cross.score(runtime, states, kept.select(rows), ("rank",))["rank"]
            order = np.argsort(-logits.values[:, 0], kind="stable")
            return names[rows[order]].tolist()

        return run

    def crossing(self, runtime: Runtime, kept: Any, top: int) -> Callable[[], Any]:
        """The cross component alone, on a query that is encoded already."""
        ids = [runtime.tokenizer.query(self.texts.queries[0])]
        states = encode_texts(runtime, "query", ids).states
        some = kept.select(np.random.default_rng(0).choice(len(kept), top, replace=False))
        return lambda: cross.score(runtime, states, some, ("rank",))


def ours(bench: Bench, subject: Subject, *codecs: str) -> dict[str, Any]:
    """Cross component and whole rerank by codec, kind and number of candidates, beside their floor."""
    found: dict[str, Any] = {}
    best = bench.results["ceilings"]
    for codec in codecs:
        works: Runs = {}
        for kind, (runtime, kept) in subject.runtimes(codec).items():
            for top in bench.tops:
                works[f"cross {top} {kind}"] = subject.crossing(runtime, kept, top)
                works[f"rerank {top} {kind}"] = subject.rerank(runtime, kept, top)
        found[codec] = bench.clock.compare(works, rounds=bench.rounds, warm=4)
        for kind, (runtime, _) in subject.runtimes(codec).items():
            for top in bench.tops:
                times = found[codec][f"cross {top} {kind}"]
                one_way = kind.startswith("one-way")
                flops, moved = least_work(subject.shape, runtime.codec, top, one_way)
                rate = flops / times["device_ms"] / 1e9
                floor = max(flops / best["tflops"] / 1e9, moved / best["copy_gb_s"] / 1e6)
                times |= {"gflop": round(flops / 1e9, 2), "floor_ms": round(floor, 4)}
                share = round(rate / best["tflops"], 4)
                times |= {"tflops": round(rate, 2), "share_of_ceiling": share}
    return found


def least_work(shape: Shape, codec: Codec, top: int, one_way: bool) -> tuple[int, int]:
    """FLOPs and bytes of a rank head's cross component that cannot be left out.

    The first products of the query serve all pairs. A projection is folded into the first products of the
    passages and undone once. The one row that the last layer computes needs no keys or values.
    """
    q, p, width = QUERY_TOKENS, PASSAGE_TOKENS, shape.width
    narrow = codec.layout.width if codec.layout.width < width else 0
    maps, moving = (2, q) if one_way else (3, q + p)
    rest = 2 * width**2 + 4 * width * shape.ffn
    flops = top * (6 * width**2 + 4 * shape.heads * width * (q + p) + rest)
    flops += 2 * narrow * width * top * p
    for number in range(shape.layers - shape.split - 1):
        source = narrow if narrow and (one_way or number == 0) else width
        flops += 6 * width**2 * q * (top if number else 1) + 2 * maps * width * source * top * p
        flops += top * moving * (4 * width * (q + p) + rest)
    weights = (shape.layers - shape.split) * (4 * width**2 + 2 * width * shape.ffn)
    return flops, 2 * weights + top * p * codec.bytes_per_token


def many_clients(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Queries a second by kind and number of clients, and the milliseconds that each waits."""
    _, top, _ = bench.tops
    sys.setswitchinterval(0.0005)  # as the server does
    return {
        kind: {n: served(bench, subject, *own, top=top, clients=n) for n in CLIENTS}
        for kind, own in subject.runtimes(subject.codecs[0]).items()
    }


def served(
    bench: Bench, subject: Subject, runtime: CudaRuntime, kept: Any, *, top: int, clients: int
) -> dict[str, float]:
    """Clients that ask again at once; what waits is shared by as many threads as the runtime takes.

    That is how the server batches; query texts go in, ranked ids come out.
    """
    draw, names = np.random.default_rng(clients), np.asarray(subject.texts.ids[: len(kept)])
    queries, waiting = cycle(subject.texts.queries), deque([0.0] * clients)
    seconds, guard, waits = (0.2 if bench.smoke else 1.0), threading.Lock(), list[float]()
    begin = time.perf_counter() + seconds  # for what is slow the first time
    end = begin + seconds

    def take() -> list[tuple[float, str, Any]]:
        with guard:
            count = -(-len(waiting) // runtime.callers)
            since = [waiting.popleft() or time.perf_counter() for _ in range(count)]
            return [(t, next(queries), draw.choice(len(kept), top, replace=False)) for t in since]

    def work() -> None:
        while time.perf_counter() < end:
            if not (batch := take()):
                time.sleep(1e-4)
                continue
            ids = runtime.tokenizer.queries([query for _, query, _ in batch])
            states = encode_texts(runtime, "query", ids, vectors=False).states
            pairs = [(states.select([n]), kept.select(own)) for n, (*_, own) in enumerate(batch)]
            for (since, _, rows), logits in zip(
                batch, cross.score_many(runtime, pairs, ("rank",)), strict=True
            ):
                order = np.argsort(-logits["rank"].values[:, 0], kind="stable")
                names[rows[order]].tolist()
                now = time.perf_counter()
                with guard:
                    waiting.append(now)
                    if begin <= now <= end:
                        waits.append(now - since)

    threads = [threading.Thread(target=work) for _ in range(runtime.callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waited = round(1e3 * float(np.median(waits)), 2) if waits else None
    return {"per_second": round(len(waits) / seconds, 1), "median_ms": waited}


# What it is compared with -------------------------------------------------------------------------


def ceilings(clock: Clock, *, size: int) -> dict[str, float]:
    """What the device reaches at best: bf16 matrix products on random data, and copies."""
    a, b = (torch.randn(size, size, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(size * size * 16, dtype=torch.bfloat16, device=clock.device).normal_()
    target = torch.empty_like(source)
    works: Runs = {"product": lambda: torch.mm(a, b), "copy": lambda: target.copy_(source)}
    times = {name: t["device_ms"] for name, t in clock.compare(works, rounds=20).items()}
    return {
        "tflops": round(2 * size**3 / times["product"] / 1e9, 3),
        "copy_gb_s": round(2 * source.numel() * 2 / times["copy"] / 1e6, 1),
    }


class Joint:
    """The checkpoint in transformers: bf16, SDPA, no mask since nothing is padded."""

    def __init__(self, subject: Subject, top: int) -> None:
        from transformers import AutoModelForSequenceClassification

        tokenizer = subject.models["exact"].tokenizer
        self.net = AutoModelForSequenceClassification.from_pretrained(
            subject.folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).to(subject.bench.device)
        query = tokenizer.query(subject.texts.queries[0])
        passages = [w[0].ids for w in tokenizer.windows(subject.texts.passages[:top])]
        ids = np.stack([np.concatenate([query, p]) for p in passages]).astype(np.int64)
        assert ids.shape == (top, QUERY_TOKENS + PASSAGE_TOKENS)
        self.ids = torch.from_numpy(ids).to(subject.bench.device)
        self.types = torch.zeros_like(self.ids)
        self.types[:, len(query) :] = 1

    @torch.inference_mode()
    def forward(self, batch: int) -> torch.Tensor:
        """Logits of all pairs, `batch` at a time."""
        parts = zip(self.ids.split(batch), self.types.split(batch), strict=True)
        return torch.cat([self.net(input_ids=i, token_type_ids=t).logits for i, t in parts])


def joint(bench: Bench, subject: Subject, *, compiled: bool) -> dict[str, Any]:
    """The joint forward alone, eager at several batch sizes, and compiled at the best of them."""
    top = bench.tops[-1]
    model = Joint(subject, top)
    sizes = {f"eager {batch}": batch for batch in (top // 8, top // 4, top)}
    works: Runs = {name: lambda b=batch: model.forward(b) for name, batch in sizes.items()}
    found = best_of(bench, works)
    if compiled:
        batch = sizes[min(found, key=lambda name: found[name]["device_ms"])]
        model.net.compile()
        work: Runs = {f"compiled {batch}": lambda: model.forward(batch)}
        found |= bench.clock.compare(work, rounds=bench.rounds)
        plain = TorchRuntime(Model.split(subject.folder, at=subject.shape.split))
        plain.model.to(bench.device, torch.bfloat16)
        work = {"cross in plain torch": subject.crossing(plain, subject.states, top)}
        found |= bench.clock.compare(work, rounds=2, warm=1)
    flops = top * joint_flops(subject.shape, QUERY_TOKENS + PASSAGE_TOKENS)
    for times in found.values():
        times["tflops"] = round(flops / times["device_ms"] / 1e9, 2)
    return found


def peer(bench: Bench, subject: Subject, *sizes: int, compiled: bool = False) -> dict[str, Any]:
    """`CrossEncoder` from texts to ranking, over batch sizes."""
    _, few, top = bench.tops
    model = cross_encoder_model(subject.folder, bench.clock.device, compiled=compiled)
    tried = (8,) if bench.smoke else sizes

    def rank(count: int, batch: int) -> list[str]:
        return ranker(model, subject.texts, batch)(subject.texts.queries[0], count, count)

    works: Runs = {f"rerank {top} at {size}": partial(rank, top, size) for size in tried}
    fewer: Runs = {f"rerank {few} at {few}": partial(rank, few, few)}
    return best_of(bench, works) | best_of(bench, fewer)


def best_of(bench: Bench, works: Runs) -> dict[str, Any]:
    """Each twice, then the fastest as often as ours."""
    found = bench.clock.compare(works, rounds=2, warm=1)
    best = min(found, key=lambda name: found[name]["wall_ms"])
    return found | bench.clock.compare({best: works[best]}, rounds=bench.rounds, warm=0)


def other(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Another shape: our side in one codec, the joint forward eager, CrossEncoder at two batch sizes."""
    return {
        "ours": ours(bench, subject, subject.codecs[0]),
        "joint": joint(bench, subject, compiled=False),
        "CrossEncoder": peer(bench, subject, 128, 256),
    }


def memory(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Peak allocation of a rerank: the joint model in one batch and in small ones, and ours."""
    found: dict[str, Any] = {}
    fitted = fit_codec(subject.codecs[0], subject.states.select(np.arange(bench.tops[1])))

    def whole(top: int, batch: int) -> Callable[[], Any]:
        return partial(Joint(subject, top).forward, batch)

    def split(kind: str, encoded: Encoded) -> Callable[[], Any]:
        return subject.rerank(*subject.keeping(kind, fitted, encoded), len(encoded))

    for top in bench.tops[1:]:
        encoded = fitted.encode(subject.states.select(np.arange(top)))
        for batch in sorted({min(top, 128), top}):
            found[f"joint {top}, {batch} at a time"] = peak(bench, whole, top, batch)
        for kind in subject.models:
            found[f"rerank {top} {kind}, states included"] = peak(bench, split, kind, encoded)
    return found


def peak(bench: Bench, make: Callable[..., Callable[[], Any]], *args: Any) -> dict[str, float]:
    """Megabytes that what is made takes at most when it runs, and those it holds at rest."""
    gc.collect()
    before = in_use(bench.clock.device)
    run = make(*args)
    run()
    reset_peak(bench.clock.device)
    rest = in_use(bench.clock.device) - before
    run()
    most = peak_since(bench.clock.device) - before
    return {"peak_mb": round(most / 2**20, 1), "at_rest_mb": round(rest / 2**20, 1)}


if __name__ == "__main__":
    main()
