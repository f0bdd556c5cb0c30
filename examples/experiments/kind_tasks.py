"""The tasks of `kinds.py`: SQuAD and MNLI, as kinds for long, linked and structured texts need them."""

import json
import lzma
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import decoupled as dc
from decoupled.errors import InputError
from decoupled.measure.counts import work
from decoupled.measure.metrics import best_over
from decoupled.measure.pairs import Pair, Span, read_pairs
from decoupled.methods.hop.examples import linked_groups
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.tree.text import parsed
from decoupled.model.folder import starter_model
from decoupled.model.model import Model
from decoupled.model.sentences import sentences
from decoupled.model.tokens import Passage, Tokenizer, Window
from decoupled.runtime.torch import TorchRuntime
from decoupled.search.request import Request
from decoupled.train.data.examples import Examples
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.evaluate import How, judge
from decoupled.train.run import with_head

WINDOW = 64
Article = list[dict[str, Any]]
Found = dict[str, Any]


@cache
def articles(data: Path, part: str) -> list[Article]:
    """The articles of SQuAD, each as its paragraphs."""
    with lzma.open(data / f"{part}-v1.1.json.xz") as file:
        data = json.load(file)["data"]
    return [[{**p, "title": a["title"].replace("_", " ")} for p in a["paragraphs"]] for a in data]


@cache
def lengths(data: Path, part: str) -> list[list[int]]:
    """Tokens of the paragraphs of each article."""
    tokenizer = Model.load(starter_model()).tokenizer
    return [tokenizer.lengths([p["context"] for p in a]) for a in articles(data, part)]


def asked(qa: Found, passage: str, shift: int = 0) -> Pair:
    """A question of SQuAD about a passage, in which its answers lie so many characters further."""
    spans = tuple(Span(text=x["text"], start=x["answer_start"] + shift) for x in qa["answers"])
    return Pair(query=qa["question"], passage=passage, answers=spans, id=qa["id"], group=qa["id"])


class Windows:
    """Paragraphs in short windows."""

    task = TASKS["squad2"]

    def __init__(self, args: Any) -> None:
        self.args, self.start = args, Model.load(starter_model())

    def model(self, kind: str) -> Model:
        """The bundled one, with windows of that kind."""
        start, room = self.start, WINDOW - 1
        if kind == "whole":
            return start
        if kind in ("plain", "overlap"):
            stride = room // 2 if kind == "overlap" else room
            return Model.split(start, at=start.spec.split, passage_tokens=WINDOW, stride=stride)
        return changed(start, f"{kind},tokens={WINDOW}")

    def examples(self, model: Model, seed: int) -> Examples:
        """Every window of the paragraphs of some questions; those without the answer have none."""
        return tokenise(self.pairs("train", seed), model.tokenizer, self.task, train=False)

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """Questions in random order."""
        rows = [(p, qa) for a in articles(self.args.data, part) for p in a for qa in p["qas"]]
        random.Random(seed).shuffle(rows)
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch
        yield from (asked(qa, paragraph["context"]) for paragraph, qa in rows[:count])

    def score(self, model: Model) -> Found:
        """F1 of all, and of answers whose sentence begins in the window before theirs."""
        pairs = list(self.pairs("dev", 0))
        f1 = scores(model, [[pair] for pair in pairs])[:, 1]
        short = replace(self.start.spec.text, passage_tokens=WINDOW, stride=WINDOW - 1)
        windows = Tokenizer(model.tokenizer.json, short).windows([pair.passage for pair in pairs])
        apart = np.array(list(map(straddles, pairs, windows)))
        return {"f1": f1.mean(), "f1_before": f1[apart].mean(), "of": [len(f1), int(apart.sum())]}


def straddles(pair: Pair, windows: Sequence[Window]) -> bool:
    """Does the sentence of the answer begin in a window before that of the answer?"""
    start, at = pair.answers[0].start, 0
    for sentence in sentences(pair.passage):
        if at + len(sentence) > start:
            break
        at += len(sentence)
    return any(at < w.start <= start for w in windows)


class Long(Windows):
    """Neighbouring paragraphs in one passage."""

    def model(self, kind: str) -> Model:
        """The bundled one with longer windows."""
        longer = changed(self.start, f"lengthen:tokens={self.args.tokens}")
        return longer if kind == "plain" else changed(longer, kind)

    def examples(self, model: Model, seed: int) -> Examples:
        """One passage a question."""
        return tokenise(self.pairs("train", seed), model.tokenizer, self.task, train=True)

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """The paragraph of a question, and what fits of those around it."""
        draw, room = random.Random(seed), self.args.tokens - 16
        every = articles(self.args.data, part)
        rows = [(m, n, qa) for m, a in enumerate(every) for n, p in enumerate(a) for qa in p["qas"]]
        draw.shuffle(rows)
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch
        for m, n, qa in rows[:count]:
            article, size = every[m], lengths(self.args.data, part)[m]
            first = last = n
            total = size[n]
            while sides := [
                s for s in (first - 1, last + 1) if 0 <= s < len(article) and total + size[s] < room
            ]:
                side = draw.choice(sides)
                total += size[side] + 1
                first, last = min(first, side), max(last, side)
            texts = [p["context"] for p in article[first : last + 1]]
            shift = sum(len(text) + 1 for text in texts[: n - first])
            yield replace(asked(qa, "\n".join(texts), shift), title=article[n]["title"])

    def score(self, model: Model) -> Found:
        """Of all answers."""
        return mean(scores(model, [[pair] for pair in self.pairs("dev", 0)]))


