"""The core install in an environment of its own: no torch, and everything that serving needs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A fresh environment with `pip install .`; prints how long that took and what it weighs."""
    place = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    begun = time.perf_counter()
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", ROOT]
    subprocess.run(pip, check=True, timeout=900)
    packages = next(place.glob("lib/python*/site-packages"))
    sizes = {
        folder.name: sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
        for folder in packages.iterdir()
        if folder.is_dir()
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    sys.stdout.write(
        f"\ninstalled in {time.perf_counter() - begun:.0f} s; {sum(sizes.values()):.0f} MB:\n"
    )
    sys.stdout.write(", ".join(f"{name} {size:.0f}" for name, size in largest) + "\n")
    return place


def run(core: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    return subprocess.run(
        [core / "bin" / "decoupled", *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_there_is_no_torch(core):
    found = subprocess.run([core / "bin" / "python", "-c", "import torch"], capture_output=True)
    assert found.returncode != 0


def test_index_and_ask(core, tmp_path):
    (tmp_path / "p.jsonl").write_text(
        json.dumps({"id": "a", "text": "Paris is the capital of France."}) + "\n"
    )
    begun = time.perf_counter()
    assert run(core, tmp_path, "index", "p.jsonl", "-o", "p.idx").returncode == 0
    done = run(core, tmp_path, "ask", "p.idx", "What is the capital of France?", "--json")
    sys.stdout.write(f"index and first answer: {time.perf_counter() - begun:.1f} s\n")
    assert json.loads(done.stdout)["answers"][0]["text"] == "Paris", done.stderr
    words = ("rerank", "capital of France", "p.jsonl", "--model", starter(core), "--json")
    assert json.loads(run(core, tmp_path, *words).stdout)["hits"][0]["id"] == "a"
    doctor = json.loads(run(core, tmp_path, "doctor", "--json").stdout)
    assert doctor["runtimes"]["openvino"].startswith("ready")
    split = run(core, tmp_path, "split", "nowhere", "-o", "m", "--at", "2")
    assert split.returncode == 1 and 'pip install "decoupled-transformer[torch]"' in split.stderr


def test_serve(core, tmp_path):
    (tmp_path / "p.jsonl").write_text(
        json.dumps({"id": "a", "text": "Paris is the capital of France."}) + "\n"
    )
    assert run(core, tmp_path, "index", "p.jsonl", "-o", "p.idx").returncode == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [core / "bin" / "decoupled", "serve", "p.idx", "--port", str(port)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as server:
        try:
            answer = asked(port, {"question": "What is the capital of France?"})
            assert answer["answers"][0]["text"] == "Paris"
        finally:
            server.terminate()


def asked(port: int, body: dict[str, str], seconds: float = 60) -> dict:
    """What the server answers, once it is there."""
    sent = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/ask",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    until = time.perf_counter() + seconds
    while True:
        try:
            with urllib.request.urlopen(sent, timeout=seconds) as reply:
                return json.load(reply)
        except URLError:
            if time.perf_counter() > until:
                raise
            time.sleep(0.5)


def test_demo(core, tmp_path):
    done = run(core, tmp_path, "demo", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["right"] >= 8
    assert all(row["joint_ms"] > row["split_ms"] for row in found["questions"])


def starter(core: Path) -> Path:
    return next(core.glob("lib/python*/site-packages/decoupled/assets/starter"))
