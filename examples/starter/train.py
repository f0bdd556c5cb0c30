r"""Train the starter model: a joint teacher that ranks and reads, then its split, compressed student.

    python examples/starter/train.py --base MINILM --data DATA --out OUT --minutes 20
    python examples/starter/train.py reader MODEL -o OUT --data PAIRS [--help for more]

DATA holds `squad1/train-v1.1.json`, `squad2/train-v2.0-partial.json` and `rank/NAME.jsonl`, compressed or
not. The first command writes the model to OUT/starter, and F1 on `squad1/dev-v1.1.json` to OUT/starter.json.
It goes on after a stop. `--start` trains a student further. `--teacher` names its teachers: the first says
how passages rank, and all that have a span head say where answers are. `--retriever` is the sentence encoder
that finds hard negatives and teaches the vector; by default it is the base. `--limit` pairs of each dataset
are enough to try it out. The second trains such a model from any other, on any datasets.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import reader_command
from mixture import Dataset
from reader import train_reader
from reader_recipe import reader_recipe
from sets import found

from decoupled import Model, evaluate, read_pairs
from decoupled.lab.bench.report import commit
from decoupled.lab.script import options
from decoupled.measure.pairs import Pair, Span
from decoupled.train.data.synthetic import sentences_of

RANKED = {"medquad": 4.0, "policyqa": 1.0, "conditionalqa": 4.0, "nq": 4.0, "acl": 2.0, "tldr": 1.0}
"""Weight of each file of queries and passages; their licences allow teaching weights that are shipped."""
DEFAULTS = {"minutes": 20.0, "at": 3, "projection": 96, "vector": 256, "vector_layers": 0}
DEFAULTS |= {"late": 48, "seed": 0}
SIZES = {"batch": "optimiser.batch", "lr": "optimiser.lr"}
SIZES |= {"read": "sampling.read", "rounds": "sampling.rounds"}


def main() -> None:
    """Teacher, student, vector; weights and F1. Or a reader of other data."""
    if sys.argv[1:2] == ["reader"]:
        reader_command.run(sys.argv[2:])
    own = {"base": Path, "data": Path, "out": Path, "start": Path, "teacher": [Path], "limit": int}
    own["retriever"] = Path
    args = options(__doc__, **own, batch=int, read=int, rounds=int, lr=float, bits=4, **DEFAULTS)
    started = time.perf_counter()
    base = Model.open(args.base)
    told = {name: getattr(args, name) for name in DEFAULTS if name != "seed"}
    if args.start:
        told = {"minutes": args.minutes}
    fields = {path: value for name, path in SIZES.items() if (value := getattr(args, name))}
    projection = {"projection.phases": 1, "projection.bits": args.bits}
    teachers = [Model.open(path) for path in args.teacher or ()]
    readers = [one for one in teachers if any(head.kind == "span" for head in one.spec.heads)]
    start = Model.open(args.start) if args.start else base
    student = train_reader(
        start,
        data=list(datasets(args.data, args.limit)),
        teacher={"rank": teachers[:1], "span": readers} if teachers else None,
        retriever=Model.open(args.retriever) if args.retriever else base,
        recipe=reader_recipe({"seed": args.seed, **projection, **fields}),
        out=args.out / "starter",
        progress=lambda line: print(json.dumps(line), flush=True),
        **told,
    )
    plain = {k: v for k, v in vars(args).items() if isinstance(v, int | float)}
    named = {k: v.name for k in ("base", "start", "retriever") if (v := getattr(args, k))}
    arguments = {**plain, **named}
    trained = {"did": "train", "by": "examples/starter/train.py", **arguments}
    trained["teacher"] = [path.name for path in args.teacher or ()]
    history = [*start.history, trained]
    Model(student.net, student.tokenizer, history).save(args.out / "starter", compact=True)
    judged = read_pairs(found(args.data, "squad1/dev-v1.1.json"))
    scores = evaluate(student, data=judged, task="squad", limit=args.limit, bits=args.bits)
    figures = {"arguments": arguments, "commit": commit(), "squad": scores}
    figures["seconds"] = round(time.perf_counter() - started, 1)
    (args.out / "starter.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")


def datasets(data: Path, limit: int | None) -> Iterator[Dataset]:
    """SQuAD with questions that have no answer, its sentences as passages, and queries of other fields."""
    squad = Dataset.read(found(data, "squad1/train-v1.1.json"), limit=limit)
    silent = Dataset.read(found(data, "squad2/train-v2.0-partial.json"), limit=limit)
    # Those of the partial set are lower-cased; the tokenizer does not tell cases apart.
    unanswered = [pair for pair in silent.pairs if not pair.answers]
    yield replace(squad, pairs=[*squad.pairs, *unanswered])
    alone = [alone for pair in squad.pairs[::2] if (alone := sentence(pair)) is not None]
    yield Dataset(name="sentences", pairs=alone, weight=0.5)
    for name, weight in RANKED.items():
        yield replace(Dataset.read(found(data, f"rank/{name}.jsonl"), limit=limit), weight=weight)


def sentence(pair: Pair) -> Pair | None:
    """The question over the sentence that answers it, where its passage has others."""
    start, answer = 0, pair.answers[0]
    parts = sentences_of(pair.passage)
    for part in parts if len(parts) > 1 else ():
        start = pair.passage.index(part, start)
        if start <= answer.start and answer.start + len(answer.text) <= start + len(part):
            span = Span(text=answer.text, start=answer.start - start)
            return replace(pair, passage=part, answers=(span,))
    return None


if __name__ == "__main__":
    main()