class Trees(Long):
    """Paragraphs under the title of their article."""

    task = TASKS["squad"]

    def model(self, kind: str) -> Model:
        """The bundled one, with nodes or without."""
        made = self.start if kind == "plain" else changed(self.start, kind)
        return with_head(made, self.task)

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """With the title before them, and the tree of all that."""
        return map(headed, super().pairs(part, seed))

    def score(self, model: Model) -> Found:
        """Of all answers or labels, with the rows and the arithmetic of a passage."""
        test = tokenise(self.pairs("dev", 0), model.tokenizer, self.task, train=False)
        how = How(precision="bf16" if self.args.device == "cuda" else "fp32")
        rows, tree = test.passages.values, model.spec.text.structure
        nodes = int((rows >= tree.first).sum()) if tree else 0
        size = {"passage": len(rows) - nodes, "nodes": nodes}
        size = {name: round(count / len(test.passages)) for name, count in size.items()}
        macs = work(model.spec, query=16, **size, heads=[self.task.head])
        found = judge(model.net, test, self.task, how).metrics
        return {**found, "of": len(set(test.question)), **size, "macs": asdict(macs)}


def headed(pair: Pair) -> Pair:
    """A passage after its title, both with the tree of headings, paragraphs and sentences."""
    shift = len(pair.title) + 1
    parts = [f"(heading {worded(pair.title)})"]
    for text in filter(str.strip, pair.passage.split("\n")):
        inside = (f"(sentence {worded(one)})" for one in sentences(text) if one.strip())
        parts.append(f"(paragraph {' '.join(inside)})")
    return replace(
        pair,
        passage=f"{pair.title}\n{pair.passage}",
        answers=tuple(replace(span, start=span.start + shift) for span in pair.answers),
        structure=f"(passage {' '.join(parts)})",
    )


class Parses(Trees):
    """Premises with the phrases that a parser found."""

    task = TASKS["mnli"]

    def pairs(self, part: str, seed: int) -> Iterator[Pair]:
        """In random order."""
        name, count = "train", self.args.steps * self.args.batch
        if part == "dev":
            name, count = "test", self.args.dev
        rows = list(read_pairs(self.args.data / f"mnli-{name}.jsonl.xz"))
        random.Random(seed).shuffle(rows)
        return iter(rows[:count])


def tagged(args: Any) -> None:
    """Rows of MNLI with the phrases of their premises, where words and text agree."""
    for part in ("train", "test"):
        with lzma.open(args.out / f"mnli-{part}.jsonl.xz", "wt", encoding="utf-8") as file:
            for pair in read_pairs(args.data / f"{part}.tsv.xz"):
                row = {"query": pair.query, "passage": pair.passage, "label": pair.label}
                tree = phrases(pair.query)
                try:
                    parsed(tree, pair.query)
                except InputError:
                    tree = ""
                file.write(json.dumps({**row, "structure": tree}) + "\n")


def phrases(text: str) -> str:
    """A shallow parse: the chunks of each sentence, and those that a preposition begins."""
    from textblob.en import parse

    shown: list[str] = []
    for sentence in parse(text).split():
        shown.append("(S")
        inside: list[str] = []
        for word, _, chunk, longer in sentence:
            wanted = [x for x in (longer, chunk) if x != "O"]
            same = 0
            while same < min(len(wanted), len(inside)) and wanted[same] == f"I-{inside[same]}":
                same += 1
            shown += [")"] * (len(inside) - same)
            inside = [x[2:] for x in wanted]
            shown += [f"({name.replace('PNP', 'PP')}" for name in inside[same:]]
            shown.append(worded(word))
        shown += [")"] * (len(inside) + 1)
    return " ".join(shown)


def worded(text: str) -> str:
    """Words for a bracketed tree, which has brackets of its own."""
    return text.replace("(", " -LRB- ").replace(")", " -RRB- ")


def sentence_of(text: str, answer: Found) -> str:
    """The sentences that an answer lies in."""
    start, end, at, found = (
        answer["answer_start"],
        answer["answer_start"] + len(answer["text"]),
        0,
        "",
    )
    for sentence in sentences(text):
        if at < end and at + len(sentence) > start:
            found += sentence
        at += len(sentence)
    return found


def swapped(text: str, name: str, other: str) -> str:
    """One name for another, however it is written."""
    return re.sub(re.escape(name), lambda _: other, text, flags=re.I)


def shape(answer: str) -> str:
    """How an answer looks: figures, capitals and the number of words."""
    words = answer.split()[:4]
    return " ".join("0" if re.search(r"\d", w) else "A" if w[0].isupper() else "a" for w in words)


