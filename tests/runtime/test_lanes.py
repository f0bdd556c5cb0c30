"""Batches side by side: the same results, in order, on one core each."""

from __future__ import annotations

import threading

import pytest
import torch

from decoupled.model.model import Model
from decoupled.runtime.torch import Lanes
from decoupled.search.engine import Engine


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def two_cores(cores):
    cores(2)


def test_results_are_in_order_and_each_has_one_core(two_cores):
    lanes = Lanes()
    together = threading.Barrier(2, timeout=10)

    def work(item):
        together.wait()
        return item, torch.get_num_threads(), threading.current_thread().name

    done = lanes.each(work, range(8))
    assert [item for item, _, _ in done] == list(range(8))
    assert {cores for _, cores, _ in done} == {1} and len({name for _, _, name in done}) == 2
    assert torch.get_num_threads() == 2
    fresh = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]


def test_an_error_comes_out(two_cores):
    with pytest.raises(ZeroDivisionError):
        Lanes().each(lambda item: 1 // item, [1, 0, 1])


@pytest.mark.parametrize(("count", "items"), [(1, [1, 2]), (2, [1])])
def test_one_core_or_one_item_stays_in_this_thread(cores, count, items):
    cores(count)
    here = threading.current_thread().name
    assert set(Lanes().each(lambda _: threading.current_thread().name, items)) == {here}


def test_scores_do_not_depend_on_it(model, two_cores):
    split = Model.split(model("bert", "rank"), at=1)
    texts = ["the river " * n for n in range(1, 120)]
    side_by_side = {h.id: h.score for h in Engine(split).rerank("town", texts=texts, raw=True)}
    torch.set_num_threads(1)
    alone = {h.id: h.score for h in Engine(split).rerank("town", texts=texts, raw=True)}
    assert side_by_side == pytest.approx(alone, abs=1e-5)
