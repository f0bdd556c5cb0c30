"""What each method promises: exact where its specification says exact, and the law of its error elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoupled.errors import InputError, SpecError
from decoupled.methods.count import sparse_bytes
from decoupled.methods.fixed_heads.shrink import SetPatterns
from decoupled.methods.importance import gated, head_ablation, importance, loss_of, sample_batches
from decoupled.methods.layerdrop.shrink import KeepLayers
from decoupled.methods.low_rank import shrink as lowrank
from decoupled.methods.method import apply
from decoupled.methods.names import parse
from decoupled.methods.prune_heads.shrink import KeepHeads
from decoupled.methods.prune_neurons.shrink import KeepNeurons
from decoupled.methods.prune_weights.shrink import PruneWeights
from decoupled.methods.share.shrink import ShareLayers
from decoupled.methods.tensors import blocks_of
from decoupled.methods.token_order import KeepTokens
from decoupled.methods.token_table import truncated
from decoupled.model.model import Model
from decoupled.model.tokens import Tokenizer
from decoupled.train.data.prepare import Prepared, prepare
from decoupled.train.loop.forward import forward_pair
from decoupled.train.losses import task_loss
from decoupled.train.recipe import PLAIN
from toy import class_pairs, named_pairs


@pytest.fixture(scope="module")
def start(model: Callable[..., Model]) -> Model:
    return Model.split(model("bert", "classes", num_hidden_layers=4), at=2)


@pytest.fixture(scope="module")
def sample(start: Model) -> Prepared:
    return prepare(named_pairs(start.spec.heads[0].labels), start, "pairs")


def logits(model: Model, sample: Prepared) -> torch.Tensor:
    with torch.no_grad():
        found = [
            (batch.rows, forward_pair(model.net, batch, sample.task.head).logits)
            for batch in sample_batches(sample, model)
        ]
    rows = torch.cat([rows for rows, _ in found])
    return torch.cat([values for _, values in found])[rows.argsort()]


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# Sharing -----------------------------------------------------------------------------------------


def test_as_many_groups_as_layers_share_nothing(start, sample):
    made = apply(start, parse("share:groups=2,start=average"), sample)
    close(logits(made, sample), logits(start, sample))
    assert made.spec.layers == start.spec.layers


@pytest.mark.parametrize("mode", ["all", "attention", "ffn"])
def test_sharing_is_the_unrolled_model_and_untying_gives_it_back(start, sample, mode):
    shared = apply(start, parse(f"share:mode={mode},start=average"), sample)
    untied = apply(shared, parse("untie"))
    close(logits(shared, sample), logits(untied, sample))
    slots = {layer.attention_slot for layer in shared.spec.layers}
    assert len(slots) == (4 if mode == "ffn" else 2), "one slot per component"
    assert len({layer.ffn_slot for layer in untied.spec.layers}) == 4
    assert set(shared.net.state_dict()) < set(start.net.state_dict()), "every tensor once"


def test_the_gradient_of_a_shared_tensor_is_the_sum_over_its_layers(start, sample):
    shared = apply(start, parse("share:scope=global"), sample)
    untied = apply(shared, parse("untie"))
    batch = next(iter(sample_batches(sample, start)))

    def gradients(model: Model) -> dict[str, torch.Tensor]:
        found = forward_pair(model.net, batch, sample.task.head).logits
        loss = task_loss(sample.task, PLAIN, found, batch)
        names, tensors = zip(*model.net.named_parameters(), strict=True)
        grads = torch.autograd.grad(loss, tensors, allow_unused=True)
        return dict(zip(names, grads, strict=True))

    one, four = gradients(shared), gradients(untied)
    name = "up.weight"
    close(one[f"stack.ffn.0.{name}"], sum(four[f"stack.ffn.{n}.{name}"] for n in range(4)))


def test_groups_are_those_of_the_paper(start):
    made = apply(start, parse("share:groups=3,scope=global"))
    assert [layer.ffn_slot for layer in made.spec.layers] == [0, 0, 2, 3]  # ⌊l·3/4⌋ = 0 0 1 2
    with pytest.raises(SpecError, match=r"choose 1\.\.2"):
        apply(start, parse("share:groups=3"))
    with pytest.raises(SpecError, match=r"picks=\(0, 1\); give a layer of each group"):
        apply(start, parse("share:picks=0/1"))


def test_alignment_undoes_a_permutation(start, sample):
    """Layers that differ only in the order of their heads and neurons average to themselves."""
    twin = apply(start, KeepHeads.of({1: [2, 0, 3, 1]}))
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0)).tolist()
    weights = dict(start.net.state_dict())
    for n in list(weights):
        if n.startswith(("stack.attention.1.", "stack.ffn.1.")):
            weights[n] = weights[n.replace(".1.", ".0.", 1)]
    same = Model(twin.net, start.tokenizer)
    same.net.load_state_dict(weights)
    mixed = apply(same, KeepHeads.of({1: [2, 0, 3, 1]}))
    mixed = apply(mixed, KeepNeurons(kept=((1, tuple(order)),)))
    close(logits(mixed, sample), logits(same, sample))
    aligned = apply(mixed, ShareLayers(start="aligned"))
    close(aligned.net.state_dict()["stack.ffn.0.up.weight"], weights["stack.ffn.0.up.weight"])
    plain = apply(mixed, ShareLayers(start="average"))
    gap = plain.net.state_dict()["stack.ffn.0.up.weight"] - weights["stack.ffn.0.up.weight"]
    assert gap.abs().max() > 0.1, "without alignment the mean is of strangers"


def test_the_loss_of_a_model_is_the_mean_over_its_pairs(start, sample):
    batches = list(sample_batches(sample, start))
    order = torch.cat([batch.rows for batch in batches]).argsort()
    label = torch.cat([batch.label for batch in batches])[order, 0].long()
    expected = torch.nn.functional.cross_entropy(logits(start, sample), label)
    assert loss_of(start, sample) == pytest.approx(float(expected), abs=1e-5)


def test_the_best_layer_is_no_worse_than_the_first(start, sample):
    best = apply(start, parse("share:scope=global,start=best"), sample)
    first = apply(start, parse("share:scope=global,start=first"), sample)
    assert loss_of(best, sample) <= loss_of(first, sample) + 1e-6


# Embeddings --------------------------------------------------------------------------------------


def test_full_rank_changes_nothing_and_the_error_is_the_tail(start, sample):
    close(logits(apply(start, parse("factorise-embedding:rank=32")), sample), logits(start, sample))
    table = start.net.state_dict()["embedding.tokens.weight"]
    first, second = truncated(table, 8)
    tail = torch.linalg.svdvals(table.double())[8:].square().sum()
    error = (table.double() - first.double() @ second.double().T).square().sum()
    torch.testing.assert_close(error, tail, rtol=1e-4, atol=1e-6)
    with pytest.raises(SpecError, match=r"rank 33, but the table is 32 wide; choose 1\.\.32"):
        apply(start, parse("factorise-embedding:rank=33"))


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (3, 12)])
def test_factors_are_those_of_the_singular_values_whichever_side_is_small(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    first, second = truncated(matrix, 5)
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    close(first @ second.T, left[:, :5] @ torch.diag(sizes[:5]) @ right[:5])
    assert first.shape == (shape[0], 5) and second.shape == (shape[1], 5)
    kept = min(5, *shape)
    close(second.T @ second, torch.diag((torch.arange(5) < kept).float()))


def test_bands_keep_what_fits_their_width(start, sample):
    made = apply(start, parse("band-embedding:shares=0.9,factor=2"), sample)
    table = made.spec.encoder.embedding.table
    assert table.sizes == (900, 100) and table.widths == (32, 16)
    # All tokens of the sample are frequent, so they are in the first band, which is whole.
    close(logits(made, sample), logits(start, sample))
    narrow = apply(start, parse("band-embedding:shares=0.004,factor=4"), sample)
    assert (logits(narrow, sample) - logits(start, sample)).abs().max() > 1e-3
    with pytest.raises(InputError, match=r"band-embedding looks at data to decide.*\(data\)"):
        apply(start, parse("band-embedding"))


def test_texts_of_kept_tokens_are_read_as_before(start, sample):
    made = apply(start, parse("reduce-vocabulary"), sample)
    assert made.spec.encoder.embedding.vocab < start.spec.encoder.embedding.vocab / 4
    close(logits(made, sample), logits(start, sample))
    # A text of other words still has tokens, only smaller ones, and nothing unknown.
    before, after = (
        start.tokenizer.query("the vampire wrote"),
        made.tokenizer.query("the vampire wrote"),
    )
    assert len(after) > len(before)
    unknown = _pieces(made).index("[UNK]")
    assert unknown not in after.tolist()
    small = apply(start, parse("reduce-vocabulary:size=3"), sample)
    assert small.spec.encoder.embedding.vocab < made.spec.encoder.embedding.vocab


def test_a_corpus_of_passages_says_which_tokens_stay(start, sample, tmp_path):
    """No labels are needed; with pairs as well, what both use stays."""
    corpus = tmp_path / "passages.jsonl"
    corpus.write_text('{"id": "a", "text": "the vampire wrote letters"}\n' * 3)
    method = parse(f"reduce-vocabulary:corpus={corpus}")
    alone, both = apply(start, method), apply(start, method, sample)
    for made in (alone, both):
        before, after = (m.tokenizer.query("the vampire wrote letters") for m in (start, made))
        assert len(before) == len(after)
    assert "castle" in _pieces(both) and "castle" not in _pieces(alone)
    close(logits(both, sample), logits(start, sample))
    with pytest.raises(InputError, match="does not exist"):
        apply(start, parse("reduce-vocabulary:corpus=nowhere.jsonl"))


def _pieces(model: Model) -> list[str]:
    vocab = json.loads(model.tokenizer.json)["model"]["vocab"]
    return sorted(vocab, key=vocab.__getitem__)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_other_tokenizers_are_reduced_too(family, model):
    whole = model(family, "classes")
    labels = whole.spec.heads[0].labels
    pairs = named_pairs(labels)
    sample = prepare(pairs, whole, "pairs")
    made = apply(whole, parse("reduce-vocabulary"), sample)
    assert made.spec.encoder.embedding.vocab < whole.spec.encoder.embedding.vocab
    close(logits(made, sample), logits(whole, sample))
    banded = apply(whole, parse("band-embedding:shares=0.9,factor=2"), sample)
    close(logits(banded, sample), logits(whole, sample))


def test_an_added_token_beyond_the_table_goes(start, sample):
    data = json.loads(start.tokenizer.json)
    extra = {**data["added_tokens"][-1], "id": 1000, "content": "<extra>"}
    data["added_tokens"].append(extra)
    odd = Model(start.net, Tokenizer(json.dumps(data), start.spec.text))
    made = apply(odd, parse("reduce-vocabulary"), Prepared(task=sample.task, read=sample.read))
    kept = json.loads(made.tokenizer.json)["added_tokens"]
    assert [token["content"] for token in kept] == [t["content"] for t in data["added_tokens"][:-1]]


def test_what_frames_a_text_cannot_be_dropped(start):
    with pytest.raises(SpecError, match="frame every text"):
        apply(start, KeepTokens(order=(0, 1, 10, 11)))


# Heads -------------------------------------------------------------------------------------------


def test_a_removed_head_is_a_gate_of_zero(start, sample):
    kept = {0: [0, 1, 3], 1: [2], 2: [0, 1, 2, 3], 3: [1, 2]}
    made = apply(start, KeepHeads.of(kept))

    def gate(number: int, units: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(units.shape[2])
        mask[kept[number]] = 1
        return units * mask[:, None]

    with gated(start.net, "attention", gate):
        masked = logits(start, sample)
    close(logits(made, sample), masked)
    removed = sum(4 - len(heads) for heads in kept.values())
    width = 8
    saved = _size(start) - _size(made)
    assert saved == removed * (4 * 32 * width + 3 * width), "4·d·d_k + 3·d_k for each"


def _size(model: Model) -> int:
    return sum(t.numel() for t in model.net.state_dict().values())


def test_importance_is_the_mean_of_absolute_derivatives_by_example(start, sample):
    found = importance(start, sample, "attention")
    slow = {number: torch.zeros(4) for number in found}
    examples = sample.examples(start)
    single = Prepared(task=sample.task, read=lambda t: examples)
    count = 0
    for row in range(len(examples)):
        one = replace(single, read=lambda t, row=row: examples.select(np.array([row])))
        for number in slow:
            for head in range(4):
                slow[number][head] += abs(_derivative(start, one, number, head))
        count += 1
    for number, values in found.items():
        torch.testing.assert_close(values, slow[number] / count, rtol=0.05, atol=2e-3)


def _derivative(model: Model, sample: Prepared, number: int, head: int) -> float:
    """Of the loss by a gate, from both sides."""
    step, losses = 1e-2, []
    for sign in (1, -1):

        def gate(at: int, units: torch.Tensor, sign: int = sign) -> torch.Tensor:
            scale = torch.ones(units.shape[2])
            if at == number:
                scale[head] += sign * step
            return units * scale[:, None]

        with gated(model.net, "attention", gate):
            losses.append(loss_of(model, sample))
    return (losses[0] - losses[1]) / (2 * step)


def test_a_head_without_values_does_not_count(start, sample):
    dead = apply(start, KeepLayers(layers=(0, 1, 2, 3)))
    state = dead.net.state_dict()
    state["stack.attention.3.attention.value.weight"][8:16] = 0
    state["stack.attention.3.attention.value.bias"][8:16] = 0
    scores = importance(dead, sample, "attention")
    assert scores[3][1] == 0 and (scores[3][[0, 2, 3]] > 0).all()
    made = apply(dead, parse("prune-heads:share=0,above=0.125"), sample)
    assert made.spec.layers[3].attention.heads == 3, "it goes first"
    close(logits(made, sample), logits(dead, sample))


def test_budgets_below_and_above_the_split_are_kept(start, sample):
    made = apply(start, parse("prune-heads:below=0.5,above=0.25"), sample)
    heads = [layer.attention.heads for layer in made.spec.layers]
    assert sum(heads[:2]) == 4 and sum(heads[2:]) == 6 and min(heads) >= 1
    steps = apply(start, parse("prune-heads:share=0.5,steps=3"), sample)
    assert sum(layer.attention.heads for layer in steps.spec.layers) == 8
    with pytest.raises(InputError, match="prune-heads looks at data"):
        apply(start, parse("prune-heads"))
    with pytest.raises(SpecError, match=r"share=1.0; choose a share"):
        apply(start, parse("prune-heads:share=1"), sample)


def test_the_ablation_table_has_a_row_for_every_head(start, sample):
    rows = head_ablation(start, sample, score=loss_of)
    assert len(rows) == 16 and {row["slot"] for row in rows} == {0, 1, 2, 3}
    whole = loss_of(start, sample)
    without = apply(start, KeepHeads.of({2: [0, 1, 3]}))
    row = next(row for row in rows if (row["slot"], row["head"]) == (2, 2))
    assert row["score"] == pytest.approx(loss_of(without, sample), abs=1e-5)
    assert row["change"] == pytest.approx(row["score"] - whole)
    alone = head_ablation(start, sample, score=loss_of, alone=True)
    row = next(row for row in alone if (row["slot"], row["head"]) == (2, 2))
    only = apply(start, KeepHeads.of({2: [2]}))
    assert row["score"] == pytest.approx(loss_of(only, sample), abs=1e-5)


# Fixed heads -------------------------------------------------------------------------------------


def test_learned_heads_stay_as_they_were(start, sample):
    """With the outputs of the fixed heads silenced, the rest is the model without them."""
    made = apply(start, parse("fix-heads:learned=2"), sample)
    fixed = {}
    for number, block in blocks_of(made.spec, "attention").items():
        assert block.part.kind == "fixed" and block.part.learned == 2
        fixed[number] = len(block.part.patterns)

    def silent(number: int, units: torch.Tensor) -> torch.Tensor:
        return units * (torch.arange(units.shape[2]) >= fixed[number])[:, None]

    with gated(made.net, "attention", silent):
        rest = logits(made, sample)
    given = next(row for row in made.history if row.get("method") == "set-patterns")["assigned"]
    kept = {n: [h for h in range(4) if h not in [p[0] for p in pairs]] for n, pairs in given}
    close(rest, logits(apply(start, KeepHeads.of(kept)), sample))


def test_a_head_gets_the_pattern_that_it_follows(start, sample):
    """A head that looks at itself alone is given `current`, and nothing changes."""
    made = apply(start, KeepLayers(layers=(0, 1, 2, 3)))
    state = made.net.state_dict()
    block = "stack.attention.0.attention."
    for name in ("query", "key"):
        state[f"{block}{name}.weight"][16:24] = 0
        state[f"{block}{name}.bias"][16:24] = 0
    # The strongest direction of the (normalised) embedding in both maps: each token finds itself.
    eye = torch.eye(32)[:8] * 30
    state[f"{block}query.weight"][16:24] = eye
    state[f"{block}key.weight"][16:24] = eye
    fitted = parse("fix-heads:learned=3,part=below").fit(made, sample)
    assert isinstance(fitted, SetPatterns)
    pairs = dict(fitted.assigned)
    assert pairs[0] == ((2, "current"),)


def test_fixed_layers_split_exactly(start, sample):
    """A text's states depend on that text alone, whatever it is batched with."""
    made = apply(start, parse("fix-heads:learned=0"), sample)
    ids = torch.arange(10, 22).view(2, 6)
    real = torch.ones(2, 6, dtype=torch.bool)
    with torch.no_grad():
        alone, _ = made.net.input("passage", ids[:1, :4], real[:1, :4])
        real[0, 4:] = False
        batched, _ = made.net.input("passage", ids, real)
    close(batched[:1, :4], alone, 1e-5)


