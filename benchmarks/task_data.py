"""The datasets of the training suite as examples; `datasets` in presets.json names their files in DATA."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path

from decoupled.index.documents import Pair, read_pairs
from decoupled.model.model import Model
from decoupled.model.spec import TextSpec
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.augment import Bm25, with_hard_negatives
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.reshape import with_text

PRESETS = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
DATASETS = PRESETS["datasets"]
NEGATIVES = 7
"""Of each training question of a mined dataset; a group of the loss draws its own from them."""


@cache
def opened(base: Path, name: str, small: bool = False) -> tuple[Model, Task]:
    """The base encoder with the lengths that suit a dataset (or a smoke run), and the dataset's task."""
    short = {"query_tokens": 24, "passage_tokens": 64, "stride": 32}
    lengths = short if small else DATASETS[name]["lengths"]
    return with_text(Model.open(base), **lengths), TASKS[DATASETS[name]["task"]]


def prepared(
    name: str,
    part: str,
    *,
    data: Path,
    base: Path,
    kept: Path,
    limit: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Examples:
    """The examples of a dataset's part, from the cache where they are there; `limit` counts rows.

    Another tokenizer than the base's is for a model of another vocabulary; no file is kept for it.
    """
    own = opened(base, name, limit is not None)[0].tokenizer
    if tokenizer is not None and tokenizer.json != own.json:
        return made(name, part, data, limit, tokenizer.json, tokenizer.spec)
    path = kept / "examples" / f"{name}-{part}{f'-{limit}' if limit else ''}.npz"
    if not path.exists():
        made(name, part, data, limit, own.json, own.spec).save(path)
    return loaded(path)


@cache
def made(
    name: str, part: str, data: Path, limit: int | None, tokenizer: str, text: TextSpec
) -> Examples:
    """A dataset's part in the tokens of any tokenizer."""
    dataset, train = DATASETS[name], part == "train"
    pairs: Iterable[Pair] = pairs_of(data, dataset[part], limit)
    if dataset.get("mined"):
        listed = list(pairs)
        pairs = with_hard_negatives(listed, NEGATIVES) if train else candidates_of(listed)
    return tokenise(pairs, Tokenizer(tokenizer, text), TASKS[dataset["task"]], train=train)


@cache
def loaded(path: Path) -> Examples:
    """The examples of a file, read once by a process."""
    return Examples.load(path)


def pairs_of(data: Path, files: Iterable[str], limit: int | None) -> Iterator[Pair]:
    """The pairs of some files; sentences that WikiQA judges for a question are numbered by it."""
    pairs = islice(chain.from_iterable(read_pairs(data / name) for name in files), limit)
    wikiqa = any(name.startswith("wikiqa/") for name in files)
    return (replace(pair, group=pair.query) for pair in pairs) if wikiqa else pairs


def candidates_of(pairs: Sequence[Pair], *, depth: int = 100, count: int = 1000) -> list[Pair]:
    """`count` questions over all articles, each with its paragraph and the best others of BM25."""
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    index, found = Bm25(texts), []
    for pair in pairs[:: max(1, len(pairs) // count)][:count]:
        others = [texts[n] for n in index.best(pair.query, depth) if texts[n] != pair.passage]
        for number, text in enumerate([pair.passage, *others[: depth - 1]]):
            label = int(not number)
            found.append(replace(pair, passage=text, label=label, answers=(), group=pair.id))
    return found
