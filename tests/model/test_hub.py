"""Models by hub name: downloads, revisions, the cache, refusals and pushes, against a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import jsonl
from decoupled.model.model import Model
from hub import Hub, serving

SCRIPT = """
import json, sys
import decoupled as dc
said = {}
for name in sys.argv[1:]:
    try:
        said[name] = dc.Engine(name).rerank("who wrote", texts=["Bram Stoker", "a town"]).to_json()
    except dc.InputError as error:
        said[name] = str(error)
said["torch"] = "torch" in sys.modules
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def hub():
    with serving() as (hub, address):
        yield hub, address


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def made(checkpoint, hub, home) -> Path:
    """A split model on the hub, in two revisions, and others that are withheld."""
    folder, (served, _) = home / "m", hub
    Model.split(checkpoint("bert", "rank"), at=1).save(folder)
    served.put_folder("me/split", folder)
    Model.split(checkpoint("bert", "rank"), at=2).save(home / "deeper")
    served.put_folder("me/split", home / "deeper", branch="deeper")
    for name, withheld in (("me/private", served.private), ("me/gated", served.gated)):
        served.put_folder(name, folder)
        withheld.add(name)
    return folder


def run(hub: tuple[Hub, str], home: Path, *words: object, **environment: str):
    """A Python process whose hub is the one on loopback."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub[1], "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**inherited, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_names_are_downloaded_without_torch_and_refusals_are_one_line(hub, home, made):
    names = ["me/split", "me/split@deeper", "me/split@gone", "me/private", "me/gated", "me/none"]
    done = run(hub, home, "-c", SCRIPT, *names)
    said = json.loads(done.stdout)
    assert said.pop("torch") is False
    first, deeper = (said[name]["hits"] for name in names[:2])
    assert {hit["id"] for hit in first} == {"0", "1"}
    assert [hit["score"] for hit in first] != [hit["score"] for hit in deeper]
    assert "has no such revision" in said["me/split@gone"]
    assert "is gated: ask for access" in said["me/gated"]
    for name in ("me/private", "me/none"):
        assert (
            said[name].startswith(f"{name!r} is not on the hub, or private")
            and "HF_TOKEN" in said[name]
        )
    assert all("\n" not in said[name] for name in names[2:])
    # What the token may read is read.
    said = json.loads(run(hub, home, "-c", SCRIPT, "me/private", HF_TOKEN="hf_x").stdout)
    assert len(said["me/private"]["hits"]) == 2


def test_the_cache_serves_without_a_hub(hub, home, made):
    jsonl(home / "p.jsonl", [{"id": "a", "text": "Bram Stoker wrote the novel."}])
    build = ("-m", "decoupled", "index", home / "p.jsonl", "-o", home / "p.idx", "--model")
    away = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert json.loads(run(hub, home, "-c", SCRIPT, "me/split@deeper").stdout)
    done = run(hub, home, *build, "me/split@deeper", **away)
    assert done.returncode == 0, done.stderr
    spec = json.loads((home / "p.idx" / "model" / "spec.json").read_text())
    assert spec["split"] == 2
    failed = run(hub, home, *build, "me/unseen", **away)
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1
    assert "'me/unseen' is neither a folder here nor a model that" in failed.stderr


def test_a_pushed_model_has_a_card_and_is_found_again(hub, home, made):
    served, _ = hub
    served.put("origin/joint", {"config.json": b"{}"})
    served.licences["origin/joint"] = "mit"
    history = [
        {"did": "read", "from": "origin/joint"},
        {"did": "teach", "from": "/home/someone/secret/teacher"},
        {"did": "split", "at": 1},
    ]
    (made / "history.json").write_text(json.dumps(history))
    (made / "certificate.md").write_text("# m: split at 1\n\n| nDCG@10 | 0.5 | 0.4 |\n")
    push = ("-m", "decoupled", "push", made)
    refused = run(hub, home, *push, "you/split")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert "'you/split'" in refused.stderr and "hf auth login" in refused.stderr
    token = {"HF_TOKEN": "hf_x"}
    done = run(hub, home, *push, "you/split@tried", "--private", "--json", **token)
    assert json.loads(done.stdout)["licence"] == "mit", done.stderr
    assert "you/split" in served.private
    files = served.commits["you/split"][served.branches["you/split"]["tried"]]
    assert files["weights.safetensors"] == (made / "weights.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert "license: mit\nbase_model: origin/joint\npipeline_tag: text-ranking\n---" in card
    assert "origin/joint, split at layer 1 of" in card and "- split, at 1" in card
    assert "## m: split at 1\n\n| nDCG@10" in card and "--model you/split@tried" in card
    assert "someone" not in card + files["history.json"].decode()
    said = json.loads(run(hub, home, "-c", SCRIPT, "you/split@tried", **token).stdout)
    assert len(said["you/split@tried"]["hits"]) == 2
    again = run(hub, home, *push, "you/split", "--license", "apache-2.0", **token)
    assert again.returncode == 0, again.stderr
    head = served.commits["you/split"][served.branches["you/split"]["main"]]
    assert b"license: apache-2.0" in head["README.md"]
    wrong = run(hub, home, *push, "split", **token)
    assert wrong.returncode == 1 and "give one such as you/model" in wrong.stderr
