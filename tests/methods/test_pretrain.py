"""Pre-training: what each objective hides and asks, and runs that learn, go on and are used."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import decoupled as dc
from decoupled.errors import InputError, OptionError
from decoupled.methods.pretrain import masking
from decoupled.methods.pretrain.corpus import Corpus, pieces_of
from decoupled.methods.pretrain.electra import detection, exchanged
from decoupled.methods.pretrain.gazetteer import Gazetteer, made_gazetteer, read_gazetteer
from decoupled.methods.pretrain.masking import mask_token
from decoupled.methods.pretrain.mlm import cross_entropy, in_slices
from decoupled.methods.pretrain.segments import following, ordered, texts, three_ways
from decoupled.methods.pretrain.settings import PRETRAIN, pretrain_recipe
from decoupled.methods.pretrain.texts import TextBatches
from decoupled.model.model import Model
from decoupled.model.tokens import Passage
from decoupled.train.objectives.base import objective_named
from decoupled.train.recipe import override

CPU = torch.device("cpu")
TOPICS = ("river castle king bridge", "moon star ship tower", "wall lake forest island")


def passages(count: int = 24, sentences: int = 6, seed: int = 0) -> list[Passage]:
    """Documents of a topic each: a bag of words tells them apart, and the order of a text does not."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        words = TOPICS[number % len(TOPICS)].split()
        said = (" ".join(draw.choices(words, k=draw.randint(3, 7))) for _ in range(sentences))
        text = " ".join(f"{sentence.capitalize()}." for sentence in said)
        made.append(Passage(id=str(number), text=text, title=words[number % 2]))
    return made


@pytest.fixture(scope="module")
def bare(model) -> Model:
    return model("bert", "bare")


@pytest.fixture(scope="module")
def corpus(bare) -> Corpus:
    return Corpus.read(passages(), bare.tokenizer)


def words_of(corpus: Corpus, row, side: int) -> list[int]:
    start, length = row[2 * side : 2 * side + 2]
    return corpus.ids[start : start + length].tolist()


# TextBatches and pairs ----------------------------------------------------------------------------------


def test_a_corpus_keeps_words_sentences_and_documents(bare):
    listed = passages(3)
    found = Corpus.read(listed, bare.tokenizer)
    assert len(found) == 3
    assert np.diff(found.documents).tolist() == [7, 7, 7]  # the title is a sentence too
    joined = [ids for p in listed for ids, _ in pieces_of(bare.tokenizer, [f"{p.title}.", p.text])]
    assert found.ids.tolist() == [token for ids in joined for token in ids]
    assert found.begins[found.sentences[:-1]].all()
    part = found.take([2, 0])
    assert part.ids.tolist() == [t for n in (4, 5, 0, 1) for t in joined[n]]
    taught, held = found.divide(0.01, 2000, 0)
    assert (len(taught), len(held)) == (2, 1)


def test_texts_hold_every_token_once_and_no_two_documents(corpus):
    for seed in range(3):
        made = texts(corpus, 24, np.random.default_rng(seed))
        starts, lengths = made.rows[:, 0], made.rows[:, 1]
        covered = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
        )
        assert sorted(covered.tolist()) == list(range(len(corpus.ids)))
        document = np.searchsorted(
            corpus.sentences[corpus.documents], [starts, starts + lengths - 1], "right"
        )
        assert (document[0] == document[1]).all() and lengths.max() <= 24


@pytest.mark.parametrize("build", [following, ordered, three_ways])
def test_pairs_fit_and_repeat_by_seed(corpus, build):
    made, again = (build(corpus, 20, np.random.default_rng(3)) for _ in range(2))
    assert made.rows.tobytes() == again.rows.tobytes()
    assert made.label.tobytes() == again.label.tobytes()
    assert made.lengths.max() <= 20 and made.rows[:, [1, 3]].min() > 0
    assert build(corpus, 20, np.random.default_rng(4)).rows.tobytes() != made.rows.tobytes()


def follows(corpus: Corpus, row) -> bool:
    """Is the second stretch behind the first, in the same document?"""
    document = np.searchsorted(corpus.sentences[corpus.documents], [row[0], row[2]], "right")
    return document[0] == document[1] and row[0] < row[2]


