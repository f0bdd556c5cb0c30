"""`doctor`: what this machine has, and what is missing for which command."""

import os
import platform
from importlib.metadata import version

from decoupled.model.jsonable import JsonObject
from decoupled.runtime import cpu
from decoupled.runtime.cpu import installed_version

PEERS = ("sentence-transformers", "onnxruntime", "onnxscript", "openvino", "nncf")
NEEDS = {
    "demo, index, add, search, ask, export, serve": (),
    "rerank, classify MODEL-FOLDER": (),
    "man pages, ODT, pptx, LaTeX…": (("pypandoc_binary", "documents"),),
    "split, evaluate": (("torch", "torch"),),
    "lab sweep, lab layers": (("torch", "torch"),),
    "distill, adapt, methods": (("torch", "torch"), ("accelerate", "train")),
    "lab tune": (("torch", "torch"), ("accelerate", "train"), ("optuna", "train")),
    "--cluster, --shards": (("ray", "cluster"),),
    "indexes at s3://": (("obstore", "cluster"),),
    "pictures (lab report)": (("matplotlib", "plots"),),
    "lab bench": (("torch", "torch"),),
    "lab bench against every peer": tuple((package, "bench") for package in PEERS),
}
"""Commands with the packages that each needs and the extra that installs each package."""


PACKAGES = (
    *("numpy", "tokenizers", "safetensors", "pylance", "pyarrow", "openvino"),
    *("torch", "huggingface_hub", "accelerate", "transformers"),
)


def doctor() -> dict[str, JsonObject]:
    """What this machine can run, and what to install for the rest."""
    commands = {}
    for command, needs in NEEDS.items():
        extras = sorted({extra for package, extra in needs if not installed_version(package)})
        line = f'pip install "decoupled-transformer[{",".join(extras)}]"'
        commands[command] = f"needs: {line}" if extras else "ready"
    packages = {name: installed_version(name) or "not installed" for name in PACKAGES}
    machine, runtimes = _machine(), _runtimes()
    return {"machine": machine, "runtimes": runtimes, "packages": packages, "commands": commands}


def _machine() -> JsonObject:
    flags, works = cpu.flags(), cpu.amx_works()
    amx = "not tried (neither openvino nor torch)"
    if not any(f.startswith("amx") for f in flags):
        amx = "not advertised"
    elif works is not None:
        dies = f"advertised but kills the process; capped with {cpu.VARIABLE}={cpu.CAP}"
        amx = "works" if works else dies
    features = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16")
    return {
        "decoupled": version("decoupled-transformer"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "cpu features": " ".join(f for f in features if f in flags) or "unknown",
        "AMX": amx,
        "GPU": _gpu(),
    }


def _runtimes() -> dict[str, str]:
    """Each runtime with whether it can run here, or what it needs."""
    if not installed_version("openvino"):
        openvino = "needs: pip install openvino"
    elif cpu.multiplies_bytes():
        openvino = "ready; int8 for models that `export --int8` has calibrated, else fp32"
    else:
        openvino = "ready in fp32; this processor gains nothing from int8"
    torch = (
        "ready"
        if installed_version("torch")
        else 'needs: pip install "decoupled-transformer[torch]"'
    )
    cuda = "ready" if not _gpu().startswith(("none", "unknown")) else "needs a GPU that torch sees"
    return {"openvino": openvino, "torch": torch, "cuda": cuda}


def _gpu() -> str:
    if not installed_version("torch"):
        return "unknown (no torch)"
    # The cap on instructions must be set before torch is loaded.
    cpu.protect()
    import torch

    if not torch.cuda.is_available():
        return "none"
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    return f"{name}, {memory / 2**30:.0f} GiB"