# Layers ------------------------------------------------------------------------------------------


def test_an_extracted_network_is_the_whole_one_with_layers_skipped(start, sample):
    made = apply(start, parse("keep-layers:layers=0/3"))

    def skip(context, x, run):
        from decoupled.model.nn.frame import take

        return take(x, context.rows) if context.number in (1, 2) else run(context, x)

    with start.net.stack.hook(skip):
        skipped = logits(start, sample)
    close(logits(made, sample), skipped)
    assert made.spec.split == 1


def test_every_other_layer_goes(model):
    whole = model("bert", "classes", num_hidden_layers=4)
    made = apply(whole, parse("keep-layers:every=2"))
    assert [layer.ffn_slot for layer in made.spec.layers] == [0, 2]
    third = apply(whole, parse("keep-layers:every=3"))
    assert [layer.ffn_slot for layer in third.spec.layers] == [0, 1, 3]


def test_the_search_finds_the_best_subset(start, sample):
    made = apply(start, parse("keep-layers:count=3,below=1"), sample)
    found = loss_of(made, sample)
    for below in (0, 1):
        other = apply(start, KeepLayers(layers=(below, 2, 3)))
        assert found <= loss_of(other, sample) + 1e-6
    with pytest.raises(SpecError, match="one of layers=0/2/4, every=2 or count=4"):
        apply(start, parse("keep-layers"))
    with pytest.raises(SpecError, match=r"nothing above the split at 2; keep one from 2\.\.3"):
        apply(start, parse("keep-layers:layers=0/1"))