def test_labels_say_what_the_pairs_are(corpus):
    draw = np.random.default_rng(0)
    pairs = ordered(corpus, 20, draw)
    assert [int(not follows(corpus, row)) for row in pairs.rows] == pairs.label.tolist()
    # Swapped, each pair has the other label, and everything else stays.
    swapped = pairs.rows[:, [2, 3, 0, 1]]
    assert [int(follows(corpus, row)) for row in swapped] == pairs.label.tolist()
    for row, label in zip(*_rows(following(corpus, 20, draw)), strict=True):
        assert follows(corpus, row) == (label == 0)
    for row, label in zip(*_rows(three_ways(corpus, 20, draw)), strict=True):
        back = follows(corpus, row[[2, 3, 0, 1]])
        assert (follows(corpus, row), back) == (label == 0, label == 1)


def _rows(segments):
    return segments.rows, segments.label.tolist()


def test_labels_are_balanced(bare):
    many = Corpus.read(passages(150), bare.tokenizer)
    for build, share in ((following, 1 / 2), (ordered, 1 / 2), (three_ways, 1 / 3)):
        label = build(many, 20, np.random.default_rng(0)).label
        sigma = (share * (1 - share) / len(label)) ** 0.5
        assert len(label) > 300
        assert abs((label == 1).mean() - share) < 3 * sigma


def test_a_bag_of_words_tells_next_sentences_and_not_their_order(bare):
    many = Corpus.read(passages(150), bare.tokenizer)

    def accuracy(build) -> float:
        """Of the best threshold for how many tokens the two have in common."""
        made = build(many, 40, np.random.default_rng(0))
        alike = np.asarray(
            [
                len(set(words_of(many, row, 0)) & set(words_of(many, row, 1)))
                / len(set(words_of(many, row, 1)))
                for row in made.rows
            ]
        )
        marks = [np.mean((alike < cut) == made.label) for cut in np.unique(alike)]
        return float(max(marks))

    assert accuracy(following) > 0.75
    assert accuracy(ordered) < 0.6


def test_a_corpus_without_pairs_is_refused(bare):
    alone = [Passage(id=str(n), text="One sentence.") for n in range(4)]
    with pytest.raises(InputError, match="two sentences"):
        ordered(Corpus.read(alone, bare.tokenizer), 20, np.random.default_rng(0))
    with pytest.raises(InputError, match="no text"):
        Corpus.read([Passage(id="1", text=" ")], bare.tokenizer)
    with pytest.raises(InputError, match="one document"):
        following(Corpus.read(passages(1), bare.tokenizer), 20, np.random.default_rng(0))


# What is hidden -----------------------------------------------------------------------------------


def batch_of(corpus, bare, build=texts, size=8):
    feed = TextBatches(corpus, build, CPU, text=bare.spec.text, tokens=32)
    return next(feed.walk(feed.epoch(0, 0, size=size, tokens=None)[:1]))


@pytest.mark.parametrize("words", [0, 1, 3])
def test_masks_are_whole_words_within_the_budget(corpus, bare, words):
    batch = batch_of(corpus, bare, ordered)
    draw = masking.generator(CPU, 0, words)
    chosen = masking.choose(batch.free, batch.begins, 0.15, draw, words=words)
    assert not (chosen & ~batch.free).any()
    count, budget = chosen.sum(1), (0.15 * batch.free.sum(1)).round().clamp(min=1)
    assert (count >= 1).all() and (count <= budget).all()
    special = {*bare.spec.text.query_prefix, *bare.spec.text.query_suffix, bare.spec.text.pad}
    assert not special & set(batch.ids[chosen].tolist())


def test_whole_words_go_together():
    begins = torch.tensor([[1, 0, 0, 1, 1, 0, 1, 0, 0, 0]], dtype=torch.bool).repeat(200, 1)
    free = torch.ones_like(begins)
    chosen = masking.choose(free, begins, 0.5, masking.generator(CPU, 1))
    for first, last in ((0, 3), (3, 4), (4, 6), (6, 10)):
        assert (chosen[:, first:last].all(1) == chosen[:, first:last].any(1)).all()
    assert (chosen.sum(1) <= 5).all() and chosen.any(0).all()
    # Neighbours fall together more often where spans of words are chosen.
    begins = torch.ones(400, 40, dtype=torch.bool)
    together = [
        (m := masking.choose(begins, begins, 0.3, masking.generator(CPU, 2), words=n))[:, 1:]
        .logical_and(m[:, :-1])
        .float()
        .mean()
        for n in (1, 3)
    ]
    assert together[1] > 1.3 * together[0]


