"""A memory of the windows before: window by window as published, and what stored passages need of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import decoupled as dc
from decoupled.errors import InputError, SpecError
from decoupled.index.encode import encode_windows
from decoupled.measure.counts import parameters, work
from decoupled.measure.pairs import Pair, Span
from decoupled.methods.compressive.module import CompressiveAttention
from decoupled.methods.compressive.part import BUCKETS, Compressive
from decoupled.methods.method import apply
from decoupled.methods.names import parse
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
from decoupled.train.data.prepare import prepare
from decoupled.train.evaluate import answers
from decoupled.train.recipe import Distillation, Optimiser, Recipe, Weights
from toy import MORE, PLACES

WIDTH, HEADS, TOKENS = 12, 3, 6
WAYS = ("mean", "max", "conv", "most-used")


def built(rotary=None, **options) -> tuple[Compressive, CompressiveAttention]:
    kind = Compressive(heads=HEADS, head_width=WIDTH // HEADS, rotary=rotary, **options)
    torch.manual_seed(0)
    module = build_attention(kind, width=WIDTH, dropout=0.0, linear=WHOLE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return kind, module.double().eval()


def context_of(kind, real, before=None) -> Context:
    layer = LayerSpec(attention=kind, ffn=FeedForwardSpec(width=4), attention_slot=0, ffn_slot=0)
    frame = Frame((real.long().cumsum(1) - 1).clamp(min=0), real)
    frame.before_B = before
    return Context(number=0, layer=layer, frame=frame, rows=ALL)


def chain(*counts: int) -> torch.Tensor:
    """Windows of texts of so many, one after the other."""
    return torch.tensor([n if i else -1 for n, i in _chained(counts)])


def _chained(counts):
    number = 0
    for count in counts:
        for i in range(count):
            yield number - 1, i
            number += 1


def all_real(batch: int, tokens: int = TOKENS) -> torch.Tensor:
    return torch.ones(batch, tokens, dtype=torch.bool)


def squeezed(module, kind, x, used):
    """One window's compressed states and their places, group by group."""
    groups = [range(i, min(i + kind.rate, len(x))) for i in range(0, len(x), kind.rate)]
    if kind.compress == "most-used":
        kept = sorted(sorted(range(len(x)), key=lambda t: -used[t])[: len(groups)])
        return [x[t] for t in kept], kept
    states = []
    for group in groups:
        rows = [x[t] for t in group]
        if kind.compress == "conv":
            filled = rows + [torch.zeros_like(rows[0])] * (kind.rate - len(rows))
            states.append(module.compress(torch.cat(filled)))
        else:
            stack = torch.stack(rows)
            states.append(stack.mean(0) if kind.compress == "mean" else stack.amax(0))
    return states, [(n + 0.5) * kind.rate - 0.5 for n in range(len(groups))]


