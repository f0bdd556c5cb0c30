"""What a newcomer types first, twice, and with a path that is wrong."""

import subprocess
import sys

import pytest

import decoupled as dc
from commands import Commands
from decoupled.errors import InputError
from decoupled.integrations.cross_encoder import CrossEncoder
from decoupled.model.folder import starter_model
from decoupled.runtime.open import load_model, open_runtime

CORPUS = (
    '{"id": "p1", "text": "Bram Stoker wrote Dracula."}\n{"id": "p2", "text": "Lyon is a city."}\n'
)


@pytest.fixture
def cli(monkeypatch, capsys) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text(CORPUS, encoding="utf-8")
    return path


def test_the_same_lines_run_twice(corpus, tmp_path):
    for added in (2, 0):
        with dc.Index.open_or_create(tmp_path / "docs.idx") as index:
            assert index.add(dc.read_passages(corpus)).added == added
    assert dc.Engine(tmp_path / "docs.idx").ask("Who wrote Dracula?")[0].text == "Bram Stoker"


def test_one_path_is_a_corpus(corpus, tmp_path):
    for given in (str(corpus), corpus, [corpus]):
        built = dc.build_index(given, tmp_path / "docs.idx")
        assert built.passages == 2
    with pytest.raises(InputError, match=r"nothing\.jsonl does not exist"):
        dc.build_index("nothing.jsonl", tmp_path / "other.idx")


def test_a_path_without_a_model_is_told_before_any_package(tmp_path):
    (tmp_path / "empty").mkdir()
    for open_it in (dc.Engine, load_model, open_runtime, CrossEncoder):
        with pytest.raises(InputError, match="does not exist; give an index, a model folder"):
            open_it(str(tmp_path / "none"))
        with pytest.raises(InputError, match="holds no model"):
            open_it(str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"missing\.idx does not exist"):
        dc.Engine("missing.idx")
    with pytest.raises(InputError, match="empty is an empty folder, so it is not an index"):
        dc.Index.open(tmp_path / "empty")
    with pytest.raises(InputError, match="does not exist"):
        dc.Index.create(tmp_path / "i", tmp_path / "no" / "model")


def test_without_torch_the_package_is_named_and_wrong_paths_still_are():
    lines = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Without())
import decoupled as dc
from decoupled.errors import DecoupledError
for call in (lambda: dc.Model.split("x", at=1), lambda: dc.Engine("/no/model"), lambda: dc.distill):
    try:
        call()
    except DecoupledError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=120
    )
    torch, path, distill = done.stdout.splitlines()
    assert torch == distill and 'pip install "decoupled-transformer[torch]"' in torch
    assert path.startswith("/no/model does not exist")


def test_rerank_takes_an_index_first_as_ask_does(cli, corpus, tmp_path):
    assert cli("index", corpus, "-o", tmp_path / "i").code == 0
    (tmp_path / "two.txt").write_text("Paris is the capital of France.\nThe moon is far.\n")
    plain = cli("rerank", "capital of France", tmp_path / "two.txt", "--json").json
    for first in (tmp_path / "i", starter_model()):
        done = cli("rerank", first, "capital of France", tmp_path / "two.txt", "--json")
        assert [h["text"] for h in done.json["hits"]] == [h["text"] for h in plain["hits"]]
    shown = cli("rerank", "capital of France", tmp_path / "two.txt")
    assert " % " in shown.out
