"""The fastest matrix products of this machine: what no runtime can exceed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

SIZES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
SECONDS = 1.0


def measure(device: str, threads: int) -> dict[str, Any]:
    """GFLOP/s by kind of arithmetic; a kind that cannot be measured here says why."""
    try:
        import torch
    except ImportError:
        return {"fp32": "torch is not installed"}
    torch.set_num_threads(threads)
    rates: dict[str, Any] = {"device": device, "threads": threads}
    rates["fp32"] = _best(partial(_torch_product, device=device, kind="float32"), device)
    if device != "cpu":
        rates["bf16"] = _best(partial(_torch_product, device=device, kind="bfloat16"), device)
        rates["int8"] = _best(partial(_torch_product, device=device, kind="int8"), device)
    elif find_spec("openvino") is None:
        rates["int8"] = "openvino is not installed"
    else:
        rates["int8"] = _best(partial(_openvino_int8, threads=threads), device)
    return rates


def _best(make: Callable[[int], Callable[[], Any]], device: str) -> float | str:
    rates = []
    for size in SIZES[device]:
        try:
            run = make(size)
            run()
        except Exception as error:  # a kernel that this build lacks is a fact about it
            return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        rates.append(2 * size**3 / _seconds(run) / 1e9)
    return round(max(rates), 1)


def _seconds(run: Callable[[], Any]) -> float:
    """The fastest of the repetitions that fit into a second."""
    times: list[float] = []
    begun = time.perf_counter()
    while not times or (time.perf_counter() - begun < SECONDS and len(times) < 50):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _torch_product(size: int, device: str, kind: str) -> Callable[[], Any]:
    import torch

    if kind == "int8":
        a = torch.randint(-100, 100, (size, size), dtype=torch.int8, device=device)
        product = partial(torch._int_mm, a, a.t())
    else:
        kinds = {"device": device, "dtype": getattr(torch, kind)}
        product = partial(torch.matmul, *(torch.randn(size, size, **kinds) for _ in range(2)))

    def run() -> None:
        product()
        if device != "cpu":
            torch.cuda.synchronize()

    return run


def _openvino_int8(size: int, threads: int) -> Callable[[], Any]:
    """A product whose operands are quantised in the graph, as those of an int8 model are."""
    import numpy as np

    from decoupled.runtime.openvino import openvino
    from decoupled.runtime.openvino.graph import core

    op = openvino.opset13
    draw = np.random.default_rng(0)
    inputs = op.parameter([size, size], np.float32)
    low, high = op.constant(np.float32(-4)), op.constant(np.float32(4))
    rounded = op.fake_quantize(inputs, low, high, low, high, 256)
    codes = draw.integers(-127, 127, (size, size)).astype(np.int8)
    weight = op.multiply(op.convert(op.constant(codes), "f32"), op.constant(np.float32(0.01)))
    product = op.matmul(rounded, weight, False, True)
    # The result is quantised again, so that no time goes into writing floats that nobody reads.
    low, high = op.constant(np.float32(-100)), op.constant(np.float32(100))
    result = op.fake_quantize(product, low, high, low, high, 256)
    model = openvino.Model([result], [inputs])
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core().compile_model(model, "CPU", config).create_infer_request()
    x = draw.standard_normal((size, size)).astype(np.float32)
    return lambda: request.infer([x], share_inputs=True)
