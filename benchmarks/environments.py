"""Beside what does it install? One fresh environment each, with the newest of another package.

    python benchmarks/environments.py --wheel dist --json benchmarks/results/environments.json

Each environment gets the wheel and the other package in one step, so that pip resolves both; then the bundled
model answers a question. Where torch is needed, exactly `--torch` is installed first. Sizes are those of the
installed files; the import time is the processor time of `import decoupled`, less that of an empty program,
the least of ten. `--work` is a folder for the environments, which are removed.
"""

import json
import os
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

from bench_report import bytes_under
from decoupled.lab.script import options, write_report

BESIDE: dict[str, tuple[str, bool]] = {
    "alone": ("", False),
    "datasets": ("datasets", False),
    "pandas": ("pandas", False),
    "ray": ("ray", False),
    "transformers": ("transformers", True),
    "langchain": ("langchain", False),
    "mteb": ("mteb", True),
}
"""What stands beside ours, and whether it needs torch."""
SHOWN = ("numpy", "pyarrow", "pylance", "tokenizers", "huggingface_hub", "safetensors")
QUESTION = """
import json, decoupled as dc
print(json.dumps(dc.open().ask("What river runs through Warsaw?", k=1)[0].text))
"""
TIME = """
import resource, subprocess, sys
def spent(code):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
def least(code):
    return min(spent(code) for _ in range(10))
print(1e3 * (least("import decoupled") - least("pass")))
"""


def main() -> None:
    """Make the environments, one after the other."""
    args = options(__doc__ or "", wheel=Path("dist"), torch="torch==2.13.0")
    (wheel,) = args.wheel.glob("*.whl")
    rows, samples = {}, tempfile.mkdtemp(dir=args.work)
    for name, (package, needs_torch) in BESIDE.items():
        with tempfile.TemporaryDirectory(dir=args.work) as scratch:
            first = args.torch if needs_torch else ""
            where, cache = Path(scratch, "env"), Path(samples)
            rows[name] = measured(where, cache, str(wheel.resolve()), package, first)
        # After each, so that those before a failure are kept.
        write_report(args, {"environments": rows})


def measured(where: Path, cache: Path, wheel: str, package: str, first: str) -> dict[str, Any]:
    """What happened in one environment, and what it takes."""
    venv.create(where, with_pip=True)
    python = str(where / "bin/python")
    # Nothing of this checkout; the first environment indexes the samples, and all read them.
    environment = {**os.environ, "HOME": str(where), "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONPATH", None)

    def run(*command: str) -> str:
        how: dict[str, Any] = {"env": environment, "cwd": where, "text": True}
        done = subprocess.run([python, *command], capture_output=True, check=False, **how)
        if done.returncode:
            raise SystemExit(
                f"{package or 'alone'}: {' '.join(command)[:80]}\n{done.stderr[-2000:]}"
            )
        return done.stdout

    site = next((where / "lib").glob("python*/site-packages"))
    empty = bytes_under(site)
    install = ("-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile")
    if first:
        run(*install, first)
    run(*install, wheel, *filter(None, [package]))
    run("-m", "pip", "check")
    listed = {
        p["name"]: p["version"] for p in json.loads(run("-m", "pip", "list", "--format=json"))
    }
    sizes = bytes_under(site) - empty
    answer = json.loads(run("-c", QUESTION).splitlines()[-1])
    milliseconds = round(float(run("-c", TIME)))
    versions = {n: listed[n] for n in (package, "torch", *SHOWN) if n in listed}
    shutil.rmtree(where)
    return {"versions": versions, "bytes": sizes, "answer": answer, "import_cpu_ms": milliseconds}


if __name__ == "__main__":
    main()
