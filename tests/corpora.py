"""What the tests of the corpus readers share: a small corpus, and both ways to meet a problem."""

import json

import pytest

from decoupled.errors import InputError
from decoupled.index.documents import read_passages
from decoupled.model.tokens import Passage

ROWS = [{"id": "a", "text": "Alpha."}, {"id": "b", "text": "Βeta — ≤ 3."}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
PASSAGES = [Passage(**row) for row in ROWS]
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Super_Bowl",
            "paragraphs": [
                {"context": "One.", "qas": [{"id": "q1", "question": "Which?", "answers": []}]},
                {"context": "Two.", "qas": [{"id": "q2", "question": "What?"}]},
                {"context": "One.", "qas": []},
                {"context": "Three."},
            ],
        }
    ],
}


def put(folder, name, content):
    """Write a file, and the folders above it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def both_ways(path, message, read=read_passages):
    """This message stops a strict reader; a lenient one reports it and goes on."""
    with pytest.raises(InputError) as error:
        list(read(path))
    assert message in str(error.value)
    assert "--on-error skip" in str(error.value)
    problems = []
    found = list(read(path, on_error="skip", report=problems.append))
    assert message in str(problems[0])
    return [item.id for item in found], problems
