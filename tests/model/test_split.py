"""The invariants of the split: what it must leave exactly as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoupled.errors import SpecError
from decoupled.model.model import Model
from decoupled.model.nn.encoder import last_first, positions
from decoupled.model.nn.frame import ALL, Frame
from decoupled.model.nn.head import rows_needed
from decoupled.model.parts.head import HeadSpec

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def batch(
    seed: int = 0, queries: tuple[int, ...] = (5, 7, 3), passages: tuple[int, ...] = (9, 4, 21)
) -> Batch:
    """Random ids of both sides, right-padded with 0, and their masks."""
    draw = torch.Generator().manual_seed(seed)

    def side(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        ids = torch.randint(5, 1000, real.shape, generator=draw)
        return ids.where(real, 0), real

    return *side(queries), *side(passages)


@torch.inference_mode()
def logits(model: Model, data: Batch, head: str) -> Tensor:
    q, q_real, p, p_real = data
    length = q_real.sum(1, keepdim=True)
    query, _ = model.net.input("query", q, q_real)
    passage, _ = model.net.input("passage", p, p_real, query_length=length)
    return model.net.cross(query, q_real, passage, p_real, heads=[head])[head]


@torch.inference_mode()
def masked_joint(model: Model, data: Batch, head: str) -> Tensor:
    """One sequence through every layer; a block-diagonal mask in the layers below the split."""
    net, k = model.net, model.spec.split
    q, q_real, p, p_real = data
    start = model.spec.text.query_tokens if model.spec.positions == "offset" else 0
    x = torch.cat(
        [
            net.embed("query", q, positions(q_real)),
            net.embed("passage", p, positions(p_real) + start),
        ],
        1,
    )
    real = torch.cat([q_real, p_real], 1)
    block = torch.cat([torch.zeros_like(q), torch.ones_like(p)], 1)
    lower = Frame(torch.cat([positions(q_real), positions(p_real) + start], 1), real, block)
    lower.passage = q.shape[1]
    x = net.stack(x, lower, first=0, last=k)
    first = start if start else q_real.sum(1, keepdim=True)
    upper = Frame(torch.cat([positions(q_real), positions(p_real) + first], 1), real)
    upper.passage = q.shape[1]
    if any(one.pooling == "last" for one in model.spec.heads):
        row = last_first(upper)  # before the frame forgets where the rows were
        upper.segment_BT = upper.segments().gather(1, row)
        upper.position_BT = upper.position_BT.gather(1, row)
        x = x.gather(1, row[..., None].expand_as(x))
    query = q.shape[1]
    y = net.stack(x, upper, first=k, rows=ALL)
    return net.read(y, real, ALL, query, [head])[head]


@pytest.mark.parametrize("head", ["rank", "span"])
@pytest.mark.parametrize("where", ["restart", "offset"])
def test_split_equals_block_diagonal_joint_model(model, family, head, where):
    whole = model(family, head)
    data = batch()
    for k in range(1, len(whole.spec.layers) + 1):
        split = Model.split(whole, at=k, positions=where)
        split.net.double()
        got, expected = logits(split, data, head), masked_joint(split, data, head)
        real = torch.cat([torch.ones_like(data[3][:, :1]), data[3]], 1) if head == "span" else ...
        assert (got[real] - expected[real]).abs().max() < 1e-11, f"{family} k={k}"


def test_split_equals_masked_transformers_model(checkpoint):
    """The same invariant against code that is not ours: BERT's own layers, masked by hand."""
    import transformers

    folder = checkpoint("bert", "rank", num_hidden_layers=4)
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    q, _, p, _ = data = batch(queries=(6, 6), passages=(11, 11))
    ids = torch.cat([q, p], 1)
    types = torch.cat([torch.zeros_like(q), torch.ones_like(p)], 1)
    place = torch.cat([torch.arange(6), torch.arange(11)]).expand(2, -1)
    allowed = torch.block_diag(torch.ones(6, 6), torch.ones(11, 11))
    mask = torch.where(allowed.bool(), 0.0, torch.finfo(torch.float32).min)[None, None]
    for k in range(5):
        with torch.inference_mode():
            x = theirs.bert.embeddings(input_ids=ids, token_type_ids=types, position_ids=place)
            for number, layer in enumerate(theirs.bert.encoder.layer):
                out = layer(x, attention_mask=mask if number < k else None)
                x = out[0] if isinstance(out, tuple) else out
            expected = theirs.classifier(theirs.bert.pooler(x))
        ours = Model.split(folder, at=k, positions="restart")
        assert (logits(ours, data, "rank") - expected).abs().max() < 1e-4, f"k={k}"


