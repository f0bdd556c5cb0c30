"""What a model that always gives the most frequent label scores, on the test pairs of the suite's datasets.

python examples/experiments/majority.py --data DATA --json benchmarks/results/majority.json
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import decoupled as dc
from decoupled.lab.script import options, write_report
from decoupled.measure.pairs import Pair

SETS = ("mnli", "mrpc", "twitter", "boolq", "nli", "qqp", "paws", "scitail", "race", "squad2")


def main() -> None:
    """Count the labels."""
    args = options(__doc__, data=Path)
    datasets = json.loads(Path(__file__).with_name("presets.json").read_text())["datasets"]
    found = {}
    for name in SETS:
        files = [args.data / file for file in datasets[name]["test"]]
        given = chain.from_iterable(dc.read_pairs(file) for file in files)
        labels = Counter(LABELS.get(name, plain)(given))
        (label, count), pairs = labels.most_common(1)[0], labels.total()
        share = round(100 * count / pairs, 2)
        found[name] = {"label": label, "pairs": pairs, "accuracy": share}
    write_report(args, {"datasets": found})


def plain(pairs: Iterable[Pair]) -> Iterator[str]:
    """The label of each pair."""
    return (str(pair.label) for pair in pairs)


def silent(pairs: Iterable[Pair]) -> Iterator[str]:
    """Has a question an answer? Where none is given, F1 counts as accuracy does."""
    return ("answer" if pair.answers else "no answer" for pair in pairs)


def chosen(pairs: Iterable[Pair]) -> Iterator[str]:
    """Which of its options, which stand together, is right for each question."""
    for number, pair in enumerate(pairs):
        if pair.label == 1:
            yield "ABCD"[number % 4]


LABELS = {"race": chosen, "squad2": silent}


if __name__ == "__main__":
    main()
