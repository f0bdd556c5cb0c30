"""Run the experiments on smaller models: `train_suite.py` with the runs of `shrink_presets.py`.

    python benchmarks/shrink_suite.py --preset squad --data DATA --base MINILM --out OUT --workers 7

Presets: `squad` and `pairs` (MNLI, MRPC) run every method alone on the joint model and on the one split at 3,
three seeds, one budget; `pruning` compares importance with weight and chance, untrained; `together` combines
split, projection, int8 and smaller layers. Options, cache, `--smoke`, `--only` and `--list` are those of the
suite. Feed OUT/results.jsonl to `shrink_speed.py`, which measures the same models on a CPU and draws a plot.
"""

from __future__ import annotations

import train_suite
from shrink_presets import PRESETS


def main() -> None:
    """The suite with these presets alone."""
    train_suite.PRESETS.clear()
    train_suite.PRESETS.update(PRESETS)
    train_suite.SCRIPT = "benchmarks/shrink_suite.py"
    train_suite.main()


if __name__ == "__main__":
    main()
