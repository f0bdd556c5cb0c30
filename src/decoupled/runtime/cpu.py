"""What this processor can really run. Some virtual ones advertise AMX and die on its first instruction.

The verdict comes from a child process, so that the probe may die in our stead; it is kept per machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CAP = "AVX512_CORE_FP16"
"""The widest instruction set that leaves AMX alone."""

VARIABLE = "ONEDNN_MAX_CPU_ISA"

_PROBE = """
import torch
x = torch.randn(64, 64).bfloat16()
torch.nn.functional.linear(x, x)
"""


def flags() -> frozenset[str]:
    """Features that the processor advertises; empty where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def amx_works() -> bool | None:
    """Does AMX work? None when it is not advertised or torch is not there to try it with."""
    if not any(flag.startswith("amx") for flag in flags()):
        return None
    try:
        key = f"{platform.node()} {platform.processor()} {sorted(flags())} torch {version('torch')}"
    except PackageNotFoundError:
        return None
    cache = cache_folder() / f"amx-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        return bool(json.loads(cache.read_text(encoding="utf-8"))["works"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    works = _survives(_PROBE)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"works": works}), encoding="utf-8")
    except OSError:
        pass  # nowhere to keep it: the next process probes again
    return works


def _survives(code: str) -> bool:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    return done.returncode == 0


def cache_folder() -> Path:
    """Where small verdicts about this machine are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "decoupled"


def protect() -> bool:
    """Cap the instruction set where AMX would kill us; call before torch loads. True if it did."""
    if os.environ.get(VARIABLE) or amx_works() is not False:
        return False
    os.environ[VARIABLE] = CAP
    return True
