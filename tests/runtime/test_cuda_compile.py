"""The Triton kernels pass the compiler, which checks more than its interpreter does; no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

FRONT_END = """
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from decoupled.runtime.cuda import kernels

POINTERS = {
    "*i64": "asker asks start length source",
    "*u8": "codes scales",
    "*fp32": "weight bias",
    "*bf16": "q k v out query passage change x",
}
NUMBERS = {"fp32": "scale eps"}
KINDS = {name: kind for kind, names in (POINTERS | NUMBERS).items() for name in names.split()}
WIDE = dict(HEADS=12, WIDTH=64)
FIXED = {
    "attend_kernel": dict(**WIDE, PADDED=64, PASSAGES=True, BM=64, BN=32),
    "add_norm_kernel": dict(WIDTH=768, BLOCK=1024, BM=4, BIAS=True),
    "dequantise_kernel": dict(WIDTH=192, BITS=4, BT=16, BW=128),
    "mean_kernel": dict(WIDTH=768, BLOCK=1024),
}
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
for name, fixed in FIXED.items():
    kernel = getattr(kernels, name)
    flags = {n: True for n in ("SHARED", "Q_SHARED", "K_SHARED") if n in kernel.arg_names}
    given = {**fixed, **flags}
    kinds = {n: "constexpr" if n in given else KINDS.get(n, "i32") for n in kernel.arg_names}
    at = {(kernel.arg_names.index(n),): value for n, value in given.items()}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"num_warps": 4})
    functions = backend.get_codegen_implementation(options), backend.get_module_map()
    made = ASTSource(kernel, kinds, at).make_ir(target, options, *functions, context)
    assert name in str(made)
"""


def test_every_kernel_passes_the_front_end():
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", FRONT_END], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