def test_hidden_tokens_are_masked_exchanged_or_left():
    ids = torch.arange(100, 200).repeat(100, 1)
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen[:, ::2] = True
    seen = masking.hide(ids, chosen, masking.generator(CPU, 3), mask=4, vocab=1000)
    assert (seen[~chosen] == ids[~chosen]).all()
    masked, left = (seen[chosen] == 4).float().mean(), (seen == ids)[chosen].float().mean()
    assert abs(masked - 0.8) < 0.03 and abs(left - 0.1) < 0.02


def test_steps_hide_other_words_and_the_same_again(corpus, bare):
    batch = batch_of(corpus, bare)
    one, same, other = (
        masking.choose(batch.free, batch.begins, 0.15, masking.generator(CPU, 7, step))
        for step in (3, 3, 4)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("window", [2, 3, 5])
def test_shuffled_windows_can_be_put_in_order(corpus, bare, window):
    batch = batch_of(corpus, bare, ordered)
    chosen = masking.choose(batch.free, batch.begins, 0.15, masking.generator(CPU, 0))
    free = batch.free & ~chosen
    source, moved = masking.shuffle(free, 0.3, masking.generator(CPU, 1), window=window)
    assert moved.any() and not (moved & ~free).any() and not (moved & chosen).any()
    shuffled = batch.ids.gather(1, source)
    restored = torch.empty_like(shuffled).scatter(1, source, shuffled)
    assert torch.equal(restored, batch.ids)
    place = torch.arange(source.shape[1]).expand_as(source)
    assert torch.equal(source[~moved], place[~moved])
    assert (moved.sum(1) % window == 0).all()
    # In every window at least one token moves, and none leaves it.
    assert ((source - place).abs() < window).all()
    for row, places in zip(source, moved, strict=True):
        where = places.nonzero()[:, 0].view(-1, window)
        assert (row[where] != where).any(1).all()
        assert torch.equal(row[where].sort(1).values, where)


# Objectives ---------------------------------------------------------------------------------------


def goal_of(name: str, bare: Model, **changes):
    fields = {"precision": "fp32", **{f"pretraining.{n}": v for n, v in changes.items()}}
    recipe = override(PRETRAIN[name], fields)
    student = bare.rebuild(bare.spec, {})
    return objective_named(name)(student.net, recipe, mask=mask_token(bare.tokenizer))


@pytest.mark.parametrize("name", ["mlm", "nsp", "sop", "structbert", "electra"])
@pytest.mark.parametrize("split", [0, 2])
def test_every_objective_moves_every_layer(name, split, bare, corpus):
    goal = goal_of(name, Model.split(bare, at=split))
    batch = batch_of(corpus, bare, type(goal).build)
    total, parts = goal.train()(batch)
    total.backward()
    assert total.isfinite() and all(part.isfinite() for part in parts.values())
    still = {n for n, p in goal.named_parameters() if p.grad is None or not p.grad.any()}
    assert not still, still
    assert ("pair" in parts) == (name in ("nsp", "sop", "structbert"))
    assert ("order" in parts) == (name == "structbert")


def test_a_loss_is_the_mean_over_the_chosen_tokens(bare, corpus):
    goal, batch = goal_of("mlm", bare).eval(), batch_of(corpus, bare)
    draw = masking.generator(CPU, 0, batch.number)
    chosen = goal.choose(batch, batch.free, draw)
    seen = batch.reading(goal.hide(batch, chosen, draw))
    logits = goal.language(goal.read(seen)[chosen], goal.student.embedding.tokens.weight)
    expected = nn.functional.cross_entropy(logits, batch.ids[chosen])
    assert float(goal(batch)[1]["mlm"]) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 22, 23])
def test_a_loss_in_slices_is_the_loss(rows):
    torch.manual_seed(0)
    head, right = nn.Linear(6, 9).double(), torch.randint(0, 9, (23,))
    right[[3, 22]] = -100
    x, seen, grads = torch.randn(23, 6, dtype=torch.float64, requires_grad=True), [], []
    for by in (100, rows):
        loss, accuracy = in_slices(lambda x: (seen.append(len(x)), head(x))[1], x, right, rows=by)
        grads.append([loss, accuracy, *torch.autograd.grad(loss, [x, *head.parameters()])])
    expected = nn.functional.cross_entropy(head(x), right)
    for found, whole in zip(*reversed(grads), strict=True):
        torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grads[1][0].double(), expected, atol=1e-6, rtol=1e-6)
    assert max(seen[1:]) <= rows


