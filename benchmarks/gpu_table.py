"""The GPU benchmark's last words: a short table, and where it ran."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench_report import table

PROMISED = {"cross exact": 6, "cross one-way": 18, "rerank exact": 35, "rerank one-way": 100}
"""How many times faster at the most candidates: the cross component than the joint forward, eager or
compiled, whichever is faster; the whole rerank than CrossEncoder."""


def short_table(results: dict[str, Any]) -> str:
    """The lines that were promised, with what was found."""
    rows = []
    checks = [c for c in results.get("checks", []) if isinstance(c, dict)]
    rows.append(["checks passed", f"{sum(c['passed'] for c in checks)} of {len(checks)}", ""])
    for name, value in results.get("ceilings", {}).items():
        rows.append([f"ceiling {name}", f"{value}", ""])
    peer = best(results.get("BERT-base CrossEncoder"), "rerank", "wall_ms", largest=True)
    compiled = best(results.get("BERT-base joint"), "compiled", "device_ms")
    eager = best(results.get("BERT-base joint"), "eager", "device_ms")
    rows.append(["joint forward eager, ms", shown_number(eager), ""])
    rows.append(["joint forward compiled, ms", shown_number(compiled), ""])
    rows.append(["CrossEncoder end to end, ms", shown_number(peer), ""])
    base = min((t for t in (compiled, eager) if t), default=None)
    for codec, times in (results.get("BERT-base") or {}).items():
        if not isinstance(times, dict):
            continue
        for name, found in times.items():
            clock = "device_ms" if name.startswith("cross") else "wall_ms"
            against = base if name.startswith("cross") else peer
            largest = name.split()[1] == max((n.split()[1] for n in times), key=int)
            what, _, kind = name.split()
            wanted = PROMISED[f"{what} {kind}"]
            ratio = f"{against / found[clock]:.1f}x of {wanted}" if against and largest else ""
            share = (
                f", {found['share_of_ceiling']:.0%} of ceiling"
                if "share_of_ceiling" in found
                else ""
            )
            rows.append([f"{codec}: {name}, ms", f"{found[clock]:.3f}{share}", ratio])
    for name, found in (results.get("memory") or {}).items():
        if isinstance(found, dict):
            rows.append([f"memory {name}, MB", f"{found['peak_mb']}", ""])
    return table(["what", "found", "against the joint one"], rows)


def best(times: Any, prefix: str, clock: str, *, largest: bool = False) -> float | None:
    """The least time among those whose name begins so, of the largest number of pairs if asked."""
    if not isinstance(times, dict):
        return None
    found = {n: t for n, t in times.items() if n.startswith(prefix) and isinstance(t, dict)}
    if largest and found:
        most = max(int(n.split()[1]) for n in found)
        found = {n: t for n, t in found.items() if int(n.split()[1]) == most}
    return min((t[clock] for t in found.values()), default=None)


def shown_number(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def machine(device: torch.device) -> dict[str, Any]:
    """Where it ran."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{n: installed(n) for n in ("torch", "triton", "transformers", "sentence-transformers")},
    }


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def shown(arguments: list[str]) -> list[str]:
    """The command without the folders of whoever ran it."""
    return [Path(a).name if Path(a).is_absolute() else a for a in arguments]