@pytest.mark.parametrize("k", [0, 1, 3])
def test_states_ignore_batch_mates_and_padding(model, family, k):
    whole = model(family, "rank")
    net = Model.split(whole, at=k, positions="restart").net
    _, _, ids, real = batch()
    with torch.inference_mode():
        together, mean = net.input("passage", ids, real)
        wide, _ = net.input(
            "passage", torch.nn.functional.pad(ids, (0, 8)), torch.nn.functional.pad(real, (0, 8))
        )
        for row in range(len(ids)):
            length = int(real[row].sum())
            alone, vector = net.input(
                "passage", ids[row : row + 1, :length], real[row : row + 1, :length]
            )
            assert (together[row, :length] - alone[0]).abs().max() < 2e-5
            assert (mean[row] - vector[0]).abs().max() < 2e-5
            assert (wide[row, :length] - alone[0]).abs().max() < 2e-5


def test_full_depth_split_makes_the_query_independent_of_the_passage(model, family):
    whole = model(family, "rank")
    split = Model.split(whole, at=len(whole.spec.layers))
    q, q_real, p, p_real = batch()
    other = batch(seed=1)
    first = logits(split, (q, q_real, p, p_real), "rank")
    mixed = [(q, q_real, *other[2:]), (*other[:2], p, p_real)]
    if family == "xlnet":  # whose head reads the end of the passage
        mixed.reverse()
    assert torch.equal(first, logits(split, mixed[0], "rank"))
    assert not torch.allclose(first, logits(split, mixed[1], "rank"), atol=1e-3)


def test_a_gap_of_padding_between_query_and_passage_changes_nothing(model, family):
    split = Model.split(model(family, "span"), at=2)
    q, q_real, p, p_real = batch(queries=(5, 5, 5))
    gap = torch.nn.functional.pad
    compact = logits(split, (q, q_real, p, p_real), "span")
    padded = logits(split, (gap(q, (0, 6)), gap(q_real, (0, 6)), p, p_real), "span")
    for row, length in enumerate(p_real.sum(1).tolist()):
        assert (compact - padded)[row, : 1 + length].abs().max() < 2e-5


def test_zero_cross_tables_equal_no_tables(model):
    for family in ("bert", "roberta", "electra", "albert"):
        whole = model(family, "rank")
        plain = Model.split(whole, at=2)
        tables = Model.split(whole, at=2, cross_embed="add")
        copied = logits(tables, batch(), "rank")
        assert not torch.allclose(copied, logits(plain, batch(), "rank"), atol=1e-3)
        with torch.no_grad():
            tables.net.cross_embedding.positions.weight.zero_()
            tables.net.cross_embedding.segments.weight.zero_()
        assert torch.equal(logits(tables, batch(), "rank"), logits(plain, batch(), "rank"))


def test_cross_tables_start_as_copies_of_the_input_tables(model):
    net = Model.split(model("bert", "rank"), at=2, cross_embed="add_ln").net
    assert torch.equal(net.cross_embedding.positions.weight, net.embedding.positions.weight)
    assert torch.equal(net.cross_embedding.segments.weight, net.embedding.types.weight)


@pytest.mark.parametrize("head", ["rank", "span", "classes", "choice"])
def test_computing_only_the_rows_that_a_head_reads_is_exact(model, family, head):
    whole = model(family, head)
    q, q_real, p, p_real = data = batch()
    for k in (0, 2):
        split = Model.split(whole, at=k)
        with torch.inference_mode():
            length = q_real.sum(1, keepdim=True)
            query, _ = split.net.input("query", q, q_real)
            passage, _ = split.net.input("passage", p, p_real, query_length=length)
            x, frame = split.net.join(query, q_real, passage, p_real)
            y = split.net.stack(x, frame, rows=ALL, first=k)
            full = split.net.read(y, frame.real_BT, ALL, q.shape[1], [head])[head]
        lean = logits(split, data, head)
        real = torch.cat([torch.ones_like(p_real[:, :1]), p_real], 1) if head == "span" else ...
        assert (lean[real] - full[real]).abs().max() < 2e-5


def test_heads_read_only_their_rows(model):
    spec = model("bert", "span").spec
    assert rows_needed([spec.head("span")], 7) == (slice(0, 1), slice(7, None))
    assert rows_needed([model("bert", "rank").spec.head("rank")], 7) == (slice(0, 1),)
    mean = model("modernbert", "rank", classifier_pooling="mean").spec.head("rank")
    assert rows_needed([mean], 7) == ALL


def test_several_heads_over_one_cross_component(model):
    span = model("bert", "span")
    both = span.with_heads(model("bert", "rank").spec.head("rank"), seed=3)
    q, q_real, p, p_real = data = batch()
    split = Model.split(both, at=2)
    with torch.inference_mode():
        query, _ = split.net.input("query", q, q_real)
        passage, _ = split.net.input("passage", p, p_real)
        out = split.net.cross(query, q_real, passage, p_real, heads=["rank", "span"])
    assert out["rank"].shape == (3, 1) and out["span"].shape == (3, 1 + p.shape[1], 2)
    assert torch.allclose(out["span"], logits(Model.split(span, at=2), data, "span"), atol=1e-5)
    assert torch.allclose(out["rank"], logits(split, data, "rank"), atol=1e-5)