@pytest.mark.parametrize(
    ("at", "kept", "split"), [(1, 2, 1), (1, 3, 1), (3, 2, 1), (0, 2, 0), (4, 2, 2)]
)
def test_both_components_keep_a_layer(model, at, kept, split):
    whole = Model.split(model("bert", "classes", num_hidden_layers=4), at=at)
    pairs = prepare(named_pairs(whole.spec.heads[0].labels), whole, "pairs")
    made = apply(whole, parse(f"keep-layers:count={kept}"), pairs)
    assert (len(made.spec.layers), made.spec.split) == (kept, split)
    if 0 < at < 4:
        with pytest.raises(SpecError, match=r"count=1 with 1 below .* leave one of each"):
            apply(whole, parse("keep-layers:count=1"), pairs)


def test_learned_gates_close_a_useless_layer(start, sample):
    """A layer that turns its result around goes, where the labels are what the model says without it."""
    labels = start.spec.heads[0].labels
    said = logits(apply(start, KeepLayers(layers=(0, 1, 2))), sample).argmax(1).tolist()
    pairs = [replace(p, label=labels[n]) for p, n in zip(class_pairs(12), said, strict=True)]
    sample = prepare(pairs, start, "pairs")
    turned = apply(start, KeepLayers(layers=(0, 1, 2, 3)))
    state = turned.net.state_dict()
    state["stack.ffn.3.norm.weight"].neg_()
    state["heads.classes.out.weight"].mul_(3)
    made = apply(turned, parse("keep-layers:count=3,by=learned,steps=60"), sample)
    assert [layer.ffn_slot for layer in made.spec.layers] == [0, 1, 2] and made.spec.split == 2


