"""Examples to train hops on: the passages of a question side by side, with their links."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decoupled.errors import InputError
from decoupled.measure.pairs import Pair
from decoupled.methods.hop.links import linked
from decoupled.model.tokens import Passage
from decoupled.train.data.examples import Examples


def linked_groups(examples: Examples, pairs: Sequence[Pair]) -> Examples:
    """Examples with the passages of a question as one group, linked along titles where they have some."""
    sizes = np.bincount(examples.question)
    if (sizes != sizes[0]).any():
        wrong = int((sizes != sizes[0]).argmax())
        raise InputError(
            f"question {wrong} of the data has {sizes[wrong]} windows to read and question 0 has {sizes[0]}; "
            "hops are trained on as many for each: pairs of one `id`, short enough for one window"
        )
    order = np.argsort(examples.question, kind="stable")
    grouped = replace(examples.select(order), per_group=int(sizes[0]), share="query")
    titles = {pair.passage: pair.title for pair in pairs}
    if not any(titles.values()) or examples.truth is None:
        return grouped
    texts = [examples.truth.texts[n] for n in examples.truth.text_of[grouped.passage_of].tolist()]
    read = [Passage(id=text, text=text, title=titles[text]) for text in texts]
    groups = (read[n : n + sizes[0]] for n in range(0, len(read), sizes[0]))
    return replace(grouped, links=np.concatenate([linked(group) for group in groups]))