def one_by_one(module, kind, windows):
    """As published: read a window, put it into the memory, compress what leaves that, forget the oldest."""
    memory, compressed, outputs = [], [], []
    for x in windows:
        seen = [(state, gap) for kept in (compressed, memory) for state, gap, _ in kept]
        states = torch.stack([*x, *(state for state, _ in seen)])
        q, k, v = (
            part(states).view(len(states), HEADS, -1).transpose(0, 1)
            for part in (module.query, module.key, module.value)
        )
        scores = q[:, : len(x)] @ k.mT / (WIDTH // HEADS) ** 0.5
        if kind.relative_positions:
            scores = transformer_xl(module, q[:, : len(x)], k)
        else:
            for column, (_, gap) in enumerate(seen, len(x)):
                scores[..., column] += module.distance[:, min(int(np.log2(gap)), BUCKETS - 1), None]
        y = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        outputs.append(module.out(y))
        # What the memory is used, without what is compressed.
        old = len(compressed)
        plain = q[:, : len(x)] @ k.mT / (WIDTH // HEADS) ** 0.5
        plain[..., len(x) : len(x) + old] = -torch.inf
        paid = plain.softmax(-1).sum((0, 1))[len(x) + old :]
        for entry, share in zip(memory, paid.tolist(), strict=True):
            entry[2][0] += share
        memory = [*memory, *([state, -place, [0.0]] for place, state in enumerate(x))]
        compressed, memory = (
            [[state, gap + len(x), used] for state, gap, used in kept]
            for kept in (compressed, memory)
        )
        while len(memory) > kind.memory * TOKENS:
            leaving, memory = memory[:TOKENS], memory[TOKENS:]
            states, places = squeezed(
                module, kind, torch.stack([s for s, _, _ in leaving]), [u[0] for _, _, u in leaving]
            )
            first = leaving[0][1]
            compressed += [[s, first - p, [0.0]] for s, p in zip(states, places, strict=True)]
        slots = kind.compressed * -(-TOKENS // kind.rate)
        compressed = compressed[-slots:] if slots else []
    return torch.stack(outputs)


def transformer_xl(module, q, k):
    """Scores of [h; cm; m], as published: content, and distances along [cm; m; h], one pair at a time."""
    own, keys, scores = q.shape[1], k.shape[1], torch.zeros(HEADS, q.shape[1], k.shape[1]).double()
    for i in range(own):
        for j in range(keys):
            at = keys - own + j if j < own else j - own
            angle = (keys - own + i - at) * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
            r = module.steps(torch.cat([angle.sin(), angle.cos()]).double()).view(HEADS, -1)
            content = ((q[:, i] + module.content) * k[:, j]).sum(-1)
            scores[:, i, j] = content + ((q[:, i] + module.place) * r).sum(-1)
    return scores / (WIDTH // HEADS) ** 0.5


@pytest.mark.parametrize("positions", ["buckets", "relative"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("memory", "compressed", "rate"), [(1, 1, 2), (1, 2, 4), (2, 1, 3)])
def test_all_windows_at_once_are_as_if_read_one_by_one(way, memory, compressed, rate, positions):
    options = {"memory": memory, "compressed": compressed, "rate": rate, "positions": positions}
    kind, module = built(compress=way, **options)
    x = torch.randn(6, TOKENS, WIDTH, dtype=torch.float64)
    found = module(x, context_of(kind, all_real(6), chain(6)))
    # Sinusoids are in single precision.
    near = 1e-5 if kind.relative_positions else 1e-12
    assert (found - one_by_one(module, kind, x)).abs().max() < near
    alone = module(x, context_of(kind, all_real(6)))
    assert (found[0] - alone[0]).abs().max() < 1e-12
    assert (found[1:] - alone[1:]).abs().amax((1, 2)).min() > 1e-3, "a window forgets"


def test_a_memory_of_whole_windows_alone_is_transformer_xl():
    kind, module = built(memory=2, compressed=0)
    x = torch.randn(5, TOKENS, WIDTH, dtype=torch.float64)
    found = module(x, context_of(kind, all_real(5), chain(5)))
    assert (found - one_by_one(module, kind, x)).abs().max() < 1e-12
    # One state for each token, by a convolution that leaves it as it is, is more memory.
    same, other = built(memory=1, compressed=1, rate=1, compress="conv")
    other.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        other.compress.weight.copy_(torch.eye(WIDTH))
        other.compress.bias.zero_()
    context = context_of(same, all_real(5), chain(5))
    assert (other(x, context) - found).abs().max() < 1e-12
    assert other.reconstruction(x, context.frame, same) < 1e-20


def test_without_a_window_before_it_is_dot_product_attention():
    kind, module = built()
    plain = SelfAttention(heads=HEADS, head_width=WIDTH // HEADS)
    other = build_attention(plain, width=WIDTH, dropout=0.0, linear=WHOLE).double().eval()
    other.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    expected = other(x, context_of(plain, all_real(2)))
    for before in (None, torch.tensor([-1, -1])):
        assert (module(x, context_of(kind, all_real(2), before)) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("positions", ["buckets", "relative"])
@pytest.mark.parametrize("way", WAYS)
def test_padding_batch_mates_and_what_comes_later_change_nothing(way, positions):
    kind, module = built(memory=1, compressed=1, rate=4, compress=way, positions=positions)
    x = torch.randn(7, TOKENS + 3, WIDTH, dtype=torch.float64)
    real = torch.arange(TOKENS + 3) < torch.tensor([6, 6, 6, 2, 6, 6, 5])[:, None]
    found = module(x, context_of(kind, real, chain(4, 3)))
    for rows, order in (([0, 1, 2, 3], chain(4)), ([4, 5, 6], chain(3)), ([0, 1, 2], chain(3))):
        alone = module(x[rows][:, :TOKENS], context_of(kind, real[rows][:, :TOKENS], order))
        kept = real[rows][:, :TOKENS]
        assert (found[rows][:, :TOKENS][kept] - alone[kept]).abs().max() < 1e-12


@pytest.mark.parametrize("way", WAYS)
def test_rotary_positions_count_along_the_memory(way):
    """One window of twelve tokens sees what two of six see of each other."""
    kind, module = built(memory=1, compressed=int(way != "mean"), compress=way, rotary=100.0)
    torch.nn.init.zeros_(module.distance)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    whole = SelfAttention(heads=HEADS, head_width=WIDTH // HEADS, rotary=100.0)
    other = build_attention(whole, width=WIDTH, dropout=0.0, linear=WHOLE).double().eval()
    other.load_state_dict(module.state_dict(), strict=False)
    expected = other(x.flatten(0, 1)[None], context_of(whole, all_real(1, 2 * TOKENS)))[0, TOKENS:]
    found = module(x, context_of(kind, all_real(2), chain(2)))[1]
    assert (found - expected).abs().max() < 1e-6  # angles are in single precision


def test_relative_positions_go_on_through_the_memory():
    """Two windows of six score each other as one of twelve does, and begin as attention without them."""
    kind, module = built(memory=1, compressed=0, positions="relative")
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    whole = module(x.flatten(0, 1)[None], context_of(kind, all_real(1, 2 * TOKENS)))[0, TOKENS:]
    context = context_of(kind, all_real(2), chain(2))
    assert (module(x, context)[1] - whole).abs().max() < 1e-12
    for name in ("steps.weight", "content", "place"):
        parameter = module.get_parameter(name)
        kept = parameter.detach().clone()
        torch.nn.init.zeros_(parameter)
        assert (module(x, context)[1] - whole).abs().max() > 1e-3, name
        parameter.data.copy_(kept)
    torch.manual_seed(0)
    fresh = build_attention(kind, width=WIDTH, dropout=0.0, linear=WHOLE).double().eval()
    plain = SelfAttention(heads=HEADS, head_width=WIDTH // HEADS)
    other = build_attention(plain, width=WIDTH, dropout=0.0, linear=WHOLE).double().eval()
    other.load_state_dict(fresh.state_dict(), strict=False)
    expected = other(x, context_of(plain, all_real(2)))
    assert (fresh(x, context_of(kind, all_real(2))) - expected).abs().max() < 1e-12


def test_equal_rows_of_a_group_lose_nothing_and_the_trunk_does_not_learn_from_the_rest():
    kind, module = built(memory=1, compressed=1, rate=2, compress="conv")
    with torch.no_grad():
        module.compress.weight.copy_(torch.eye(WIDTH).repeat(1, 2) / 2)
        module.compress.bias.zero_()
    x = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    frame = context_of(kind, all_real(4), chain(4)).frame
    twice = x.detach()[:, ::2].repeat_interleave(2, 1)
    assert module.reconstruction(twice, frame, kind) < 1e-20
    loss = module.reconstruction(x, frame, kind)
    assert loss > 1e-4
    loss.backward()
    assert x.grad is None
    assert {n for n, p in module.named_parameters() if p.grad is not None} == {
        "compress.weight",
        "compress.bias",
    }


def test_no_gradient_flows_into_a_memory_that_stops_it():
    x, seen = torch.randn(4, TOKENS, WIDTH).double().requires_grad_(), {}
    for stop in (False, True):
        kind, module = built(memory=1, compressed=2, rate=2, compress="conv", stop=stop)
        y = module.eval()(x, context_of(kind, all_real(4), chain(4)))
        x.grad = None
        y[3].square().sum().backward()
        reached = x.grad.abs().amax((1, 2)) > 0
        assert reached.tolist() == [not stop] * 3 + [True]
        for part in (module.key, module.value):
            assert part.weight.grad.abs().max() > 0
        convolved = module.compress.weight.grad
        assert (convolved is None or not convolved.any()) == stop
        seen[stop] = y.detach()
    assert torch.equal(*seen.values()), "what is seen stays as it was"


def test_training_adds_the_reconstruction_to_whatever_loss_there_is():
    kind, module = built(memory=1, compressed=1, rate=2, compress="conv")
    x, context = torch.randn(4, TOKENS, WIDTH).double(), context_of(kind, all_real(4), chain(4))
    grads = {}
    for training in (False, True):
        module.train(training).zero_grad()
        module(x, context).square().sum().backward()
        grads[training] = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.zero_grad()
    module.reconstruction(x, context.frame, kind).backward()
    for name, parameter in module.named_parameters():
        more = torch.zeros(()) if parameter.grad is None else parameter.grad
        assert torch.allclose(grads[True][name], grads[False][name] + more), name


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"memory": 0, "compressed": 0}, "memory=0 and compressed=0 windows; .*1 or more in all"),
        ({"memory": -1}, "memory=-1 .*choose 0 or more"),
        ({"rate": 0}, "rate=0 tokens .*choose 1 or more"),
        ({"memory": 0, "compress": "most-used"}, "most-used keeps .*choose memory=1"),
        (
            {"rotary": 1e4, "positions": "relative"},
            "know distances already; choose positions=buckets",
        ),
    ],
)
def test_what_cannot_be_remembered_is_refused(options, why):
    with pytest.raises(SpecError, match=why):
        Compressive(heads=1, head_width=4, **options)


# In a model ---------------------------------------------------------------------------------------


def text_of(seed: int, words: int = 40) -> str:
    draw = np.random.default_rng(seed)
    return " ".join(draw.choice((*PLACES, *MORE), words))


@pytest.fixture(scope="module", params=["buckets", "relative"])
def remembering(model, request) -> Model:
    """A tiny model at split 2 with windows of 9 tokens, each of which looks back at two."""
    whole = Model.split(model("bert", "span"), at=2)
    how = f"compressive:tokens=9,compress=conv,rate=2,positions={request.param}"
    made = apply(whole, parse(how))
    for name, parameter in made.net.named_parameters():
        if name.endswith(("distance", "content", "place", "steps.weight")):
            torch.nn.init.normal_(parameter, std=0.5)
    return made


def test_a_text_decides_its_states_whatever_it_is_encoded_with(remembering):
    runtime = TorchRuntime(remembering)
    split = runtime.tokenizer.windows([text_of(0), text_of(1, 2), text_of(2)])
    assert [len(windows) for windows in split][1] == 1
    assert len(split[0]) > remembering.spec.memory_windows + 2
    together = encode_windows(runtime, split)
    pieces = encode_windows(runtime, split, budget=20)  # two windows at a time, and those before
    assert np.abs(together.states.values - pieces.states.values).max() < 1e-5
    assert np.abs(together.vectors - pieces.vectors).max() < 1e-5
    alone = encode_windows(runtime, split[2:]).states.values
    assert np.abs(together.states.values[-len(alone) :] - alone).max() < 1e-5
    first = encode_windows(runtime, [split[2][:3]]).states.values
    assert np.abs(alone[: len(first)] - first).max() < 1e-5, "it knows what comes later"
    apart = encode_windows(runtime, [[window] for window in split[2]]).states.values
    assert np.abs(alone - apart).max() > 1e-2, "it remembers nothing"


def test_stored_is_direct_and_a_changed_beginning_changes_what_follows(remembering, tmp_path):
    passages = [Passage(id=f"{n}", text=text_of(n)) for n in range(3)]
    with dc.Index.create(tmp_path / "i", remembering, codec="fp32") as index:
        index.add(passages[:1])
        index.add(passages)  # another part, in which the first is passed over
        engine = dc.Engine(index)
        stored = engine.ask("river", k=3, ids=[p.id for p in passages])
        given = dc.Engine(remembering).ask("river", k=3, texts=passages)
        for one, other in zip(stored, given, strict=True):
            assert (one.text, one.passage_id) == (other.text, other.passage_id)
            assert one.score == pytest.approx(other.score, abs=1e-5)
        last = np.asarray(_states(index, "0")[-1])
        index.add([replace(passages[0], text="castle castle castle " + passages[0].text)])
        index.add([passages[0]])
        assert np.array_equal(_states(index, "0")[-1], last)
        same_end = "castle" + passages[0].text[passages[0].text.index(" ") :]
        index.add([replace(passages[0], text=same_end)])
        back = remembering.spec.memory_windows
        assert not np.array_equal(_states(index, "0")[back - 1], last[: len(last)])


def test_documents_stay_whole_for_a_model_that_remembers(remembering, tmp_path):
    remembering.save(tmp_path / "m")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text(text_of(0, 300))
    options = {"model": tmp_path / "m", "codec": "fp32", "runtime": "torch"}
    built = dc.build_index([str(tmp_path / "docs")], tmp_path / "i", **options)
    assert built.passages == 1
    cut = dc.build_index([str(tmp_path / "docs")], tmp_path / "cut", chunk=7, **options)
    assert cut.passages > 30, "a size that is given is meant"
    with dc.Index.open(tmp_path / "i", runtime="torch") as index:
        stored = np.concatenate(_states(index, next(iter(_ids(index)))))
        split = index.runtime.tokenizer.windows([text_of(0, 300)])
        direct = encode_windows(index.runtime, split).states.values
    assert len(split[0]) > 30
    assert np.abs(stored.view(np.float32) - direct).max() < 1e-5


def _ids(index):
    return {excerpt.id for excerpt in index.refresh().texts(np.arange(1))}


def _states(index, name):
    snapshot = index.refresh()
    return list(snapshot.states(snapshot.locate([name])))


def test_the_memory_joins_the_fingerprint_and_runs_in_torch(remembering, tmp_path):
    assert from_json(ModelSpec, to_json(remembering.spec)) == remembering.spec
    layer = remembering.spec.layers[0]
    longer = replace(layer, attention=replace(layer.attention, memory=2))
    encoder = replace(remembering.spec.encoder, layers=(longer, *remembering.spec.layers[1:]))
    other = remembering.rebuild(replace(remembering.spec, encoder=encoder), {})
    assert other.fingerprint != remembering.fingerprint
    assert set(other.tensors()) == set(remembering.tensors())
    remembering.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").fingerprint == remembering.fingerprint
    with pytest.raises(InputError, match=r"openvino runtime \(it lacks compressive attention\)"):
        open_runtime(tmp_path / "m", name="openvino")


def test_parameters_and_multiplications_are_those_that_torch_counts(model, remembering):
    spec = remembering.spec
    plain = Model.split(model("bert", "span"), at=2).spec
    width, kind = spec.encoder.width, spec.layers[0].attention
    relative = kind.relative_positions
    far = width**2 + 2 * width if relative else kind.heads * BUCKETS
    more = 2 * (2 * width**2 + width + far)
    assert parameters(spec).total - parameters(plain).total == more
    tokens, windows = 8, 7
    ids, real = torch.full((windows, tokens), 5), all_real(windows, tokens)
    math = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), math, FlopCounterMode(display=False) as counter:
        remembering.net.input("passage", ids, real, before_B=chain(windows))
    # The vectors of distances are made once for all windows, and counted for each.
    steps = 2 * tokens - 1 + kind.memory * tokens + kind.compressed * -(-tokens // kind.rate)
    again = spec.split * (windows - 1) * steps * width**2 if relative else 0
    counted = windows * work(spec, query=3, passage=tokens).passage - again
    assert counter.get_total_flops() == 2 * counted


def test_every_family_remembers_or_says_why_not(model, family):
    whole = Model.split(model(family, "rank"), at=1)
    whys = {"deberta-v2": "disentangled attention", "albert": "shares attention slot"}
    whys |= {"mpnet": "bucketed attention", "xlnet": "segmented attention"}
    if why := whys.get(family):
        with pytest.raises(SpecError, match=why):
            apply(whole, parse("compressive:tokens=12"))
        return
    made = apply(whole, parse("compressive:tokens=12,compress=max"))
    runtime = TorchRuntime(made)
    split = runtime.tokenizer.windows([text_of(3)])
    found = encode_windows(runtime, split).states.values
    apart = encode_windows(runtime, [[window] for window in split[0]]).states.values
    first = len(split[0][0].ids)
    assert np.abs(found[:first] - apart[:first]).max() < 1e-5
    assert np.abs(found - apart).max() > 1e-4


def test_what_has_no_input_component_or_no_room_is_refused(model):
    joint = model("bert", "span")
    with pytest.raises(SpecError, match=r"joint model .*split it first"):
        apply(joint, parse("compressive"))
    with pytest.raises(SpecError, match=r"tokens=5000 of a window; choose 2\.\."):
        apply(Model.split(joint, at=1), parse("compressive:tokens=5000"))


def test_training_and_judging_read_the_windows_before(remembering):
    pairs = []
    for n in range(8):
        text = text_of(n)
        at = text.rindex(" ") + 1
        span = Span(text=text[at:], start=at)
        pairs.append(Pair(query="river", passage=text, answers=(span,), id=f"{n}", group=f"{n}"))
    ready = prepare(pairs, remembering, "squad", train=False)
    examples = ready.examples(remembering)
    modules, runtime = remembering.net, TorchRuntime(remembering)
    found = [answers(net, examples, ready.task) for net in (modules, runtime)]
    assert found[0].best == pytest.approx(found[1].best, abs=1e-4)
    assert found[0].null == pytest.approx(found[1].null, abs=1e-4)
    recipe = Recipe(
        optimiser=Optimiser(epochs=1, batch=4),
        settings=Distillation(weights=Weights(kd=1, lrs=1)),
        precision="fp32",
    )
    after = dc.distill(remembering, data=pairs, task="squad", recipe=recipe)
    far = ("content", "place", "steps.weight")
    relative = remembering.spec.layers[0].attention.relative_positions
    for part in (*(far if relative else ("distance",)), "compress.weight"):
        name = f"stack.attention.0.attention.{part}"
        assert not np.array_equal(after.tensors()[name], remembering.tensors()[name]), part