def test_the_split_is_read_as_a_pair_is_read(bare, corpus):
    """Below the split neither text sees the other, above it both do."""
    model = Model.split(bare, at=3)
    goal, batch = goal_of("sop", model).eval(), batch_of(corpus, bare, ordered)
    states = goal.read(batch)
    other = batch.reading(batch.ids.clone())
    other.passage_ids[batch.passage_real] = 5
    width = batch.query_ids.shape[1]
    real = batch.query_real
    assert torch.equal(goal.read(other)[:, :width][real], states[:, :width][real])
    joint = goal_of("sop", bare).eval()
    assert not torch.allclose(
        joint.read(other)[:, :width][real], joint.read(batch)[:, :width][real]
    )


def test_electra_labels_what_differs(bare, corpus):
    goal, batch = goal_of("electra", bare).eval(), batch_of(corpus, bare)
    chosen = goal.choose(batch, batch.free, masking.generator(CPU, 0, 1))
    place = chosen.flatten().nonzero()[:, 0]
    place = torch.cat([place, torch.tensor([-1, -1])])
    right = torch.where(place >= 0, batch.ids.flatten()[place.clamp(min=0)], 7)
    same, replaced = exchanged(batch.ids, place, right)
    assert torch.equal(same, batch.ids) and not replaced.any()
    logit = torch.randn(batch.ids.shape)
    real = batch.query_real
    loss, _ = detection(logit, replaced, real)
    assert float(loss) == pytest.approx(
        float(-torch.log(1 - logit[real].sigmoid()).mean()), rel=1e-4
    )
    _, replaced = exchanged(batch.ids, place, right + 1)
    assert torch.equal(replaced, chosen)


def test_electra_replaces_at_random_without_a_generator(bare, corpus):
    goal = goal_of("electra", bare, generator=0.0, mask=0.9)
    assert goal.generator is None
    batch = batch_of(corpus, bare, size=64)
    chosen = goal.choose(batch, batch.free, masking.generator(CPU, 0))
    place = chosen.flatten().nonzero()[:, 0]
    guess, found, _ = goal._generate(batch, chosen, place, masking.generator(CPU, 1))
    _, replaced = exchanged(batch.ids, place, guess)
    vocab = bare.spec.encoder.embedding.vocab
    rate = replaced.sum() / chosen.sum()
    assert not found and abs(float(rate) - (1 - 1 / vocab)) < 0.01
    assert replaced.sum() <= chosen.sum()


def test_electra_keeps_the_detector_from_the_generator(bare, corpus):
    batch = batch_of(corpus, bare)

    def moved(tied: bool) -> tuple[set[str], set[str]]:
        goal = goal_of("electra", bare, tied=tied, detect=1.0)
        found, _ = goal.losses(batch, masking.generator(CPU, 0, 0))
        found["detect"][1].backward()
        names = {n for n, p in goal.named_parameters() if p.grad is not None and p.grad.any()}
        goal.zero_grad()
        found, _ = goal.losses(batch, masking.generator(CPU, 0, 0))
        found["mlm"][1].backward()
        reached = {n for n, p in goal.named_parameters() if p.grad is not None and p.grad.any()}
        return names, {n for n in reached if n.startswith("student.")}

    names, reached = moved(tied=True)
    assert not [n for n in names if n.startswith(("generator.", "language."))]
    assert reached and all(n.startswith("student.embedding.") for n in reached)
    assert not moved(tied=False)[1]


def test_electras_generator_is_small_and_can_be_kept(bare, corpus):
    goal = goal_of("electra", bare)
    assert goal.generator.spec.encoder.width == bare.spec.encoder.width // 4
    assert not [n for n in goal.student.state_dict() if "generator" in n]
    batch = batch_of(corpus, bare)
    from decoupled.methods.pretrain.texts import forward_text

    whole = goal.whole_generator()
    torch.testing.assert_close(
        forward_text(whole, batch), forward_text(goal.generator.eval(), batch)
    )


