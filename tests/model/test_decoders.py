"""Decoders against `transformers`: their scores, their prompts, and their splits in both orders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders import (
    AFTER,
    BEFORE,
    PASSAGES,
    QUERIES,
    VARIANTS,
    decoder_tokenizer,
    prompt_ids,
    reference_score,
    save_decoder,
    save_variant,
)
from decoupled.errors import DecoupledError
from decoupled.model.model import Model
from decoupled.model.nn.encoder import PairEncoder, last_first
from decoupled.model.nn.frame import Frame
from decoupled.model.prompts import TEMPLATES, Template, prompt_spec
from decoupled.model.tokens import Tokenizer
from decoupled.search.engine import Engine

PAIRS = [(query, passage) for query in QUERIES for passage in PASSAGES]


def scores(model: Model, pairs: list[tuple[str, str]] = PAIRS) -> Tensor:
    """Rank logits of the pairs, through both components, in one padded batch."""
    queries = model.tokenizer.queries([query for query, _ in pairs])
    passages = [w[0].ids for w in model.tokenizer.windows([passage for _, passage in pairs])]
    states = []
    with torch.inference_mode():
        for side, texts in (("query", queries), ("passage", passages)):
            ids, real = padded(texts)
            states += [model.net.input(side, ids, real)[0], real]  # type: ignore[arg-type]
        return model.net.cross(*states, ["rank"])["rank"][:, 0]


def padded(texts: list[Any]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts)) + 3
    ids, real = torch.zeros(2, len(texts), longest, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)], real[row, : len(text)] = torch.tensor(text), 1
    return ids, real.bool()


@pytest.mark.parametrize("order", [AFTER, BEFORE], ids=["passage first", "query first"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_decoder_scores_as_transformers_does(tmp_path: Path, name: str, order: Template) -> None:
    theirs = save_variant(tmp_path, name, order)
    model, tokenizer = Model.open(tmp_path), decoder_tokenizer()
    expected = [
        reference_score(theirs, tokenizer, order, prompt_ids(tokenizer, order.pieces, *pair))
        for pair in PAIRS
    ]
    torch.testing.assert_close(scores(model), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_bfloat16_shards_and_a_value_head(tmp_path: Path) -> None:
    order = replace(BEFORE, score=())
    theirs = save_decoder(tmp_path, "qwen3", order).to(torch.bfloat16)
    (tmp_path / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    tokenizer = decoder_tokenizer()
    theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)
    ids = [prompt_ids(tokenizer, order.pieces, *pair) for pair in PAIRS]
    expected = [reference_score(theirs, tokenizer, order, one) for one in ids]
    found = scores(Model.open(tmp_path))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_a_bidirectional_llama_reads_the_mean(tmp_path: Path) -> None:
    order = replace(BEFORE, score=())
    theirs = save_decoder(tmp_path, "llama", order)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "llama_bidirec", "temperature": 0.5, "pooling": "avg"}
    config["architectures"] = ["LlamaBidirectionalForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer, expected = decoder_tokenizer(), []
    for pair in PAIRS:
        ids = torch.tensor([prompt_ids(tokenizer, order.pieces, *pair)])
        everything = torch.zeros(1, 1, ids.shape[1], ids.shape[1])
        with torch.no_grad():
            states = theirs.model(ids, attention_mask=everything).last_hidden_state
            expected.append(float(theirs.score(states.mean(1)) / 0.5))
    found = scores(Model.open(tmp_path))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_prompts_are_tokenised_as_published(name: str) -> None:
    template, tokenizer = TEMPLATES[name], decoder_tokenizer()
    spec = prompt_spec(tokenizer.to_str(), template, max_tokens=4096)
    ours = Tokenizer(tokenizer.to_str(), spec)
    # Formats that are published as one string are compared with that string.
    whole = name in ("ctxl-rerank-v2", "nemotron-rerank")
    for query, passage in PAIRS:
        sides = [ours.query(query), ours.windows([passage])[0][0].ids]
        if spec.passage_first:
            sides.reverse()
        pieces = ("".join(template.pieces),) if whole else template.pieces
        assert [*sides[0], *sides[1]] == prompt_ids(tokenizer, pieces, query, passage)


def test_qwen3_tokenises_its_body_as_one_string() -> None:
    """The published code tokenises instruction, query and document together, and prefix and suffix apart."""
    template, tokenizer = TEMPLATES["qwen3-reranker"], decoder_tokenizer()
    ours = Tokenizer(tokenizer.to_str(), prompt_spec(tokenizer.to_str(), template, max_tokens=999))
    first, query, passage, last = template.pieces
    as_published = (first, query + passage, last)
    for pair in PAIRS:
        ids = [*ours.query(pair[0]), *ours.windows([pair[1]])[0][0].ids]
        assert ids == prompt_ids(tokenizer, as_published, *pair)


def test_windows_of_a_prompt_keep_their_offsets() -> None:
    tokenizer = decoder_tokenizer()
    spec = prompt_spec(tokenizer.to_str(), AFTER, max_tokens=80)
    ours = Tokenizer(tokenizer.to_str(), spec)
    text = PASSAGES[3].strip()
    (windows,) = ours.windows([text], ["A title"])
    assert len(windows) > 1
    lead = [*spec.passage_prefix, *tokenizer.encode("Document:", add_special_tokens=False).ids]
    newline = tokenizer.encode("\n", add_special_tokens=False).ids
    for number, window in enumerate(windows):
        assert len(window.ids) <= spec.passage_tokens
        assert window.ids[: len(lead)].tolist() == lead
        assert text[window.start :].startswith(window.text)
        words = [window.text[a:b] for a, b in window.offsets if b > a]
        assert "".join(words).replace(" ", "") in text.replace(" ", "")
        last = number == len(windows) - 1
        # The stop at the end of the passage and the newline after it are one token.
        assert (window.ids[-1:].tolist() == newline) is not last
    cut = ours.query("a king " * 200)
    assert spec.query_tokens - 2 <= len(cut) <= spec.query_tokens
    assert cut.tolist()[-len(spec.query_suffix) - 1 :] == [*newline, *spec.query_suffix]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma"])
def test_a_passage_first_is_exact_at_every_split_with_its_keys_and_values(
    tmp_path: Path, family: str
) -> None:
    save_decoder(tmp_path, family, AFTER)
    joint = Model.open(tmp_path)
    expected = scores(joint)
    for at in range(1, 5):
        model = Model.split(joint, at=at, store="kv")
        torch.testing.assert_close(scores(model), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("order", [AFTER, BEFORE], ids=["passage first", "query first"])
def test_a_split_is_the_joint_model_under_the_mask(tmp_path: Path, order: Template) -> None:
    save_decoder(tmp_path, "qwen3", order)
    joint = Model.open(tmp_path)
    for at in range(5):
        found = scores(Model.split(joint, at=at))
        torch.testing.assert_close(found, masked(joint, at), atol=1e-4, rtol=1e-4)
    # The mask is not for nothing.
    assert not torch.allclose(masked(joint, 2), masked(joint, 0), atol=1e-2)


@pytest.mark.parametrize("runtime", ["torch", "openvino-fp32"])
def test_a_split_above_the_last_layer_normalises_once(tmp_path: Path, runtime: str) -> None:
    """The query then reads no passage: its score is that of its own part of the prompt."""
    theirs, tokenizer = save_decoder(tmp_path, "qwen3", AFTER), decoder_tokenizer()
    model = Model.split(Model.open(tmp_path), at=4)
    expected = [
        reference_score(theirs, tokenizer, AFTER, model.tokenizer.query(query).tolist())
        for query in QUERIES
    ]
    engine = Engine(model, runtime=runtime)
    found = [engine.rerank(query, texts=PASSAGES[:1], raw=True)[0].score for query in QUERIES]
    assert found == pytest.approx(expected, abs=1e-4)


def masked(model: Model, at: int) -> Tensor:
    """Scores of the joint model whose first `at` layers let each text see itself alone."""
    net: PairEncoder = model.net
    queries = padded(model.tokenizer.queries([query for query, _ in PAIRS]))
    passages = padded([w[0].ids for w in model.tokenizer.windows([p for _, p in PAIRS])])
    with torch.inference_mode():
        sides = [net.hidden("query", *queries), queries[1], net.hidden("passage", *passages)]
        x_BTD, frame = net.join(*sides, passages[1])
        block_BT = (
            (torch.arange(x_BTD.shape[1]) >= queries[1].shape[1]).long().expand_as(frame.real_BT)
        )
        # `join` let the row that is read and the first one change places.
        block_BT = block_BT.gather(1, last_first(net.frame(queries[1], passages[1])))
        apart, last = Frame(frame.position_BT, frame.real_BT, block_BT), len(net.spec.layers)
        y_BTD = net.stack(x_BTD, apart, last=at)
        y_BTD = net.stack(y_BTD, frame, first=at, last=last)
        return net.heads["rank"](y_BTD[:, :1], frame.real_BT[:, :1])[:, 0]


def test_passage_rows_never_change_with_the_query(tmp_path: Path) -> None:
    save_decoder(tmp_path, "llama", AFTER)
    joint = Model.open(tmp_path)
    alone = Model.split(joint, at=3)
    (windows,) = joint.tokenizer.windows([PASSAGES[0]])
    ids, real = padded([windows[0].ids])
    query, query_real = padded([joint.tokenizer.query(QUERIES[0])])
    with torch.inference_mode():
        stored = alone.net.hidden("passage", ids, real)
        sides = joint.net.hidden("query", query, query_real), query_real
        x_BTD, frame = joint.net.join(*sides, joint.net.hidden("passage", ids, real), real)
        together = joint.net.stack(x_BTD, frame, last=3)[:, query.shape[1] :]
    torch.testing.assert_close(together[real], stored[real], atol=1e-5, rtol=1e-5)


def test_a_prompt_survives_its_folder(tmp_path: Path) -> None:
    save_decoder(tmp_path / "theirs", "qwen3", AFTER)
    model = Model.split(Model.open(tmp_path / "theirs"), at=2, store="kv")
    model.save(tmp_path / "ours")
    loaded = Model.load(tmp_path / "ours")
    assert loaded.spec == model.spec and loaded.fingerprint == model.fingerprint
    assert loaded.fingerprint != Model.split(loaded, at=2).fingerprint
    torch.testing.assert_close(scores(loaded), scores(model))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({"pieces": ["Query: {query}"], "score": ["yes"]}, "{passage} 0 times"),
        ({"pieces": ["{query} {passage}"], "score": ["yes"]}, "cut it between them"),
        (
            {"pieces": ["{query}", "{passage}"], "score": ["yes", "unheard of"]},
            "tokens of tokenizer",
        ),
        ({"pieces": ["<|nothing|>{query}", "{passage}"], "score": ["yes"]}, "<|nothing|>"),
        ({"pieces": ["{query}", "{passage}"]}, "no value head"),
        ({"pieces": ["{query}", "{passage}"], "score": [5000]}, "5000"),
        ({"pieces": "{query}{passage}"}, "no template"),
        ({"pieces": ["a king " * 600 + "{query}", "{passage}"], "score": ["yes"]}, "positions"),
    ],
)
def test_bad_templates_are_one_line(tmp_path: Path, template: dict[str, Any], says: str) -> None:
    save_decoder(tmp_path, "llama")
    (tmp_path / "template.json").write_text(json.dumps(template))
    with pytest.raises(DecoupledError) as raised:
        Model.open(tmp_path)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_what_a_decoder_cannot_do_is_said(tmp_path: Path) -> None:
    save_decoder(tmp_path, "llama", BEFORE)
    joint = Model.open(tmp_path)
    for options, says in (
        ({"passage_tokens": 1000}, "positions, but the model has 1024"),
        ({"store": "kv"}, "passage first"),
        ({"one_way": "auto"}, "ends with the passage"),
    ):
        with pytest.raises(DecoupledError, match=says):
            Model.split(joint, at=2, **options)  # type: ignore[arg-type]
    (tmp_path / "template.json").unlink()
    with pytest.raises(DecoupledError, match=r"no known prompt.* may lie in its folder"):
        Model.open(tmp_path)
    with pytest.raises(DecoupledError, match="no template 'qwen9'"):
        Model.open(tmp_path, "qwen9")


def test_an_encoder_takes_neither_prompt_nor_keys_and_values(checkpoint: Any) -> None:
    encoder = checkpoint("bert", "rank")
    with pytest.raises(DecoupledError, match="bert reads no prompt; leave it out"):
        Model.open(encoder, "qwen3-reranker")
    with pytest.raises(DecoupledError, match="need a decoder; choose store='state'"):
        Model.split(encoder, at=1, store="kv")