# Matrices ----------------------------------------------------------------------------------------


def test_full_rank_factors_give_the_same_model(start, sample):
    close(logits(apply(start, parse("low-rank:rank=32")), sample), logits(start, sample), 1e-3)


def test_rank_and_error_are_those_of_the_singular_values(start):
    made = apply(start, parse("low-rank:maps=ffn,rank=4"))
    old, new = start.net.state_dict(), made.net.state_dict()
    name = "stack.ffn.1.up"
    product = new[f"{name}.second.weight"] @ new[f"{name}.first.weight"]
    tail = torch.linalg.svdvals(old[f"{name}.weight"])[4:].square().sum()
    close((old[f"{name}.weight"] - product).square().sum(), tail, 1e-3)
    half = apply(start, parse("low-rank:keep=0.5"))
    assert half.spec.layers[0].ffn_maps.rank == int(0.5 * 48 * 32 / 80)
    assert half.spec.layers[0].attention_maps.rank == int(0.5 * 32 * 32 / 64)
    with pytest.raises(SpecError, match="a matrix of 32x32 has at most 32"):
        apply(start, parse("low-rank:rank=40"))


def test_whitening_errs_less_on_what_the_matrix_is_given(start, sample):
    roots = lowrank._moments(start, sample)
    name = "stack.ffn.0.up"
    matrix = start.net.state_dict()[f"{name}.weight"].double()
    errors = []
    for white in ("false", "true"):
        made = apply(start, parse(f"low-rank:maps=ffn,rank=4,whiten={white}"), sample)
        new = made.net.state_dict()
        product = new[f"{name}.second.weight"] @ new[f"{name}.first.weight"]
        errors.append(((matrix - product) @ roots[name]).norm())
        lengths = (
            new[f"{name}.first.weight"].norm(dim=1),
            new[f"{name}.second.weight"].norm(dim=0),
        )
        close(lengths[0], lengths[1], 1e-4)
    assert errors[1] < errors[0]