def test_electra_without_masks_has_no_generator_loss():
    loss, accuracy = cross_entropy(torch.randn(3, 5), torch.full((3,), -100))
    assert float(loss) == 0.0 and float(accuracy) == 0.0


# Names --------------------------------------------------------------------------------------------

NAMED = {
    "place": {"castle": ("castle", "old castle"), "bridge": ("bridge",), "tower": ("tower",)},
    "sky": {"moon": ("moon",), "star": ("bright star", "star")},
}


@pytest.fixture(scope="module")
def gazetteer(bare) -> Gazetteer:
    return Gazetteer.of(NAMED, bare.tokenizer)


def test_names_are_exchanged_for_their_kind(corpus, gazetteer):
    found = gazetteer.find(corpus)
    assert len(found) > 20
    for start, end, spelling in found.tolist():
        assert tuple(corpus.ids[start:end].tolist()) == gazetteer.spellings[spelling]
    changed = gazetteer.exchange(corpus, found, 0.5, np.random.default_rng(0))
    assert len(changed.mentions) == len(found)
    by_tokens = dict(zip(gazetteer.spellings, gazetteer.thing, strict=True))
    for (start, end, label), (_, _, old) in zip(changed.mentions, found, strict=True):
        now = by_tokens[tuple(changed.ids[start:end].tolist())]  # the span is still that of a name
        was = gazetteer.thing[old]
        assert gazetteer.kind[now] == gazetteer.kind[was] and (now != was) == bool(label)
    labels = changed.mentions[:, 2]
    assert not (labels[1:] & labels[:-1]).any() and labels.sum() > 5  # no two neighbours
    # What lies between the names is as it was, and so is where sentences begin.
    gaps = zip(
        found[:-1, 1], found[1:, 0], changed.mentions[:-1, 1], changed.mentions[1:, 0], strict=True
    )
    for old, old_end, new, new_end in gaps:
        assert corpus.ids[old:old_end].tolist() == changed.ids[new:new_end].tolist()
    assert changed.begins[changed.sentences[:-1]].all() and changed.sentences[-1] == len(
        changed.ids
    )
    assert (
        gazetteer.exchange(corpus, found, 0.0, np.random.default_rng(0)).ids.tolist()
        == corpus.ids.tolist()
    )


def test_names_are_never_hidden_and_stand_between_two_tokens(bare, corpus, gazetteer):
    from decoupled.methods.pretrain.gazetteer import exchanging
    from decoupled.methods.pretrain.wklm import named

    goal = goal_of("wklm", bare, mask=0.5)
    batch = batch_of(corpus, bare, exchanging(gazetteer, 0.5))
    inside = named(batch)
    chosen = goal.choose(batch, batch.free & ~inside, masking.generator(CPU, 0))
    assert inside.any() and not (chosen & inside).any()
    for ids, mentions in zip(batch.ids, batch.mentions, strict=True):
        for before, after, label in mentions.tolist():
            if label >= 0:
                assert tuple(ids[before + 1 : after].tolist()) in gazetteer.spellings
    # Beside a name at the edge of a text a special token stands.
    edges = {
        int(ids[m[0, 0]]) for ids, m in zip(batch.ids, batch.mentions, strict=True) if m[0, 2] >= 0
    }
    assert bare.spec.text.query_prefix[0] in edges
    total, parts = goal(batch)
    total.backward()
    assert {"mlm", "name"} <= parts.keys() and goal.name.weight.grad.any()


def test_names_come_from_titles_and_headings(tmp_path):
    titles = (
        "Neural networks",
        "Deep neural networks for speech",
        "On social networks",
        "Of social networks and them",
    )
    made = made_gazetteer(
        [Passage(id=str(n), text="x", title=t) for n, t in enumerate(titles)]
        + [Passage(id="h", text="x", meta={"headings": ["Guide", "Installing"]})]
    )
    assert set(made) == {"title", "networks"}
    assert set(made["title"]) == {"On social networks", "Guide", "Installing"}
    assert set(made["networks"]) == {"neural networks", "social networks"}
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"city": ["Paris", ["New York", "NYC"]]}))
    assert read_gazetteer(path) == {"city": {"Paris": ("Paris",), "New York": ("New York", "NYC")}}
    path.write_text("[1]")
    with pytest.raises(InputError, match="write JSON such as"):
        read_gazetteer(path)


