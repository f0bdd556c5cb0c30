"""Experiments: the data of a preset, and the run of a whole experiment."""

from __future__ import annotations

import json
import lzma

from presets import DATASETS, pairs_of

from decoupled.measure.pairs import Span


def test_the_preset_of_a_part_of_squad2_reads_it_in_lower_case(tmp_path):
    answer = {"text": "River", "answer_start": 20}
    questions = [{"id": "q", "question": "Where is IT?", "answers": [answer]}]
    paragraph = {"context": "The Castle beside a River", "qas": questions}
    dataset = DATASETS["squad2"]
    for part in ("train", "test"):
        path = tmp_path / dataset[part][0]
        path.parent.mkdir(exist_ok=True)
        with lzma.open(path, "wt", encoding="utf-8") as file:
            json.dump({"data": [{"title": "", "paragraphs": [paragraph]}]}, file)
        (pair,) = pairs_of(tmp_path, dataset, part, None)
        assert (pair.query, pair.passage) == ("where is it?", "the castle beside a river")
        assert pair.answers == (Span(text="river", start=20),)
        (cased,) = pairs_of(tmp_path, {**dataset, "lower": False}, part, None)
        assert cased.passage == "The Castle beside a River"