def test_sliced_neurons_are_masked_neurons(start, sample):
    kept = tuple(range(0, 48, 2))
    made = apply(start, KeepNeurons(kept=tuple((n, kept) for n in range(4))))
    with gated(start.net, "ffn", lambda n, units: units * (torch.arange(48) % 2 == 0)[:, None]):
        close(logits(made, sample), logits(start, sample))
    assert _size(start) - _size(made) == 4 * 24 * (2 * 32 + 1), "2·d + 1 for each"


def test_means_of_lost_neurons_go_to_the_bias(start, sample):
    plain = apply(start, parse("prune-neurons:share=0.5,by=random,fold=false"), sample)
    folded = apply(start, parse("prune-neurons:share=0.5,by=random"), sample)
    target = logits(start, sample)
    close(
        plain.net.state_dict()["stack.ffn.2.down.weight"],
        folded.net.state_dict()["stack.ffn.2.down.weight"],
    )
    assert (logits(folded, sample) - target).norm() < (logits(plain, sample) - target).norm()
    assert all(layer.ffn.width == 24 for layer in folded.spec.layers)


@pytest.mark.parametrize("scope", ["matrix", "global"])
def test_sparsity_is_exact_and_nested(start, scope):
    weights = {
        n: t for n, t in start.net.state_dict().items() if n.startswith("stack.ffn.") and t.ndim > 1
    }
    before = None
    for sparsity in (0.25, 0.5, 0.75):
        masks = PruneWeights(sparsity=sparsity, scope=scope).masks(weights, sparsity)
        zeros = sum(int((m == 0).sum()) for m in masks.values())
        assert zeros == round(sum(m.numel() for m in masks.values()) * sparsity)
        if before is not None:
            assert all((masks[n] <= before[n]).all() for n in masks)
        before = masks


