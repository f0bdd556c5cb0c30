"""Every method, and every ordered pair of them: it builds, loads strictly and runs, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from decoupled.errors import InputError, SpecError
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.model.annex import SHRINKING as METHODS
from decoupled.model.model import Model
from decoupled.train.data.prepare import Prepared, prepare
from decoupled.train.evaluate import evaluate_examples
from toy import named_pairs

VARIANTS = {
    "share": ("share:mode=ffn", "share:start=average", "share:start=aligned", "share:start=best"),
    "untie": ("untie",),
    "factorise-embedding": ("factorise-embedding:rank=8",),
    "band-embedding": ("band-embedding:factor=2",),
    "reduce-vocabulary": ("reduce-vocabulary",),
    "prune-heads": ("prune-heads:share=0.5", "prune-heads:by=weight,steps=2"),
    "prune-neurons": ("prune-neurons", "prune-neurons:by=weight,multiple=4"),
    "prune-weights": ("prune-weights", "prune-weights:block=4"),
    "fix-heads": ("fix-heads:assign=order", "fix-heads:learned=0", "fix-heads:part=above"),
    "layerdrop": ("layerdrop",),
    "keep-layers": (
        "keep-layers:every=2",
        "keep-layers:count=2",
        "keep-layers:count=2,by=learned,steps=3",
    ),
    "theseus": ("theseus:layers=2",),
    "student": ("student:layers=2", "student:width=16,ffn=24"),
    "low-rank": ("low-rank:rank=8", "low-rank:maps=ffn,whiten=true"),
    "quantise": (
        "quantise",
        "quantise:bits=4,inputs=float,group=16",
        "quantise:inputs=static,embedding=false",
    ),
    "chunk-ffn": ("chunk-ffn:tokens=3",),
    "checkpoint-gradients": ("checkpoint-gradients",),
    "complex-embedding": ("complex-embedding", "complex-embedding:share=none"),
    "define": ("define:rank=8,steps=2", "define:rank=8,steps=2,unit=dextra"),
    "delight": ("delight:least=2,most=3,expand=1",),
    "lsra": ("lsra:sizes=3/5", "lsra:sizes=3,dynamic=false,gated=false"),
    "reversible": ("reversible",),
    "hop": ("hop:heads=4",),
    "lengthen": ("lengthen:tokens=600",),
    "compressive": ("compressive:tokens=12", "compressive:compress=conv,rate=2"),
    "tree": ("tree",),
    "lsh": ("lsh:chunk=2", "lsh:part=above,rounds=1"),
}
CLEAR = (
    "quantise last",
    "apply one of the two methods",
    "apply student first",
    "differ in the shape of their",
    "choose a smaller number that divides it",
    "cuts one in two",
    "replaces heads of ordinary attention",
    "could be taken out",
    "starts from plain layers",
    "replaces a learned position table",
    "has fixed attention",
    "replaces ordinary attention",
    "already; choose more",
    "no cross layer before the last",
    "hop heads do not divide",
    "already; leave the method out",
    "needs whole matrices",
    "choose 1..",
    "choose fewer",
    "choose other numbers",
    "leaves nothing above the split",
    "gives a memory to ordinary attention",
    "those of a tree",
    "plain token table",
    "trees already",
)
"""What may be said when two methods do not go together; anything else is a failure."""


PARTS = 3


def test_every_method_has_variants():
    assert set(VARIANTS) == set(METHODS)


@pytest.fixture(scope="module")
def start(model: Callable[..., Model]) -> Model:
    return Model.split(model("bert", "classes", num_hidden_layers=4), at=2)


@pytest.fixture(scope="module")
def sample(start: Model) -> Prepared:
    return prepare(named_pairs(start.spec.heads[0].labels), start, "pairs")


@pytest.fixture(scope="module")
def once(start: Model, sample: Prepared) -> Callable[[str], Model]:
    @cache
    def make(text: str) -> Model:
        return apply(start, parse(text), sample)

    return make


def check(made: Model, sample: Prepared, folder) -> None:
    """It runs, and gives the same from a folder, which loads strictly."""
    score = evaluate_examples(made.net, sample.examples(made), sample.task)
    assert 0 <= score["accuracy"] <= 100
    assert all(t.isfinite().all() for t in made.net.state_dict().values() if t.is_floating_point())
    if folder is not None:
        made.save(folder)
        again = Model.load(folder)
        assert again.spec == made.spec and again.fingerprint == made.fingerprint
        assert evaluate_examples(again.net, sample.examples(again), sample.task) == score


@pytest.mark.parametrize("text", [text for found in VARIANTS.values() for text in found])
def test_alone(text, start, sample, once, tmp_path):
    before = {n: t.clone() for n, t in start.net.state_dict().items()}
    made = once(text)
    check(made, sample, tmp_path / "model")
    assert any(row["did"] == "shrink" for row in made.history)
    for name, tensor in start.net.state_dict().items():
        assert torch.equal(tensor, before[name]), "the given model changed"


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, PARTS))]
)
@pytest.mark.parametrize("first", METHODS)
def test_every_ordered_pair(first, part, start, sample, once):
    """In parts, each with other partners for each method; the quick suite tries one."""
    shift = list(METHODS).index(first) + part
    for number, second in enumerate(METHODS):
        for text in VARIANTS[second][:2] if (number + shift) % PARTS == 0 else ():
            try:
                made = apply(once(VARIANTS[first][0]), parse(text), sample)
            except (SpecError, InputError) as error:
                assert any(words in str(error) for words in CLEAR), f"{first} then {text}: {error}"
                continue
            check(made, sample, None)


@pytest.mark.parametrize(
    "text",
    ["share", "prune-heads:by=weight", "prune-neurons:by=weight", "low-rank:rank=8", "quantise"],
)
def test_every_family(text, family, model):
    whole = model(family, "rank")
    try:
        made = apply(whole, parse(text))
    except SpecError as error:
        if text.startswith("prune-heads"):  # what they add to the scores is of all heads
            assert family in ("mpnet", "xlnet") and "has no heads" in str(error)
            return
        assert text == "share" and family == "modernbert"
        assert "shape of their attention" in str(error) and "choose mode=ffn" in str(error)
        apply(whole, parse("share:mode=ffn"))
        return
    ids = torch.arange(10, 18)[None]
    real = torch.ones_like(ids, dtype=torch.bool)
    states, _ = made.net.input("query", ids, real)
    assert made.net.cross(states, real, states, real, ["rank"])["rank"].isfinite().all()
