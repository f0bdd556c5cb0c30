"""The tasks of `examples/experiments/kinds.py` that read texts as trees, on texts of a few words."""

import json
import lzma
from argparse import Namespace

import pytest
from kind_tasks import KIND_TASKS, headed, titled, worded

from decoupled.methods.hop.links import linked
from decoupled.methods.tree.text import parsed


@pytest.fixture
def args(tmp_path):
    texts = ["The lake (Lake Inari) froze. A bridge burned.", "Boats came from Oslo."]
    asked = {"id": "q", "question": "Which lake froze?"}
    answers = [{"text": "Lake Inari", "answer_start": 10}]
    paragraphs = [{"context": text, "qas": []} for text in texts]
    paragraphs[0]["qas"] = [{**asked, "answers": answers}]
    squad = {"data": [{"title": "Winter_in_(the)_north", "paragraphs": paragraphs}]}
    row = {"query": "The cat sat.", "passage": "It sat.", "label": "entailment"}
    row["structure"] = "(S (NP The cat ) (VP sat ) . )"
    for part in ("train", "dev"):
        with lzma.open(tmp_path / f"{part}-v1.1.json.xz", "wt") as file:
            json.dump(squad, file)
    for part in ("train", "test"):
        with lzma.open(tmp_path / f"mnli-{part}.jsonl.xz", "wt") as file:
            file.write(json.dumps(row) + "\n")
    return Namespace(data=tmp_path, device="cpu", steps=1, batch=1, dev=1, tokens=200)


def test_headings_paragraphs_and_sentences_are_nodes(args):
    task = KIND_TASKS["tree"](args)
    pair = next(task.pairs("dev", 0))
    assert pair.passage[pair.answers[0].start :].startswith("Lake Inari)")
    found = [(label, pair.passage[a:b]) for a, b, label in parsed(pair.structure, pair.passage)]
    assert ("heading", "Winter in (the) north") in found
    assert ("sentence", "A bridge burned.") in found
    assert ("paragraph", "Boats came from Oslo.") in found
    plain, tree = (task.score(task.model(kind)) for kind in ("plain", "tree:labels=paragraph"))
    # The second paragraph is one sentence, and of nodes over the same words one stays.
    assert (plain["nodes"], tree["nodes"]) == (0, 6) and plain["passage"] == tree["passage"]
    assert tree["macs"]["passage"] > plain["macs"]["passage"]
    assert plain["of"] == 1 and 0 <= tree["f1"] <= 100


def test_premises_are_read_with_their_parses(args):
    task = KIND_TASKS["parses"](args)
    model = task.model("tree")
    found = task.score(model)
    assert found["nodes"] == 2 and found["of"] == 1  # the cat, and the sentence
    assert len(task.examples(model, 0)) == 1


def test_two_hops_are_along_titles_and_nothing_else_tells_which(args):
    title, rival = "Winter in (the) north", "Lakes of Norway"
    with lzma.open(args.data / "dev-v1.1.json.xz", "rt") as file:
        squad = json.load(file)
    lake = {"text": "Lake Inari", "answer_start": 10}
    asked = {"id": "h", "question": f"Which lake froze in {title}?", "answers": [lake]}
    squad["data"][0]["paragraphs"][0]["qas"] = [asked]
    alike = {"id": "g", "question": "Where?", "answers": [{"text": "Lake Como", "answer_start": 0}]}
    other = {"context": "Lake Como never froze.", "qas": [alike]}
    squad["data"].append({"title": rival, "paragraphs": [other]})
    with lzma.open(args.data / "dev-v1.1.json.xz", "wt") as file:
        json.dump(squad, file)
    task = KIND_TASKS["hops"](args)
    args.dev, right = 8, set()
    for passages in task.questions("dev", 0):
        texts = {pair.title: titled(pair) for pair in passages}
        folder = passages[0].query.removeprefix("Which lake froze in the subject of ").title()[:-1]
        about = next(name for name in (title, rival) if name in texts[folder].text)
        assert texts.keys() > {title, rival, folder} and len(texts) == 4
        assert texts[title].text == "The lake (Lake Inari) froze. "
        assert texts[rival].text == "The lake (Lake Como) froze. "
        answers = [(pair.title, pair.passage[s.start :]) for pair in passages for s in pair.answers]
        assert answers == [(about, f"{answers[0][1].split(')')[0]}) froze. ")]
        names, links = list(texts), linked(list(texts.values()))
        assert links[names.index(folder), names.index(about)] and links.sum() == 4
        right.add(about)
    assert right == {title, rival}
    args.dev = 1
    assert task.score(task.model("hop")).keys() == {"alone", "together"}


def test_brackets_of_a_text_are_no_brackets_of_its_tree(args):
    assert worded("a (b)") == "a  -LRB- b -RRB- "
    pair = next(KIND_TASKS["long"](args).pairs("dev", 0))
    assert headed(pair).structure.count("(paragraph") == 2