def test_of_equal_weights_the_first_stay():
    matrix = torch.tensor([[1.0, -1.0, 2.0, 1.0], [0.0, 1.0, -1.0, 0.0]])
    mask = PruneWeights().masks({"a": matrix}, 0.5)["a"]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]
    mask = PruneWeights().masks({"a": matrix}, 0.375)["a"]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 1, 0, 0]]


def test_two_of_four_stay_in_every_run(start):
    made = apply(start, parse("prune-weights:block=4"))
    weight = made.net.state_dict()["stack.ffn.0.up.weight"]
    assert ((weight != 0).view(len(weight), -1, 4).sum(-1) == 2).all()
    ordinary = sum(t.numel() * 4 for t in start.net.state_dict().values())
    assert sparse_bytes(made.net.state_dict()) < ordinary
    mostly, full = torch.zeros(10, 2), torch.ones(3)
    mostly[1, 0] = 1
    assert sparse_bytes({"a": mostly, "b": full}) == (4 + 3) + 12, "a value and 20 bits; as it is"
    same = apply(start, parse("prune-weights:sparsity=0"))
    assert torch.equal(
        same.net.state_dict()["stack.ffn.0.up.weight"],
        start.net.state_dict()["stack.ffn.0.up.weight"],
    )


# Quantisation ------------------------------------------------------------------------------------


