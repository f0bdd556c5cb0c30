"""The CUDA runtime against the reference on a real GPU, with models large enough for its kernels."""

import pytest
import torch

from cuda_checks import CASES, verify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", CASES)
def test_it_gives_the_numbers_of_the_reference(name, tmp_path):
    found = verify(name, tmp_path, "cuda")
    assert found["passed"], found
