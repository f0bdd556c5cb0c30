"""Write the bundled sample passages from the SQuAD 1.1 development set (CC BY-SA 4.0).

    python benchmarks/sample_data.py dev-v1.1.json src/decoupled/assets/sample

Development passages are used because no model of this project is trained on them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from decoupled import read_pairs, read_passages

QUESTIONS = (
    "What river runs through Warsaw?",
    "Who chartered the British East India Company?",
    "When was the Muslim Brotherhood founded?",
    "What petroleum company was a Super Bowl sponsor?",
    "How many people could the Mercury capsule hold?",
    "What is the most successful team sport in Kenya?",
    "What is the term for a hyperactive immune system that attacks normal tissues?",
    "When did a plague-ridden ship land in Norway?",
    "Who was announced as the LEM contractor in November 1962?",
    "What does chlorophyll absorb?",
)
"""Chosen before there was a model to answer them."""

NOTICE = """\
The passages are paragraphs of Wikipedia articles from the development set of SQuAD 1.1
(Rajpurkar et al., 2016), https://rajpurkar.github.io/SQuAD-explorer/, under the Creative Commons
Attribution-ShareAlike 4.0 licence, https://creativecommons.org/licenses/by-sa/4.0/. Each passage
names its article in "title". The text is unchanged. questions.jsonl holds questions and answers
of the same set, under the same licence.
"""


def main() -> None:
    """Read the set, write passages and notice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("squad")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows = [
        json.dumps({"id": p.id, "title": p.title, "text": p.text}, ensure_ascii=False)
        for p in read_passages(args.squad)
    ]
    path = args.output / "passages.jsonl.gz"
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode(), mtime=0))
    answers = {
        pair.query: list(dict.fromkeys(answer.text for answer in pair.answers))
        for pair in read_pairs(args.squad)
        if pair.query in QUESTIONS
    }
    asked = [
        json.dumps({"question": q, "answers": answers[q]}, ensure_ascii=False) for q in QUESTIONS
    ]
    (args.output / "questions.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
    (args.output / "NOTICE").write_text(NOTICE, encoding="utf-8")
    print(f"{len(rows)} passages, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