class Hops(Windows):
    """Questions that need two passages."""

    def model(self, kind: str) -> Model:
        """The bundled one, with hops or without; answers are chosen by spans, which are what is trained."""
        start = self.start.rebuild(replace(self.start.spec, scoring=None), {})
        return start if kind == "plain" else changed(start, kind)

    def examples(self, model: Model, seed: int) -> Examples:
        """Four passages a question, read together where the model has hops."""
        pairs = [pair for question in self.questions("train", seed) for pair in question]
        found = tokenise(pairs, model.tokenizer, self.task, train=True)
        hops = any(block.part.kind == "hop" for block in model.spec.encoder.blocks)
        return linked_groups(found, pairs) if hops else found

    def questions(self, part: str, seed: int) -> list[list[Pair]]:
        """For each the passages to read, titles in front of them as an index shows them."""
        draw, rows, alike = random.Random(seed), [], defaultdict[str, list[str]](list)
        every = [p for a in articles(self.args.data, part) for p in a]
        for p in every:
            for qa in p["qas"]:
                answer = qa["answers"][0]["text"]
                alike[shape(answer)].append(answer)
                if re.search(re.escape(p["title"]), qa["question"], re.I):
                    rows.append((p, qa))
        titles = sorted({p["title"] for p in every})
        count = self.args.dev if part == "dev" else self.args.steps * self.args.batch // 4
        made: list[list[Pair]] = []
        while len(made) < count:
            draw.shuffle(rows)
            for p, qa in rows[: count - len(made)]:
                answer = qa["answers"][0]["text"]
                other, title = draw.choice(alike[shape(answer)]), draw.choice(titles)
                if answer not in other and other not in answer and title != p["title"]:
                    question = self._passages(draw, p, qa, title, other)
                    made.append([replace(pair, id=f"{len(made)}") for pair in question])
        return made

    def _passages(
        self, draw: random.Random, p: Found, qa: Found, title: str, other: str
    ) -> list[Pair]:
        """The sentence of an answer, the same with other subject and answer, and two that tell which."""
        answer, folders = qa["answers"][0]["text"], draw.sample(range(10, 99), 2)
        own = dict(
            zip((p["title"], title), zip(folders, (answer, other), strict=True), strict=True)
        )
        asked_of = draw.choice(list(own))
        query = swapped(qa["question"], p["title"], f"the subject of folder {own[asked_of][0]}")
        found = []
        for name, (folder, said) in own.items():
            gap = sentence_of(p["context"], qa["answers"][0]).replace(answer, "\0")
            body = f"{name}. {swapped(gap, p['title'], name)}"
            right = (Span(text=said, start=body.index("\0")),) if name == asked_of else ()
            body = body.replace("\0", said)
            found.append(Pair(query=query, passage=body, title=name, answers=right))
            notes = f"Folder {folder}. Folder {folder} holds notes about {name}."
            found.append(Pair(query=query, passage=notes, title=f"Folder {folder}"))
        return draw.sample(found, len(found))

    def score(self, model: Model) -> Found:
        """Answers over the four passages, read alone and together."""
        made = self.questions("dev", 0)
        hops = any(block.part.kind == "hop" for block in model.spec.encoder.blocks)
        found = {"alone": mean(scores(model, made, read=titled))}
        if hops:
            found["together"] = mean(scores(model, made, read=titled, hops=2))
        return found


def titled(pair: Pair) -> Passage:
    """A passage whose title is known, so that what mentions it is linked to it."""
    text = pair.passage.removeprefix(f"{pair.title}. ")
    return Passage(id=pair.title, title=pair.title, text=text)


def alone(pair: Pair) -> str:
    """The text of a passage."""
    return pair.passage


def scores(
    model: Model,
    questions: list[list[Pair]],
    read: Callable[[Pair], str | Passage] = alone,
    **how: Any,
) -> npt.NDArray[np.float64]:
    """Exact match and F1 of each question, as `ask` answers it from its passages."""
    engine, rows = dc.Engine(TorchRuntime(model), remember=1 << 28), []
    for start in range(0, len(questions), 64):
        some = questions[start : start + 64]
        requests = [
            Request(
                query=q[0].query,
                head="span",
                k=1,
                texts=tuple(map(read, q)),
                threshold=0.0,
                **how,
            )
            for q in some
        ]
        for pairs, found in zip(some, engine.run(requests), strict=True):
            assert not isinstance(found, Exception), found
            gold = [answer.text for pair in pairs for answer in pair.answers]
            rows.append(best_over(gold, found[0].text if len(found) else ""))
    return 100 * np.array(rows)


def mean(rows: npt.NDArray[np.float64]) -> Found:
    """Over all questions."""
    exact, f1 = rows.mean(0)
    return {"f1": f1, "exact": exact, "of": len(rows)}


def changed(model: Model, methods: str) -> Model:
    """The model under methods of `shrink`, one after the other."""
    for method in methods.split("+"):
        model = apply(model, parse(method))
    return model


KIND_TASKS = {"windows": Windows, "long": Long, "hops": Hops, "tree": Trees, "parses": Parses}