def test_quantised_models_are_small_and_close(start, sample, tmp_path):
    target = logits(start, sample)
    gaps = {}
    for text in (
        "quantise:inputs=float",
        "quantise",
        "quantise:inputs=static",
        "quantise:bits=4,inputs=float,group=8",
    ):
        made = apply(start, parse(text), sample)
        gaps[text] = float((logits(made, sample) - target).abs().mean() / target.std())
    assert gaps["quantise:inputs=float"] < 0.05 and gaps["quantise"] < 0.1
    assert gaps["quantise:inputs=static"] < 0.25
    assert gaps["quantise:inputs=float"] < gaps["quantise:bits=4,inputs=float,group=8"] < 0.8
    start.save(tmp_path / "whole")
    apply(start, parse("quantise")).save(tmp_path / "coded")
    sizes = [(tmp_path / n / "weights.safetensors").stat().st_size for n in ("whole", "coded")]
    assert sizes[1] < sizes[0] / 2, "on disk too"


def test_codes_stay_codes_in_compact_folders(start, sample, tmp_path):
    made = apply(start, parse("quantise"))
    made.save(tmp_path / "small", compact=True)
    again = Model.load(tmp_path / "small")
    name = "stack.ffn.0.up.codes"
    assert torch.equal(again.net.state_dict()[name], made.net.state_dict()[name])
    close(logits(again, sample), logits(made, sample), 0.05)


