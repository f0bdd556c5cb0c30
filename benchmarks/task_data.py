"""The pairs of each dataset of a data folder: which files, and how their rows become pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path

from decoupled.index.documents import Pair, read_pairs
from decoupled.model.jsonable import to_json
from decoupled.model.model import Model
from decoupled.model.spec import TextSpec
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.examples import Examples
from decoupled.train.data.negatives import Bm25, with_hard_negatives
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS, Task
from decoupled.train.reshape import with_text


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Files of a dataset, its task, and the lengths that its texts are cut to."""

    task: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    lengths: dict[str, int] = field(default_factory=dict)
    mined: bool = False
    """Rank paragraphs: hard negatives to train on, BM25's candidates to test on."""


NEGATIVES = 7
"""Of each training question; a group of the loss draws its own from them."""


def _sentences(task: str, folder: str) -> Dataset:
    return Dataset(
        task=task,
        train=(f"{folder}/train.tsv.xz",),
        test=(f"{folder}/test.tsv.xz",),
        lengths={"query_tokens": 96, "passage_tokens": 160},
    )


DATASETS: dict[str, Dataset] = {
    "squad": Dataset(
        task="squad",
        train=("squad1/train-v1.1.json.xz",),
        test=("squad1/dev-v1.1.json.xz",),
        lengths={"query_tokens": 64, "passage_tokens": 320, "stride": 128},
    ),
    "squad-rank": Dataset(
        task="rank",
        train=("squad1/train-v1.1.json.xz",),
        test=("squad1/dev-v1.1.json.xz",),
        lengths={"query_tokens": 64, "passage_tokens": 320},
        mined=True,
    ),
    "squad2": Dataset(
        task="squad2",
        train=("squad2/train-v2.0-partial.json.xz",),
        test=("squad2/dev-v2.0.json.xz",),
        lengths={"query_tokens": 64, "passage_tokens": 320, "stride": 128},
    ),
    "race": Dataset(
        task="race",
        train=("race/train_middle.jsonl.xz", "race/train_high.jsonl.xz"),
        test=("race/test_middle.jsonl.xz", "race/test_high.jsonl.xz"),
        lengths={"query_tokens": 64, "passage_tokens": 448},
    ),
    "boolq": Dataset(
        task="boolq",
        train=("boolq/train_partial.jsonl.xz",),
        test=("boolq/dev.jsonl.xz",),
        lengths={"query_tokens": 32, "passage_tokens": 320},
    ),
    "mnli": _sentences("mnli", "mnli_subset"),
    "snli": _sentences("snli", "snli_subset"),
    "scitail": _sentences("scitail", "scitail_subset"),
    "qqp": _sentences("qqp", "qqp_subset"),
    "mrpc": _sentences("mrpc", "mrpc"),
    "twitter": _sentences("twitter", "twitter_url"),
    "paws": _sentences("paws", "paws_subset"),
    "wikiqa": Dataset(
        task="rank",
        train=("wikiqa/train.tsv.xz",),
        test=("wikiqa/test.tsv.xz",),
        lengths={"query_tokens": 64, "passage_tokens": 160},
    ),
}


def wikiqa_pairs(path: Path) -> Iterator[Pair]:
    """Sentences judged for a question, numbered by it."""
    return (replace(pair, group=pair.query) for pair in read_pairs(path))


def pairs_of(data: Path, files: Iterable[str], limit: int | None) -> Iterator[Pair]:
    """The pairs of some files; `limit` counts rows before they are grouped."""
    readers = {"wikiqa": wikiqa_pairs}
    found = (readers.get(name.split("/")[0], read_pairs)(data / name) for name in files)
    return islice(chain.from_iterable(found), limit)


def candidates_of(pairs: Sequence[Pair], *, depth: int = 100, count: int = 1000) -> list[Pair]:
    """`count` questions over all articles, each with its paragraph and the best others of BM25."""
    texts = list(dict.fromkeys(pair.passage for pair in pairs))
    index = Bm25(texts)
    made = []
    for pair in pairs[:: max(1, len(pairs) // count)][:count]:
        others = [texts[n] for n in index.best(pair.query, depth) if texts[n] != pair.passage]
        for number, text in enumerate([pair.passage, *others[: depth - 1]]):
            made.append(
                replace(pair, passage=text, label=int(not number), answers=(), group=pair.id)
            )
    return made


@cache
def opened(base: Path, name: str, small: bool = False) -> tuple[Model, Task]:
    """The base encoder with the lengths that suit a dataset (or a smoke run), and the dataset's task."""
    dataset = DATASETS[name]
    lengths = {"query_tokens": 24, "passage_tokens": 64, "stride": 32} if small else dataset.lengths
    return with_text(Model.open(base), **lengths), TASKS[dataset.task]


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
    """The tokenised examples of a dataset's part, from the cache where they are there.

    Another tokenizer than the base's is for a model of another vocabulary; no file is kept for it.
    """
    dataset = DATASETS[name]
    if tokenizer is not None:
        model, _ = opened(base, name, limit is not None)
        if tokenizer.json != model.tokenizer.json:
            return reread(name, part, data, limit, tokenizer.json, tokenizer.spec)
    suffix = f"-{limit}" if limit else ""
    path = kept / "examples" / f"{name}-{part}{suffix}.npz"
    if not path.exists():
        model, task = opened(base, name, limit is not None)
        files = dataset.train if part == "train" else dataset.test
        found: Iterable[Pair] = pairs_of(data, files, limit)
        if dataset.mined:
            listed = list(found)
            train = part == "train"
            found = with_hard_negatives(listed, NEGATIVES) if train else candidates_of(listed)
        tokenise(found, model.tokenizer, task, train=part == "train").save(path)
        lengths = json.dumps(to_json(model.spec.text))
        path.with_suffix(".json").write_text(lengths, encoding="utf-8")
    return loaded(path)


@cache
def reread(
    name: str, part: str, data: Path, limit: int | None, json: str, text: TextSpec
) -> Examples:
    """A dataset's part in the tokens of any tokenizer."""
    dataset, train = DATASETS[name], part == "train"
    found = pairs_of(data, dataset.train if train else dataset.test, limit)
    return tokenise(found, Tokenizer(json, text), TASKS[dataset.task], train=train)


@cache
def loaded(path: Path) -> Examples:
    """The examples of a file, read once by a process."""
    return Examples.load(path)
