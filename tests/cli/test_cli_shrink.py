"""`shrink` as a user types it, and its cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Commands, jsonl
from decoupled.model.annex import SHRINKING as METHODS
from decoupled.model.model import Model
from toy import class_pairs

CARDS = Path(__file__).parents[2] / "docs" / "methods"


@pytest.fixture
def cli(monkeypatch, capsys):
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="module")
def start(model, tmp_path_factory) -> Path:
    from decoupled.train.data.tasks import task_for

    folder = tmp_path_factory.mktemp("start") / "model"
    head = task_for("pairs", class_pairs(8)).head_spec
    Model.split(model("bert", "bare", num_hidden_layers=4), at=2).with_heads(head).save(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    rows = [{"query": p.query, "passage": p.passage, "label": p.label} for p in class_pairs(24)]
    return jsonl(tmp_path_factory.mktemp("data") / "pairs.jsonl", rows)


def test_methods_apply_in_order(cli, start, pairs, tmp_path):
    out = tmp_path / "small"
    done = cli(
        "shrink", start, "-o", out, "-m", "prune-heads:share=0.5", "-m", "quantise",
        "--data", pairs, "--check", pairs, "--json",
    )  # fmt: skip
    found = done.json
    assert found["after"]["parameters"] < found["before"]["parameters"]
    assert found["after"]["weight_bytes"] < 0.4 * found["before"]["weight_bytes"]
    assert found["after"]["online_macs"] < found["before"]["online_macs"]
    assert 0 <= found["after"]["score"] <= 100
    made = Model.load(out)
    assert sum(layer.attention.heads for layer in made.spec.layers) == 8
    info = cli("info", out, "--json").json
    assert info["parameters"] > 0 and info["history"][-1]["method"] == "quantise"


@pytest.mark.parametrize("bits", [8, 4])
def test_info_counts_codes_as_the_weights_they_stand_for(cli, start, tmp_path, bits):
    out = tmp_path / "coded"
    method = f"quantise:bits={bits},inputs=float"
    done = cli("shrink", start, "-o", out, "-m", method, "--json").json
    info = cli("info", out, "--json").json
    assert info["parameters"] == done["after"]["parameters"] == done["before"]["parameters"]


def test_without_json_it_prints_a_table(cli, start, tmp_path):
    done = cli("shrink", start, "-o", tmp_path / "m", "-m", "low-rank:rank=8")
    assert done.code == 0 and "parameters" in done.out and "parameters" in done.err


def test_zeros_are_counted_where_weights_became_zero(cli, start, tmp_path):
    done = cli("shrink", start, "-o", tmp_path / "m", "-m", "prune-weights:sparsity=0.9", "--json")
    before, after = done.json["before"], done.json["after"]
    assert before["sparse_bytes"] == before["weight_bytes"] == after["weight_bytes"]
    assert after["sparse_bytes"] < 0.95 * after["weight_bytes"]


def test_compact_folders_are_smaller_and_scored_as_they_are(cli, start, pairs, tmp_path):
    sizes = {}
    for name, more in (("plain", ()), ("small", ("--compact",))):
        out = tmp_path / name
        words = ("shrink", start, "-o", out, "-m", "keep-layers:every=2", "--check", pairs)
        found = cli(*words, "--json", *more).json["after"]
        sizes[name] = found["file_bytes"]
        assert found["file_bytes"] == (out / "weights.safetensors").stat().st_size
        assert cli("evaluate", "--task", "pairs", "--data", pairs, "--model", out, "--json").json[
            "accuracy"
        ] == pytest.approx(found["score"])
    assert sizes["small"] < 0.5 * sizes["plain"]


def test_training_goes_with_it(cli, start, pairs, tmp_path):
    out = tmp_path / "successor"
    done = cli(
        "shrink", start, "-o", out, "-m", "theseus:layers=2", "--data", pairs, "--recipe", "plain",
        "--epochs", 1, "--batch", 8, "--evaluations", 1, "--json",
    )  # fmt: skip
    assert done.json["after"]["layers"] == 2
    assert (tmp_path / "successor.run" / "log.jsonl").is_file()


def test_an_untrained_method_says_so(cli, start, tmp_path):
    for method in ("theseus:layers=2", "student:width=16", "layerdrop", "checkpoint-gradients"):
        done = cli("shrink", start, "-o", tmp_path / "m", "-m", method, "--json")
        assert "happens while training; add --recipe plain" in done.err
    done = cli("shrink", start, "-o", tmp_path / "m", "-m", "quantise", "--json")
    assert "while training" not in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "nothing"), "method 'nothing' is unknown; choose one of share, untie"),
        (
            ("-m", "prune-heads"),
            "prune-heads looks at data to decide; give labelled pairs (data)",
        ),
        (("-m", "theseus:layers=3"), "choose a smaller number that divides it"),
        (("-m", "layerdrop", "--recipe", "plain"), "training needs labelled pairs; give --data"),
        (("-m", "quantise", "-m", "low-rank"), "quantise last"),
        (
            ("-m", "quantise", "--epochs", "3", "--lr", "1e-4"),
            "--epochs, --lr is for training, and without --recipe nothing is trained; add --recipe",
        ),
    ],
)
def test_failures_are_one_line(cli, start, tmp_path, words, said):
    assert said in cli("shrink", start, "-o", tmp_path / "m", *words).failure
    assert not (tmp_path / "m").exists()


def test_the_bar_says_what_a_method_is_at():
    from decoupled.cli.printing import TrainingBar

    class Shown:
        def update(self, task, **fields) -> None:
            self.__dict__.update(fields)

    shown = Shown()
    bar = TrainingBar(shown, None)
    assert str(bar.place) == "before the first step was logged"
    bar.log({"phase": "keep-layers", "step": 1200, "total": None, "seconds": 6.0})
    assert shown.status == "1,200 pairs looked at, 200.0 pairs/s"
    assert str(bar.place) == "while keep-layers was looking at the data"
    bar.log({"phase": "train", "step": 5, "total": 10, "seconds": 5.0, "loss": 0.25})
    assert shown.status == "5/10, loss 0.250, 1.0 steps/s, 0:00:05 left"
    assert str(bar.place) == "at step 5 of 10" and shown.description == "train"


def test_the_list_names_every_method(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = cli("shrink", "--list")
    assert done.code == 0 and all(name in done.out for name in METHODS)
    words = " ".join(done.out.replace("│", " ").split())
    assert "by=importance|weight|random" in words and "start=first|average|aligned|best" in words
    assert "layers=none" in words


def test_every_method_has_a_card():
    table = (CARDS / "README.md").read_text(encoding="utf-8")
    cards = {card.name: card.read_text(encoding="utf-8") for card in CARDS.glob("*.md")}
    for name in METHODS:
        row = next(line for line in table.splitlines() if f"`{name}`" in line and "](" in line)
        card = row.partition("](")[2].partition(")")[0]
        heading = cards[card].splitlines()[0]
        assert name in heading, f"{card} should name {name}"
