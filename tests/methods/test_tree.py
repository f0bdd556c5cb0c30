"""Attention over trees: subtree averages by hand, what a node may see, and trees of stored passages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.index.encode import encode_windows
from decoupled.measure.counts import parameters, work
from decoupled.measure.pairs import Pair, Span
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.tree.module import Tree, nodes_of
from decoupled.methods.tree.part import TreeAttention
from decoupled.methods.tree.text import Node, TreeText, parsed
from decoupled.model.jsonable import from_json, to_json
from decoupled.model.model import Model
from decoupled.model.nn.attention import build_attention
from decoupled.model.nn.block import Context
from decoupled.model.nn.frame import ALL, Frame
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.feed_forward import FeedForwardSpec
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.model.tokens import Passage
from decoupled.runtime.open import open_runtime
from decoupled.runtime.torch import TorchRuntime
from decoupled.train.data.prepare import tokenise
from decoupled.train.data.tasks import TASKS
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights

WIDTH, HEADS = 12, 3
TEXT = TreeText(labels=("NP", "other"), first=100)


def node(leaves: int) -> int:
    return TEXT.code("NP", leaves)


# Two sentences: ((a b) (c d) e) and (f g), then h; rows of nodes come after what they hold.
IDS = [1, 2, node(2), 3, 4, node(2), 5, node(5), 6, 7, node(2), 8]
UNDER = {2: [0, 1], 5: [3, 4], 7: [0, 1, 3, 4, 6], 10: [8, 9]}
"""Rows of the tokens under each node."""
PATHS = {2: [2], 5: [5], 7: [2, 5, 7], 10: [10]}
"""The nodes under each, itself last."""


def built(**options):
    kind = TreeAttention(
        heads=HEADS, head_width=WIDTH // HEADS, vertical=3, horizontal=4, **options
    )
    torch.manual_seed(0)
    module = build_attention(kind, width=WIDTH, dropout=0.0, linear=WHOLE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return kind, module.double().eval()


def context_of(kind, ids, real=None) -> Context:
    ids = torch.tensor(ids)
    ids = ids if ids.dim() == 2 else ids[None]
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    layer = LayerSpec(attention=kind, ffn=FeedForwardSpec(width=4), attention_slot=0, ffn_slot=0)
    frame = Frame(((real & (ids < TEXT.first)).long().cumsum(1) - 1).clamp(min=0), real)
    frame.structure = TEXT, ids
    return Context(number=0, layer=layer, frame=frame, rows=ALL)


def by_hand(module, x):
    """Values of the nodes, token by token and node by node."""
    value, weigh = module.value(x).view(len(x), HEADS, -1), module.weigh(x)
    found = {}
    for top, leaves in UNDER.items():
        total = torch.zeros(HEADS, WIDTH // HEADS, dtype=x.dtype)
        for leaf in leaves:
            path = [n for n in PATHS[top] if leaf in UNDER[n]]
            states = value[leaf].clone()
            for height, n in enumerate(path, 1):
                place = UNDER[n].index(leaf) + 1
                where = [module.vertical[min(height, 3)], module.horizontal[min(place, 4)]]
                states += value[n] + torch.cat(where)
            total += weigh[leaf][:, None] * states / (1 + len(path))
        found[top] = total / len(leaves)
    return found


def test_values_of_nodes_are_subtree_averages():
    kind, module = built()
    x = torch.randn(1, len(IDS), WIDTH, dtype=torch.float64)
    tree = nodes_of(context_of(kind, IDS).frame)
    value = module.split_heads(module.value(x))
    found = module.accumulated(x, value, tree)[0].transpose(0, 1)
    for number, (row, expected) in enumerate(by_hand(module, x[0]).items()):
        assert tree.row[0, number] == row
        assert (found[number] - expected).abs().max() < 1e-12


def test_rows_see_what_is_under_them_and_tokens_see_tokens():
    kind, _ = built()
    sees = nodes_of(context_of(kind, IDS).frame).sees[0, 0]
    tokens = [n for n, i in enumerate(IDS) if i < TEXT.first]
    for row in range(len(IDS)):
        allowed = sees[row].nonzero()[:, 0].tolist()
        assert allowed == (sorted(UNDER[row] + PATHS[row]) if row in UNDER else tokens)


def test_tokens_are_as_without_nodes_and_a_node_knows_its_span_alone():
    kind, module = built()
    x = torch.randn(1, len(IDS), WIDTH, dtype=torch.float64)
    found = module(x, context_of(kind, IDS))
    plain = SelfAttention(heads=HEADS, head_width=WIDTH // HEADS)
    other = build_attention(plain, width=WIDTH, dropout=0.0, linear=WHOLE).double().eval()
    other.load_state_dict({n: t for n, t in module.state_dict().items() if n in other.state_dict()})
    tokens = [n for n, i in enumerate(IDS) if i < TEXT.first]
    without = context_of(plain, [1] * len(tokens))
    assert (found[:, tokens] - other(x[:, tokens], without)).abs().max() < 1e-12
    moved = x.clone()
    moved[0, 8] += 1  # under the second sentence
    after = module(moved, context_of(kind, IDS))
    assert (after[0, [2, 5, 7]] - found[0, [2, 5, 7]]).abs().max() < 1e-12
    assert (after[0, 10] - found[0, 10]).abs().max() > 1e-3


def test_padding_and_batch_mates_change_nothing():
    kind, module = built()
    x = torch.randn(2, len(IDS) + 3, WIDTH, dtype=torch.float64)
    ids = torch.tensor([[*IDS, 9, 9, 9], [1, 2, node(2), *([9] * (len(IDS)))]])
    real = torch.arange(len(IDS) + 3) < torch.tensor([len(IDS), 4])[:, None]
    found = module(x, context_of(kind, ids.tolist(), real))
    alone = module(x[:1, : len(IDS)], context_of(kind, IDS))
    assert (found[:1, : len(IDS)] - alone).abs().max() < 1e-12
    alone = module(x[1:, :4], context_of(kind, [1, 2, node(2), 9]))
    assert (found[1:, :4] - alone).abs().max() < 1e-12


# Structures ---------------------------------------------------------------------------------------


def test_brackets_become_nodes_children_first():
    text = "the cat  (a tabby) sat"
    found = parsed("(S (NP (NP the cat) (PRN -LRB- a tabby -RRB-)) (VP sat))", text)
    assert [(text[n.start : n.end], n.label) for n in found] == [
        ("the cat", "NP"),
        ("(a tabby)", "PRN"),
        ("the cat  (a tabby)", "NP"),
        ("sat", "VP"),
        (text, "S"),
    ]
    assert parsed("( (S a) ) (S b)", "a b")[-1] == Node(2, 3, "S")
    assert parsed("(NP The Cat)", "the cat") == parsed("(NP the cat)", "THE CAT")


@pytest.mark.parametrize(
    ("structure", "why"),
    [
        ("(S (NP the cat)", "1 of its brackets are never closed"),
        ("(S the cat))", "outside of all brackets"),
        ("the cat", "'the' stands outside of all brackets"),
        ("(S the dog)", "'dog' where the text has 'cat'"),
        ("(S (NP) the cat)", "no word is under 'NP'"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(structure, why):
    with pytest.raises(InputError, match=why) as error:
        parsed(structure, "the cat")
    assert "\n" not in str(error.value) and "give brackets" in str(error.value)


# In a model ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_of_trees(model) -> Model:
    made = apply(Model.split(model("bert", "span"), at=2), parse("tree"))
    for name, parameter in made.net.named_parameters():
        if name.endswith(("vertical", "horizontal")):
            torch.nn.init.normal_(parameter)
    return made


WORDS = "The river fell. A great stone bridge burned. The lake"


def test_nodes_are_rows_among_those_of_the_tokens(model_of_trees):
    tokenizer, tree = model_of_trees.tokenizer, model_of_trees.spec.text.structure
    ((window,),) = tokenizer.windows([WORDS], ["castle tower"])
    nodes = window.ids[window.ids >= tree.first] - tree.first
    labels = [tree.labels[n] for n in (nodes // 1024).tolist()]
    assert labels == ["heading", "sentence", "sentence", "sentence", "passage"]
    plain = replace(model_of_trees.spec.text, structure=None)
    ((other,),) = type(tokenizer)(tokenizer.json, plain).windows([WORDS], ["castle tower"])
    kept = window.ids < tree.first
    assert np.array_equal(window.ids[kept], other.ids)
    assert np.array_equal(window.offsets[kept], other.offsets)
    assert nodes[-1] % 1024 == len(other.ids) - len(plain.passage_prefix) - len(
        plain.passage_suffix
    )
    structure = "(S (NP The river) fell.) (S (X A great) stone bridge burned.) (S The lake)"
    ((given,),) = tokenizer.windows([WORDS], structures=[structure])
    labels = [tree.labels[(i - tree.first) // 1024] for i in given.ids if i >= tree.first]
    assert labels == ["NP", "S", "other", "S", "S", "passage"]


def test_stored_is_direct_and_another_structure_is_another_record(model_of_trees, tmp_path):
    flat = Passage(id="a", text=WORDS, title="castle")
    deep = replace(
        flat, meta={"structure": "(S (NP The river fell. A) great stone bridge burned. The lake)"}
    )
    others = [Passage(id="b", text="the moon"), Passage(id="c", text="star. " * 40)]
    with dc.Index.create(tmp_path / "i", model_of_trees, codec="fp32") as index:
        scores = []
        for passage in (flat, deep, flat):
            index.add([passage, *others])
            given = [passage, *others]
            stored = dc.Engine(index).ask("river", k=5, ids=["a", "b", "c"])
            direct = dc.Engine(model_of_trees).ask("river", k=5, texts=given)
            assert [a.text for a in stored] == [a.text for a in direct]
            for one, other in zip(stored, direct, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-5)
                assert one.passage[one.start : one.end] == one.text
            scores.append(stored.weight)
        assert scores[0] == pytest.approx(scores[2], abs=1e-6)
        assert scores[0] != pytest.approx(scores[1], abs=1e-4)
        with pytest.raises(InputError, match="is no tree over its text"):
            index.add([replace(flat, meta={"structure": "(S the river"})])
        with pytest.raises(InputError, match="has structure 7; expected brackets"):
            index.add([replace(flat, meta={"structure": 7})])


def test_states_of_tokens_are_those_of_the_model_without_trees(model, model_of_trees):
    plain = Model.split(model("bert", "span"), at=2)
    first = model_of_trees.spec.text.structure.first
    rows = []
    for made in (plain, model_of_trees):
        runtime = TorchRuntime(made)
        split = runtime.tokenizer.windows([WORDS])
        rows.append((split[0][0].ids, encode_windows(runtime, split).states.values))
    assert np.abs(rows[1][1][rows[1][0] < first] - rows[0][1]).max() < 1e-5


def test_labels_join_the_fingerprint_and_it_runs_in_torch(model, model_of_trees, tmp_path):
    spec = model_of_trees.spec
    assert from_json(ModelSpec, to_json(spec)) == spec
    # As the first folders have it, from before there were other structures.
    tree = {"labels": list(spec.text.structure.labels), "first": spec.text.structure.first}
    assert to_json(spec)["text"]["tree"] == tree
    other = replace(spec.text.structure, labels=(*spec.text.structure.labels[:-1], "Z"))
    changed = model_of_trees.rebuild(replace(spec, text=replace(spec.text, structure=other)), {})
    assert changed.fingerprint != model_of_trees.fingerprint
    model_of_trees.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    assert again.fingerprint == model_of_trees.fingerprint
    ids = [w.ids for w in again.tokenizer.windows([WORDS])[0]]
    states = [TorchRuntime(m).encode("passage", ids).states.values for m in (again, model_of_trees)]
    assert np.array_equal(*states)
    with pytest.raises(InputError, match=r"openvino runtime \(it lacks tree attention\)"):
        open_runtime(tmp_path / "m", name="openvino")
    plain, width = Model.split(model("bert", "span"), at=2).spec, spec.encoder.width
    heads, half = spec.layers[0].attention.heads, spec.layers[0].attention.head_width // 2
    more = 2 * (width * heads + heads + (51 + 101) * half) + len(spec.text.structure.labels) * width
    assert parameters(spec).total - parameters(plain).total == more


def test_arithmetic_counts_nodes(model_of_trees):
    kind, module = built()
    x_1TD = torch.randn(1, len(IDS), WIDTH, dtype=torch.double)
    tree = Tree.of(torch.tensor([IDS]), torch.ones(1, len(IDS), dtype=torch.bool), TEXT)
    values = torch.randn(1, HEADS, len(IDS), WIDTH // HEADS, dtype=torch.double)
    weigh = len(IDS) * WIDTH * HEADS
    with FlopCounterMode(display=False) as counter:
        module.accumulated(x_1TD, values, tree)
    assert counter.get_total_flops() == 2 * (weigh + kind.gathering(len(IDS), nodes=4))
    spec = model_of_trees.spec
    without, of_tree = (work(spec, query=4, passage=30, nodes=n) for n in (0, 6))
    more = work(spec, query=4, passage=36)
    assert without.passage < more.passage < of_tree.passage
    assert of_tree.cross == more.cross and of_tree.query == without.query
    own = spec.layers[0].attention
    assert of_tree.passage - more.passage == spec.split * own.gathering(36, 6)


def test_it_learns_from_trees(model_of_trees):
    span = Span(text="lake", start=WORDS.index("lake"))
    pair = Pair(query="river", passage=WORDS, answers=(span,), structure=f"(S {WORDS})")
    pairs = [replace(pair, id=f"{n}", group=f"{n}") for n in range(8)]
    made = tokenise(pairs, model_of_trees.tokenizer, TASKS["squad"], train=True)
    first = model_of_trees.spec.text.structure.first
    assert (made.passages.values >= first).sum() == 1  # one node over all: what the structure says
    start, end = made.label[0] - 1
    begin, last = made.truth.offsets[0][start][0], made.truth.offsets[0][end][1]
    assert WORDS[begin:last] == "lake"
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=4),
        settings=Distillation(weights=Weights(kd=1, lrs=1)),
        precision="fp32",
    )
    after = dc.distill(model_of_trees, data=pairs, task="squad", recipe=recipe)
    name = "stack.attention.0.attention.weigh.weight"
    assert not np.array_equal(after.tensors()[name], model_of_trees.tensors()[name])


def test_what_cannot_be_read_as_trees_is_refused(model):
    joint = model("bert", "span")
    with pytest.raises(SpecError, match=r"split=0.*split first"):
        apply(joint, parse("tree"))
    with pytest.raises(SpecError, match="trees already: True"):
        apply(apply(Model.split(joint, at=1), parse("tree")), parse("tree"))
    with pytest.raises(SpecError, match="disentangled attention; leave it out"):
        apply(Model.split(model("deberta-v2", "rank"), at=1), parse("tree"))
    with pytest.raises(SpecError, match="plain token table"):
        factorised = apply(Model.split(joint, at=1), parse("factorise-embedding:rank=4"))
        apply(factorised, parse("tree"))