def test_static_ranges_need_data(start):
    with pytest.raises(InputError, match="quantise looks at data"):
        apply(start, parse("quantise:inputs=static"))


# Memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3, 7, 1000])
def test_any_chunk_gives_the_same(start, sample, tokens):
    made = apply(start, parse(f"chunk-ffn:tokens={tokens}"))
    close(logits(made, sample), logits(start, sample), 1e-5)
    assert made.fingerprint == start.fingerprint, "an index stays valid"


# What only a model can decide ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "prune-heads",
        "prune-neurons",
        "fix-heads",
        "keep-layers:count=2",
        "share:start=best",
        "low-rank:whiten=true",
        "quantise:inputs=static",
        "band-embedding",
        "reduce-vocabulary",
    ],
)
def test_a_spec_alone_does_not_say_what_stays(start, text):
    with pytest.raises(SpecError, match="apply it to a model, not to its spec"):
        parse(text).rewrite(start.spec)


def test_alignment_is_refused_before_anything_moves(start):
    for text in ("low-rank:rank=8", "fix-heads:assign=order"):
        made = apply(start, parse(text))
        with pytest.raises(SpecError, match="needs whole matrices and learned heads; choose start"):
            parse("share:start=aligned").rewrite(made.spec)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prune-heads:examples=0", "examples=0"),
        ("prune-neurons:examples=0", "examples=0"),
        ("keep-layers:count=2,examples=0", "examples=0"),
        ("keep-layers:count=2,by=learned,steps=0", "steps=0"),
    ],
)
def test_nothing_is_decided_by_no_data(start, sample, text, said):
    with pytest.raises(SpecError, match=f"{said}; choose 1 or more"):
        apply(start, parse(text), sample)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("theseus:layers=2,rate=0", r"rate=0\.0, until=0\.7; choose numbers above 0"),
        ("prune-weights:until=nan", "until=nan; choose a share above 0 and up to 1"),
        ("prune-weights:until=1.01", "until=1.01; choose a share above 0 and up to 1"),
        ("prune-weights:sparsity=1", "sparsity=1.0; choose a share .* not including, 1"),
        ("quantise:warmup=2", "warmup=2.0; choose a share from 0 to 1"),
        ("quantise:group=8", "choose group=0, or inputs=float"),
    ],
)
def test_what_training_could_not_follow_is_refused(start, text, said):
    with pytest.raises(SpecError, match=said):
        apply(start, parse(text))


def test_a_wrong_share_is_named_as_it_was_given(start, sample):
    for text, said in (
        ("below=2", "below=2.0"),
        ("above=1", "above=1.0"),
        ("share=1", "share=1.0"),
    ):
        for method in ("prune-neurons:by=weight", "prune-heads:by=weight"):
            with pytest.raises(SpecError, match=f"{said}; choose a share"):
                apply(start, parse(f"{method},{text}"), sample)


# Words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "method 'nothing' is unknown; choose one of share, untie, factorise-"),
        ("share:depth=2", "'depth=2' is no option of share; write key=value, with one of: mode"),
        ("share:mode=both", "share:mode is 'both'; expected one of all, attention, ffn"),
        ("share:groups=two", "share:groups is 'two'; expected a whole number"),
        ("prune-heads:share=much", "prune-heads:share is 'much'; expected a number"),
        ("quantise:embedding=yes", "quantise:embedding is 'yes'; expected true or false"),
        ("quantise:ranges=1", "'ranges=1' is no option of quantise"),
        ("layerdrop:seed=-1", "layerdrop:seed is '-1'; expected a whole number from 0 on"),
    ],
)
def test_options_are_checked(text, words):
    with pytest.raises(InputError, match=words):
        parse(text)


def test_options_are_read():
    assert parse("keep-layers:layers=0/2/4").layers == (0, 2, 4)
    assert parse("keep-layers:layers=none").layers == ()
    assert parse("prune-heads:share=0.4,by=random,below=none").below is None
    assert parse("layerdrop:seed=0").seed == 0
    assert parse("quantise:bits=4,inputs=float").bits == 4
