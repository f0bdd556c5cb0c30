"""The batcher: what waits is computed together, each gets its own result, nobody waits for the dead."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from decoupled.runtime.base import Cancelled
from decoupled.search.request import Request
from decoupled.serve.http.batching import LEAST_BUDGET, SLOWEST, Batcher, run_requests
from decoupled.serve.http.limits import Limits
from decoupled.serve.http.metrics import Metrics
from decoupled.serve.http.responses import RequestProblem


class Doubler:
    """Doubles numbers when it is let; remembers its batches."""

    def __init__(self):
        self.batches = []
        self.let = threading.Event()

    def __call__(self, jobs, cancelled):
        self.batches.append(list(jobs))
        assert self.let.wait(5)
        return [ValueError("odd") if job % 2 else job * 2 for job in jobs]


def batcher(run, *, budget=100, queue=10, threads=1):
    limits = Limits(batch_tokens=budget, queue=queue, tokens_in_flight=1000)
    return Batcher("t", run, limits=limits, patience=3.0, threads=threads, metrics=Metrics())


async def started(doubler, count=1):
    while len(doubler.batches) < count:
        await asyncio.sleep(0.001)


def test_what_waits_goes_together_within_the_budget():
    async def main():
        run = Doubler()
        queue = batcher(run)
        first = asyncio.create_task(queue.submit(0, weight=1, seconds=5))
        await started(run)
        weights = {2: 50, 4: 50, 6: 60, 8: 500, 10: 1}
        tasks = [
            asyncio.create_task(queue.submit(n, weight=w, seconds=5)) for n, w in weights.items()
        ]
        await asyncio.sleep(0.01)
        run.let.set()
        assert [(await task)[0] for task in tasks] == [4, 8, 12, 16, 20]
        assert (await first)[0] == 0 and (await tasks[0])[1] > 0
        await queue.close()
        return run.batches

    assert asyncio.run(main()) == [[0], [2, 4], [6], [8], [10]]


def test_threads_share_what_waits_and_closing_waits_for_all():
    async def main():
        run = Doubler()
        queue = batcher(run, threads=2)
        busy = [asyncio.create_task(queue.submit(n, weight=1, seconds=5)) for n in (0, 2)]
        await started(run, 2)  # neither has ended
        tasks = [asyncio.create_task(queue.submit(n, weight=1, seconds=5)) for n in (4, 6, 8)]
        await asyncio.sleep(0.01)
        assert len(run.batches) == 2
        closing = asyncio.create_task(queue.close())
        run.let.set()
        await closing
        return [task.result()[0] for task in (*busy, *tasks)], sorted(run.batches)

    assert asyncio.run(main()) == ([0, 4, 8, 12, 16], [[0], [2], [4, 6], [8]])


def test_an_error_is_only_its_own():
    async def main():
        run = Doubler()
        run.let.set()
        queue = batcher(run)
        submit = [queue.submit(n, weight=1, seconds=5) for n in range(4)]
        return await asyncio.gather(*submit, return_exceptions=True)

    found = asyncio.run(main())
    assert [found[n][0] for n in (0, 2)] == [0, 4]
    assert all(str(found[n]) == "odd" for n in (1, 3))


def test_a_full_queue_says_when_to_come_back():
    async def main():
        run = Doubler()
        queue = batcher(run, queue=2)
        tasks = [asyncio.create_task(queue.submit(0, weight=1, seconds=5))]
        await started(run)
        tasks += [asyncio.create_task(queue.submit(n, weight=1, seconds=5)) for n in (2, 4)]
        await asyncio.sleep(0)
        with pytest.raises(RequestProblem) as refused:
            await queue.submit(6, weight=1, seconds=5)
        assert refused.value.status == 503 and int(refused.value.headers["retry-after"]) >= 1
        tasks[1].cancel()
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(queue.submit(8, weight=1, seconds=5)))
        await asyncio.sleep(0.01)
        run.let.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return run.batches

    assert asyncio.run(main()) == [[0], [4, 8]]


@pytest.mark.parametrize(
    "weight, pace, status, message",
    [
        (10, 0.25, 503, "too many requests are waiting"),  # four seconds of work wait, three may
        (100, 0.1, 422, "about 100 tokens, some 10 seconds of work here"),  # too long in any case
        (40, 0.1, 503, "too many"),  # 1.6 seconds wait, and 4 are needed
        (990, 0.001, 503, "too many"),  # more tokens than may be in flight
    ],
)
def test_what_cannot_be_done_in_time_is_refused_at_once(weight, pace, status, message):
    async def main():
        run = Doubler()
        queue = batcher(run)
        task = asyncio.create_task(queue.submit(0, weight=16, seconds=5))
        await started(run)
        queue._pace = pace
        with pytest.raises(RequestProblem, match=message) as refused:
            await queue.submit(1, weight=weight, seconds=5)
        run.let.set()
        await task
        queue._pace = pace
        if status == 503:
            assert int(refused.value.headers["retry-after"]) == max(1, round(16 * pace))
            assert (await queue.submit(2, weight=weight, seconds=5))[0] == 4
        return refused.value.status

    assert asyncio.run(main()) == status


def test_the_pace_is_learnt_from_what_was_computed():
    async def main():
        def run(jobs, cancelled):
            time.sleep(0.1)
            return jobs

        queue = batcher(run)
        for _ in range(20):
            await queue.submit(0, weight=10, seconds=5)
        return queue._pace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoupled.serve.http.batching.SLOWEST", 1.0)
        assert 0.005 < asyncio.run(main()) < 0.5
    assert asyncio.run(main()) == SLOWEST, "however slow it was, others are let in"


def test_threads_that_compute_at_once_have_a_pace_together():
    async def main(threads):
        def run(jobs, cancelled):
            time.sleep(0.05)
            return jobs

        queue = batcher(run, threads=threads, budget=10)
        for _ in range(20):
            await asyncio.gather(*(queue.submit(n, weight=10, seconds=5) for n in range(threads)))
        return queue._pace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoupled.serve.http.batching.SLOWEST", 1.0)
        assert asyncio.run(main(2)) < 0.8 * asyncio.run(main(1))


def test_what_failed_does_not_make_the_pace_faster():
    async def main():
        def run(jobs, cancelled):
            raise ValueError("at once")

        queue = batcher(run)
        queue._pace = 0.001
        for _ in range(20):
            with pytest.raises(ValueError):
                await queue.submit(0, weight=100, seconds=5)
        return queue._pace

    assert asyncio.run(main()) == 0.001


def test_requests_one_after_the_other_always_find_a_worker():
    async def main():
        queue = batcher(lambda jobs, cancelled: jobs)

        async def client():
            for _ in range(200):
                await queue.submit(0, weight=1, seconds=5)
                assert isinstance(queue.idle.is_set(), bool)

        await asyncio.gather(*(client() for _ in range(4)))
        await asyncio.sleep(0.01)
        return queue.idle.is_set()

    assert asyncio.run(main())


def test_time_is_limited_and_who_left_is_not_computed():
    async def main():
        run = Doubler()
        queue = batcher(run)
        slow = asyncio.create_task(queue.submit(0, weight=1, seconds=0.05))
        await started(run)
        waiting = asyncio.create_task(queue.submit(2, weight=1, seconds=0.05))
        left = asyncio.create_task(queue.submit(4, weight=1, seconds=5))
        stays = asyncio.create_task(queue.submit(6, weight=1, seconds=5))
        await asyncio.sleep(0.01)
        left.cancel()
        for task in (slow, waiting):
            with pytest.raises(RequestProblem, match="limit seconds") as late:
                await task
            assert late.value.status == 504
        run.let.set()
        assert (await stays)[0] == 12
        return run.batches

    assert asyncio.run(main()) == [[0], [6]]


def test_a_batch_that_nobody_waits_for_is_told_to_stop():
    async def main():
        said = []

        def run(jobs, cancelled):
            while not cancelled():
                time.sleep(0.005)
            said.append(list(jobs))
            raise Cancelled

        queue = batcher(run)
        tasks = [
            asyncio.create_task(queue.submit(n, weight=1, seconds=s))
            for n, s in enumerate((5, 0.1))
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(RequestProblem, match="limit seconds"):
            await tasks[1]
        assert not said  # one of the two still waits
        tasks[0].cancel()
        await queue.close()
        return said

    assert asyncio.run(main()) == [[0, 1]]


def test_closing_finishes_what_was_accepted_and_takes_nothing_new():
    async def main():
        run = Doubler()
        queue = batcher(run)
        tasks = [asyncio.create_task(queue.submit(n, weight=1, seconds=5)) for n in (0, 2, 4)]
        await started(run)
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0.01)
        with pytest.raises(RequestProblem):
            await queue.submit(6, weight=1, seconds=5)
        run.let.set()
        await closing
        return [task.result()[0] for task in tasks]

    assert asyncio.run(main()) == [0, 4, 8]


def test_the_event_loop_stays_free():
    async def main():
        queue = batcher(lambda jobs, cancelled: (time.sleep(0.2), jobs)[1])
        task = asyncio.create_task(queue.submit(1, weight=1, seconds=5))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.005)
            ticks += 1
        await queue.close()
        return ticks

    assert asyncio.run(main()) > 10


class Engine:
    """An engine that runs out of memory beyond so many requests or so large a budget."""

    def __init__(self, *, most=1000, budget=10**9, bad=()):
        self.most, self.budget, self.bad = most, budget, bad
        self.runs = []
        self.runtime = type("Runtime", (), {"token_budget": 2048})

    def run(self, requests, *, budget=None, cancelled=None):
        self.runs.append((len(requests), budget))
        if len(requests) > self.most:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            )
        if (budget or 2048) > self.budget:
            raise MemoryError
        if set(self.bad) & {r.query for r in requests}:
            raise ZeroDivisionError("a fault of ours")
        return [r.query for r in requests]


def requests(count):
    return [Request(query=str(n), head="rank") for n in range(count)]


def work(engine, count):
    metrics = Metrics()
    found = run_requests(engine, requests(count), lambda: False, metrics)
    return found, metrics.registry.get_sample_value("decoupled_memory_retries_total")


def test_short_memory_halves_the_batch():
    engine = Engine(most=2)
    found, halved = work(engine, 7)
    assert found == [str(n) for n in range(7)] and halved == 3
    assert engine.runs[0] == (7, None)


def test_short_memory_then_makes_the_batches_of_one_request_smaller():
    engine = Engine(budget=300)
    found, _ = work(engine, 1)
    assert found == ["0"] and engine.runs == [(1, None), (1, 1024), (1, 512), (1, 256)]
    (outcome,), _ = work(Engine(budget=LEAST_BUDGET - 1), 1)
    assert isinstance(outcome, MemoryError)


def test_a_fault_is_only_its_own_and_costs_few_runs(caplog):
    engine = Engine(bad={"5"})
    found, _ = work(engine, 16)
    assert isinstance(found[5], ZeroDivisionError)
    assert [f for n, f in enumerate(found) if n != 5] == [str(n) for n in range(16) if n != 5]
    assert len(engine.runs) <= 2 * 4 + 1 and "ZeroDivisionError" in caplog.text
