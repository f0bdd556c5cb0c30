"""Steps as CUDA graphs: which batches share one, and that training is the same with and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoupled.train.data.batches import Batch
from decoupled.train.loop.graphs import TrainingGraphs, shape_of


def batch(rows: int, width: int, seed: int = 0, device: str = "cpu", **more: Any) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 9, (rows, width), generator=draw).to(device)
    real, none = torch.ones_like(ids, dtype=torch.bool), torch.zeros(rows, device=device)
    given = {"query_ids": ids, "query_real": real, "passage_ids": ids, "passage_real": real}
    return Batch(**given, label=ids[:, :2], score=none, rows=ids[:, 0], **more)


def test_only_the_values_of_tensors_and_the_step_differ_within_a_shape() -> None:
    one = shape_of(batch(2, 8, number=1, tokens=(3, 4, 7)))
    assert shape_of(batch(2, 8, seed=1, number=2, tokens=(1, 1, 2))) == one
    others = [batch(3, 8), batch(2, 16), batch(2, 8, per_group=2)]
    assert one not in [shape_of(other) for other in others]
    halved = replace(batch(2, 8), score=torch.zeros(2, dtype=torch.float16))
    assert shape_of(halved) != one


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_with_graphs_ends_with_the_weights_of_one_without(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    ends = []
    for graphs in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Embedding(9, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)
        ).to(device)
        idle = torch.nn.Parameter(torch.ones(3, device=device))
        moving = [*net.parameters(), idle]
        optimiser = torch.optim.SGD(moving, lr=0.1, weight_decay=0.1)

        def run(given: Batch, net: torch.nn.Module = net) -> tuple[torch.Tensor, dict[str, Any]]:
            loss = net(given.query_ids).square().mean()
            loss.backward()
            return loss, {"double": 2 * loss.detach()}

        step = TrainingGraphs(run, moving) if graphs else run
        losses = []
        for number in range(8):
            loss, parts = step(batch(4, 8 + 8 * (number % 2), seed=number, device=device))
            optimiser.step()
            optimiser.zero_grad()
            losses += [float(loss.detach()), float(parts["double"])]
        # A weight that nothing reads has no gradient, so that it does not decay.
        assert idle.tolist() == [1, 1, 1]
        ends.append([*losses, *(float(weight.detach().sum()) for weight in moving)])
    assert ends[0] == pytest.approx(ends[1], rel=1e-4, abs=1e-5)


def test_a_step_that_asks_the_gpu_goes_on_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    net = torch.nn.Sequential(torch.nn.Embedding(9, 16), torch.nn.Dropout(0.2)).cuda()

    def run(given: Batch) -> tuple[torch.Tensor, dict[str, Any]]:
        loss = net(given.query_ids).square().mean()
        loss.backward()
        return loss * (2 if bool(given.query_real.all()) else 1), {}

    step, stream = TrainingGraphs(run, list(net.parameters())), torch.cuda.current_stream()
    losses = [float(step(batch(4, 8, device="cuda"))[0].detach()) for _ in range(4)]
    assert "without CUDA graphs" in caplog.text
    assert torch.cuda.current_stream() == stream
    assert len(set(losses)) == 4  # dropout still draws
