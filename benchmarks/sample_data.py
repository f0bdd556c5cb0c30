"""Write the bundled sample passages from the SQuAD 1.1 development set (CC BY-SA 4.0, see its NOTICE).

    python benchmarks/sample_data.py dev-v1.1.json src/decoupled/assets/sample

Development passages are used because no model of this project is trained on them. The bundled questions were
chosen before there was a model to answer them; their answers are those of the set that are right.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from decoupled import read_pairs, read_passages
from decoupled.search.starter import sample_questions

WRONG = {"three"}
"""Answers of the set that are not true: a Mercury capsule held one."""


def lines(rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    squad, output = sys.argv[1], Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    passages = [{"id": p.id, "title": p.title, "text": p.text} for p in read_passages(squad)]
    zipped = gzip.compress(lines(passages).encode(), mtime=0)
    (output / "passages.jsonl.gz").write_bytes(zipped)
    answers = {pair.query: [answer.text for answer in pair.answers] for pair in read_pairs(squad)}
    asked = [
        {
            "question": q.question,
            "answers": [a for a in dict.fromkeys(answers[q.question]) if a not in WRONG],
        }
        for q in sample_questions()
    ]
    (output / "questions.jsonl").write_text(lines(asked), encoding="utf-8")
    print(f"{len(passages)} passages, {len(zipped)} bytes")
