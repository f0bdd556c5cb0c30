"""The lines of docs/rag.md, with a client that is no model: what it cites leads back to the document."""

from __future__ import annotations

import re
from pathlib import Path

import decoupled as dc
from served import tiny_split

PAGE = Path(__file__).parents[2] / "docs" / "rag.md"
QUESTION = (
    "the novel that Bram Stoker wrote, and when it came out; the moon"  # a word of each passage
)
BOOK = "Dracula is a novel. Bram Stoker wrote it. It came out in 1897."


def test_the_answer_cites_ids_and_characters(model, tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    split = tiny_split(model)
    with dc.Index.create(tmp_path / "docs.idx", split, codec="fp32") as index:
        for n, (start, end) in enumerate([(0, 19), (20, 41), (42, 62)]):
            meta = {"document": "book.html", "start": start, "end": end}
            index.add(
                [dc.Passage(id=f"book.html#/{n}", text=BOOK[start:end], title="Dracula", meta=meta)]
            )
        index.add([dc.Passage(id="mine", text="the moon is a small world")])
    names: dict = {}
    exec(
        code.replace('"docs.idx"', repr(str(tmp_path / "docs.idx"))).replace("> 0.1", "> 0"), names
    )
    prompts = []

    def stub(prompt):
        prompts.append(prompt)
        return "Bram Stoker [1], perhaps [3]. Not [9]."

    found = names["answer"](QUESTION, stub)
    (prompt,) = prompts
    assert (
        prompt.endswith(f"Question: {QUESTION}\nAnswer:") and "[1] " in prompt and "[4] " in prompt
    )
    assert len(found["sources"]) == 2
    for n, (ident, document, characters) in zip((1, 3), found["sources"], strict=True):
        shown = re.search(rf"\[{n}\] .*\n(.*)", prompt)[1]
        if ident == "mine":
            assert document == "mine" and characters is None
        else:
            assert document == "book.html" and BOOK[slice(*characters)] == shown


def test_without_a_source_the_model_is_not_asked(model, tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    with dc.Index.create(tmp_path / "docs.idx", tiny_split(model)) as index:
        index.add([dc.Passage(id="a", text="a town")])
    names: dict = {}
    exec(
        code.replace('"docs.idx"', repr(str(tmp_path / "docs.idx"))).replace("> 0.1", "> 2"), names
    )
    assert names["answer"]("who", None) == {"text": "No source says.", "sources": []}
