"""The CUDA runtime against the reference on a real GPU, with models large enough for its kernels."""

import pytest
import torch

from cuda_checks import CASES, verify
from decoupled.runtime.cuda.graphs import Graphs, Steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", CASES)
def test_it_gives_the_numbers_of_the_reference(name, tmp_path):
    found = verify(name, tmp_path, "cuda")
    assert found["passed"], found


def test_graphs_share_their_memory() -> None:
    """Work of one size again and again, captured anew: the memory of one serves all."""

    def work(x: torch.Tensor) -> Steps[tuple[torch.Tensor, ...]]:
        y = (x.expand(1 << 24) + 1).sum()  # 64 MB that nobody keeps
        yield
        return (y * 2,)

    graphs = Graphs(torch.device("cuda"))
    taken = []
    for key in range(6):
        for given in (1.0, 2.0, 3.0):
            (got,) = graphs.run(key, [torch.tensor([given])], work)
            assert float(got) == pytest.approx(2 * (given + 1) * (1 << 24))
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] == taken[0]
