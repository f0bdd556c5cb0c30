"""What a model that always gives the most frequent label scores, on the test pairs of the suite's datasets.

python benchmarks/majority.py --data DATA --json benchmarks/results/majority.json
"""

import json
from collections import Counter
from pathlib import Path

import decoupled as dc
from bench_report import options, write_report

SETS = ("mnli", "mrpc", "twitter", "boolq")


def main() -> None:
    """Count the labels."""
    args = options(__doc__, data=Path)
    datasets = json.loads(Path(__file__).with_name("presets.json").read_text())["datasets"]
    found = {}
    for name in SETS:
        files = [args.data / file for file in datasets[name]["test"]]
        labels = Counter(str(pair.label) for pair in dc.read_pairs(*files))
        (label, count), pairs = labels.most_common(1)[0], labels.total()
        share = round(100 * count / pairs, 2)
        found[name] = {"label": label, "pairs": pairs, "accuracy": share}
    write_report(args, {"datasets": found})


if __name__ == "__main__":
    main()