# Runs ---------------------------------------------------------------------------------------------


def run(bare, out, objective="mlm", steps=3, **options):
    changes = {
        "optimiser.batch": 8,
        "pretraining.tokens": 32,
        "precision": "fp32",
        **options.pop("set", {}),
    }
    recipe = pretrain_recipe(objective, changes)
    return dc.pretrain(
        passages(), base=bare, out=out, objective=objective, steps=steps, recipe=recipe, **options
    )


def test_words_are_learnt(bare, tmp_path):
    made = run(bare, tmp_path / "m", steps=25, set={"optimiser.lr": 3e-3})
    assert made.steps == 25 and made.documents == 24
    assert made.after["perplexity"] < 0.5 * made.before["perplexity"]
    model = Model.load(tmp_path / "m")
    assert model.history[-1]["did"] == "pretrain" and not model.spec.heads
    split = Model.split(tmp_path / "m", at=1)
    assert split.spec.split == 1
    # What was learnt beside the model goes on with it.
    again = dc.pretrain(
        passages(),
        base=tmp_path / "m",
        out=tmp_path / "n",
        steps=1,
        recipe=pretrain_recipe(
            "mlm", {"optimiser.batch": 8, "pretraining.tokens": 32, "precision": "fp32"}
        ),
    )
    assert again.before["perplexity"] == pytest.approx(made.after["perplexity"], rel=0.05)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(bare, tmp_path):
    settings = {"watch.save_every": 2, "watch.log_every": 1}
    whole = run(bare, tmp_path / "whole", "electra", steps=5, set=settings)

    class Stop(Exception):
        pass

    def stop(line):
        if line["step"] == 3 and line["phase"] == "train":
            raise Stop

    with pytest.raises(Stop):
        run(bare, tmp_path / "part", "electra", steps=5, set=settings, progress=stop)
    part = run(bare, tmp_path / "part", "electra", steps=5, set=settings, keep_generator=True)
    assert part.after == whole.after
    one, other = (Model.load(tmp_path / n).net.state_dict() for n in ("whole", "part"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert Model.load(f"{tmp_path / 'part'}-generator").spec.encoder.width == 8


def test_a_model_begins_at_random_by_a_spec(bare, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps({"layers": 2, "width": 16, "heads": 2, "embedding": 8, "positions": 96})
    )
    made = run(bare, tmp_path / "small", "electra", spec=spec)
    encoder = Model.load(tmp_path / "small").spec.encoder
    assert (len(encoder.layers), encoder.width, encoder.embedding.width) == (2, 16, 8)
    assert set(made.after) >= {"detect_accuracy", "detect_recall", "perplexity"}
    saved = tmp_path / "small" / "spec.json"
    assert run(bare, tmp_path / "again", "mlm", spec=saved, steps=1).steps == 1
    spec.write_text('{"layers": 2, "width": 15, "heads": 2}')
    with pytest.raises(dc.SpecError, match="heads divide"):
        run(bare, tmp_path / "x", spec=spec)


def test_wklm_runs_with_names_that_are_given(bare, tmp_path):
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"place": ["castle", "bridge", "tower"], "sky": ["moon", "star"]}))
    made = run(bare, tmp_path / "m", "wklm", gazetteer=names)
    assert set(made.after) >= {"name", "name_accuracy", "mlm"}


def test_what_does_not_fit_is_refused(bare, tmp_path):
    with pytest.raises(OptionError, match="choose mlm, nsp"):
        pretrain_recipe("gpt")
    with pytest.raises(InputError, match="neither base nor spec"):
        dc.pretrain(passages(2), out=tmp_path / "m")
    with pytest.raises(OptionError, match="for objective wklm"):
        run(bare, tmp_path / "m", gazetteer="x.json")
    with pytest.raises(OptionError, match="for objective electra"):
        run(bare, tmp_path / "m", keep_generator=True)
    with pytest.raises(InputError, match=r"mask=1\.5"):
        pretrain_recipe("mlm", {"pretraining.mask": 1.5})
    with pytest.raises(InputError, match="no kind has two names"):
        run(bare, tmp_path / "m", "wklm", gazetteer=_one_name(tmp_path))


def _one_name(folder):
    path = folder / "one.json"
    path.write_text('{"place": ["castle"]}')
    return path
