"""What this processor can really run. Some virtual ones advertise AMX and die on its first instruction.

The verdict comes from a child process, so that the probe may die in our stead; it is kept per machine.
"""

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CAP = "AVX512_CORE_FP16"
"""The widest instruction set that leaves AMX alone."""

VARIABLE = "ONEDNN_MAX_CPU_ISA"
THREADS = "OMP_NUM_THREADS"

log = logging.getLogger(__name__)

_PROBES = {
    "openvino": """
import sys
sys.modules["openvino_telemetry"] = None
import numpy as np, openvino as ov
from openvino import opset15 as op
ends = [np.float32(e) for e in (0, 255, 0, 255)]
x = op.parameter([64, 64], np.float32)
w = op.multiply(op.convert(op.constant(np.ones((64, 64), np.int8)), "f32"), np.float32(0.5))
y = op.matmul(op.fake_quantize(x, *ends, 256), w, False, True)
z = op.matmul(x, op.constant(np.ones((64, 64), np.float32)), False, True)
model = ov.Model([op.result(y), op.result(z)], [x])
compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
compiled([np.ones((64, 64), np.float32)])
""",
    "torch": """
import torch
x = torch.randn(64, 64).bfloat16()
torch.nn.functional.linear(x, x)
""",
}
"""For each library, code that uses AMX where there is one: products of bytes and of brain floats."""


def flags() -> frozenset[str]:
    """Features that the processor advertises; empty where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def amx_works() -> bool | None:
    """Whether AMX works; None when it is not advertised, or nothing that would use it is installed."""
    if not any(flag.startswith("amx") for flag in flags()):
        return None
    installed = {name: release for name in _PROBES if (release := installed_version(name))}
    if not installed:
        return None
    # The verdict holds for one machine and one set of library versions; either may change under a
    # cache.
    key = f"{platform.node()} {platform.processor()} {sorted(flags())} {installed}"
    cache = cache_folder() / f"amx-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        return bool(json.loads(cache.read_text(encoding="utf-8"))["works"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    # In a child process: an illegal instruction kills the process that runs it.
    works = _survives("".join(_PROBES[name] for name in installed))
    if not works:
        log.warning("this processor advertises AMX and dies of it; going on with %s", CAP)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"works": works}), encoding="utf-8")
    except OSError:
        pass  # nowhere to keep it: the next process probes again
    return works


def installed_version(package: str) -> str | None:
    """The installed version of a package; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _survives(code: str) -> bool:
    # The cap would hide the very instructions that the probe must try.
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    command = [sys.executable, "-c", code]
    # Generous: importing either library takes many seconds on a cold disk.
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return False  # what hangs does not work either
    return done.returncode == 0


def cache_folder() -> Path:
    """The folder for small verdicts about this machine."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "decoupled"


def multiplies_bytes() -> bool:
    """Whether the processor multiplies bytes exactly and faster than floats."""
    return not flags().isdisjoint({"avx512_vnni", "avx_vnni", "amx_int8"})


def multiplies_halves() -> bool:
    """Whether the processor multiplies brain floats faster than floats."""
    return not flags().isdisjoint({"avx512_bf16", "amx_bf16"})


def protect() -> bool:
    """Cap the instruction set where AMX would kill us; before torch or OpenVINO load. True if it did."""
    if os.environ.get(VARIABLE) or amx_works() is not False:
        return False
    os.environ[VARIABLE] = CAP
    return True


def cores() -> int:
    """The number of cores to use: what the user allows, or all of them."""
    setting = os.environ.get(THREADS, "")
    return int(setting) if setting.isdigit() and int(setting) else all_cores()


def all_cores() -> int:
    """The number of cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1