def test_frozen_passages_move_only_the_query(model):
    """One-way layers: with every passage row masked away they are query self-attention."""
    whole = model("bert", "rank")
    one_way = Model.split(whole, at=1, one_way="auto")
    assert one_way.spec.one_way == (2, 3) and one_way.history[-1]["one_way"] == [2, 3]
    exact = Model.split(whole, at=1)
    data = batch()
    assert not torch.allclose(logits(one_way, data, "rank"), logits(exact, data, "rank"), atol=1e-3)
    q, q_real, p, p_real = data
    nothing = torch.zeros_like(p_real)
    got = logits(one_way, (q, q_real, p, nothing), "rank")
    alone = logits(exact, (q, q_real, p[:, :1], nothing[:, :1]), "rank")
    assert torch.allclose(got, alone, atol=1e-5)


def test_one_way_layers_keep_the_weights_and_leave_with_the_next_split(model):
    exact = Model.split(model("bert", "rank"), at=1)
    one_way = Model.split(exact, at=1, one_way=[2])
    assert one_way.spec.one_way == (2,)
    before, after = exact.net.state_dict(), one_way.net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert one_way.fingerprint == exact.fingerprint  # so an index of one serves the other
    assert Model.split(one_way, at=1).spec == exact.spec
    assert Model.split(one_way, at=0).spec == model("bert", "rank").spec


def test_the_first_row_alone_equals_the_first_row_of_all(model, family):
    """The last one-way layer computes the row that the head reads, and no other."""
    if family == "xlnet":
        with pytest.raises(SpecError, match="the head reads the last row of the passage"):
            Model.split(model(family, "rank"), at=1, one_way="auto")
        return
    one_way = Model.split(model(family, "rank"), at=1, one_way="auto")
    q, q_real, p, p_real = batch()
    net = one_way.net
    with torch.inference_mode():
        query, _ = net.input("query", q, q_real)
        passage, _ = net.input("passage", p, p_real)
        x, frame = net.join(query, q_real, passage, p_real)
        width = q.shape[1]
        whole = net.stack(x, frame, first=1, query=width)
        first = net.stack(x, frame, rows=(slice(0, 1),), first=1, query=width)
    assert torch.allclose(first, whole[:, :1], atol=1e-5)
    last = len(one_way.spec.layers)
    if one_way.spec.encoder.final_norm is None:
        assert torch.equal(whole[:, width:], x[:, width:]), f"layers 2..{last} moved a passage row"


def test_a_span_head_needs_a_last_layer_that_advances(model):
    spans = model("bert", "span")
    assert Model.split(spans, at=1, one_way="auto").spec.one_way == (2,)
    with pytest.raises(SpecError, match=r"the last layer \(3\) is one-way, but the span head"):
        Model.split(spans, at=1, one_way=[2, 3])
    with pytest.raises(SpecError, match="split 2 of 3 leaves no layer that can be one-way"):
        Model.split(spans, at=2, one_way="auto")
    with pytest.raises(SpecError, match=r"layer 1 cannot be one-way: .* choose 2..3"):
        Model.split(spans, at=1, one_way=[1])
    with pytest.raises(SpecError, match=r"a joint model \(split 0\) stores none; split it first"):
        Model.split(spans, at=0, one_way="auto")
    rank = Model.split(model("bert", "rank"), at=1, one_way="auto")
    with pytest.raises(SpecError, match="let that layer advance"):
        rank.with_heads(HeadSpec(kind="span"))


@pytest.mark.parametrize(("at", "count"), [(13, 3), (-1, 3), (4, 3)])
def test_a_split_outside_the_layers_says_what_there_is(model, at, count):
    with pytest.raises(
        SpecError, match=f"split={at}, but the encoder has {count} layers; choose 0..{count}"
    ):
        Model.split(model("bert", "rank"), at=at)


def test_a_shorter_window_takes_its_stride_along(model):
    whole = model("bert", "rank")
    text = Model.split(whole, at=1, passage_tokens=9).spec.text
    assert (text.passage_tokens, text.stride) == (9, 8)
    assert Model.split(whole, at=1, passage_tokens=9, stride=3).spec.text.stride == 3
    with pytest.raises(SpecError, match="passage_tokens=0, but 1 of a window are special tokens"):
        Model.split(whole, at=1, passage_tokens=0)
    with pytest.raises(SpecError, match=r"stride=0, but a window of 9 tokens .* choose 1..8"):
        Model.split(whole, at=1, passage_tokens=9, stride=0)


def test_joint_positions_need_split_0(model):
    with pytest.raises(SpecError, match="positions='joint' at split=1"):
        Model.split(model("bert", "rank"), at=1, positions="joint")


def test_cross_tables_need_a_position_table(model):
    with pytest.raises(SpecError, match="modernbert encoder has none; choose 'none'"):
        Model.split(model("modernbert", "rank"), at=1, cross_embed="add")
