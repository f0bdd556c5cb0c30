"""Every family against `transformers`: the same logits at split 0."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from decoupled.model.hf.convert import Checkpoint, load
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import ModelSpec, TextSpec
from tiny import LABELS, VOCAB, Task, edit_config, edit_weights, save_tiny

TASKS: tuple[Task, ...] = ("rank", "classes", "span", "choice")

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "bert": ({}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "type_vocab_size": 3}),
    "roberta": ({}, {"type_vocab_size": 2, "pad_token_id": 3, "hidden_act": "relu"}),
    "xlm-roberta": ({}, {"num_hidden_layers": 1, "hidden_act": "silu"}),
    "electra": (
        {},
        {"embedding_size": 32, "hidden_act": "gelu_fast", "summary_activation": "tanh"},
    ),
    "distilbert": ({}, {"activation": "relu", "sinusoidal_pos_embds": True}),
    "albert": (
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_groups": 3, "num_hidden_layers": 5},
        {"embedding_size": 32, "hidden_act": "gelu"},
    ),
    "modernbert": (
        {},
        {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
        {
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_activation": "silu",
            "classifier_activation": "tanh",
            "local_attention": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
            "num_hidden_layers": 5,
        },
        {"global_attn_every_n_layers": 2, "global_rope_theta": 80.0, "local_rope_theta": 20.0},
    ),
    "mpnet": ({}, {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "xlnet": ({}, {"clamp_len": 12, "ff_activation": "relu", "summary_activation": "gelu"}),
    "deberta-v2": (
        {},
        {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True},
        {
            "share_att_key": False,
            "pos_att_type": ["c2p"],
            "embedding_size": 16,
            "type_vocab_size": 2,
        },
        {"pos_att_type": "p2c", "position_buckets": 6, "max_relative_positions": 20},
        {"position_buckets": -1, "max_relative_positions": 7, "pooler_hidden_act": "tanh"},
        {"relative_attention": False, "pos_att_type": None, "position_biased_input": True}
        | {"norm_rel_ebd": "none", "layer_norm_eps": 1e-5},
    ),
}

POOLS: dict[str, dict[str, list[Any]]] = {
    "roberta": {"pad_token_id": [0, 1, 5], "max_position_embeddings": [95, 110]},
    "electra": {"embedding_size": [8, 16, 24]},
    "albert": {"num_hidden_groups": [1, 2], "inner_group_num": [1, 2, 3]},
    "modernbert": {
        "local_attention": [2, 3, 10, 200],
        "global_attn_every_n_layers": [1, 2, 3],
        "classifier_pooling": ["cls", "mean"],
        "norm_bias": [True, False],
        "attention_bias": [True, False],
    },
    "deberta-v2": {
        "position_buckets": [-1, 4, 16, 32],
        "max_relative_positions": [-1, 12, 40],
        "share_att_key": [True, False],
        "pos_att_type": [["c2p"], ["p2c"], ["c2p", "p2c"]],
        "position_biased_input": [True, False],
        "norm_rel_ebd": ["none", "layer_norm"],
        "type_vocab_size": [0, 2],
    },
}


def random_options(family: str, seed: int) -> dict[str, Any]:
    draw = random.Random(f"{family} {seed}")
    pools = {
        "hidden_size": [16, 24, 32],
        "num_attention_heads": [1, 2, 4],
        "intermediate_size": [20, 40],
        "num_hidden_layers": [2, 3, 5],
        **POOLS.get(family, {}),
    }
    return {name: draw.choice(values) for name, values in pools.items()}


CASES = [
    pytest.param(family, number, task, id=f"{family}-{number}-{task}")
    for family, variants in VARIANTS.items()
    for number in range(len(variants))
    for task in TASKS
]


def model_spec(checkpoint: Checkpoint) -> ModelSpec:
    """The whole model at split 0, every other type where there is more than one."""
    types = checkpoint.encoder.embedding.types
    text = TextSpec(
        query_prefix=(2,),
        query_suffix=(3,),
        passage_prefix=(),
        passage_suffix=(3,),
        passage_type=1 if types > 1 else 0,
        pad=max(checkpoint.encoder.embedding.position_start - 1, 0),
        query_tokens=24,
        passage_tokens=64,
        stride=32,
    )
    return ModelSpec(
        family=checkpoint.family, encoder=checkpoint.encoder, heads=checkpoint.heads, text=text
    )


def build(checkpoint: Checkpoint) -> PairEncoder:
    model = PairEncoder(model_spec(checkpoint)).eval()
    model.load_state_dict(checkpoint.weights, strict=True)
    return model


class Batch:
    """Pairs of random ids: as one padded sequence, and as queries and passages padded apart."""

    def __init__(self, spec: ModelSpec, seed: int = 5) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.spec = spec
        self.queries = [self._ids(n, generator) for n in (4, 17, 9)]
        self.passages = [self._ids(n, generator) for n in (41, 12, 60)]

    @staticmethod
    def _ids(count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(10, VOCAB, (count,), generator=generator)

    def side(self, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Ids and mask; one more column of padding than the longest text needs."""
        width = max(len(row) for row in rows) + 1
        real = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        ids = torch.full(real.shape, self.spec.text.pad)
        ids[real] = torch.cat(rows)
        return ids, real

    def joined(self) -> dict[str, Tensor]:
        """What a Hugging Face model is given."""
        pairs = [torch.cat(pair) for pair in zip(self.queries, self.passages, strict=True)]
        ids, real = self.side(pairs)
        inputs = {"input_ids": ids, "attention_mask": real.long()}
        if self.spec.encoder.embedding.types:
            lengths = torch.tensor([[len(query)] for query in self.queries])
            passage = torch.arange(ids.shape[1]) >= lengths
            inputs["token_type_ids"] = (passage & real).long() * self.spec.text.passage_type
        if self.spec.family == "xlnet":
            pairs = zip(self.queries, self.passages, strict=True)
            kinds = [torch.tensor([0] * len(q) + [1] * (len(p) - 1) + [2]) for q, p in pairs]
            inputs["token_type_ids"] = torch.zeros_like(ids)
            inputs["token_type_ids"][real] = torch.cat(kinds)
        return inputs

    @torch.no_grad()
    def theirs(self, model: transformers.PreTrainedModel, task: Task) -> list[Tensor]:
        """Logits of each pair; for spans those of the first token, then of the passage."""
        inputs = self.joined()
        if self.spec.family == "xlnet" and task != "span":
            # It reads the last token, which padding would displace; so each pair is read alone.
            lengths = inputs["attention_mask"].sum(1).tolist()
            alone = [{k: v[n, :t] for k, v in inputs.items()} for n, t in enumerate(lengths)]
            more = (None, None) if task == "choice" else (None,)
            return [model(**{k: v[more] for k, v in one.items()}).logits[0] for one in alone]
        if task == "choice":
            return list(model(**{k: v[:, None] for k, v in inputs.items()}).logits)
        output = model(**inputs)
        if task != "span":
            return list(output.logits)
        both = torch.stack([output.start_logits, output.end_logits], -1)
        return [
            torch.cat([row[:1], row[len(query) : len(query) + len(passage)]])
            for row, query, passage in zip(both, self.queries, self.passages, strict=True)
        ]

    @torch.no_grad()
    def ours(self, model: PairEncoder) -> list[Tensor]:
        kind = model.spec.heads[0].kind
        query, query_real = self.side(self.queries)
        passage, passage_real = self.side(self.passages)
        states = model.hidden("query", query, query_real)
        lengths = query_real.sum(1, keepdim=True)
        stored = model.hidden("passage", passage, passage_real, query_length=lengths)
        logits = model.cross(states, query_real, stored, passage_real, heads=[kind])[kind]
        if kind != "span":
            return list(logits)
        return [row[: 1 + len(p)] for row, p in zip(logits, self.passages, strict=True)]


def gap(a: list[Tensor], b: list[Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("family", "number", "task"), CASES)
def test_logits_equal_those_of_transformers(
    tmp_path: Path, family: str, number: int, task: Task
) -> None:
    reference = save_tiny(tmp_path / "theirs", family, task, number, **VARIANTS[family][number])
    checkpoint = load(tmp_path / "theirs")
    assert checkpoint.family == family
    assert [head.kind for head in checkpoint.heads] == [task]
    assert checkpoint.heads[0].labels == (LABELS if task == "classes" else ())
    model = build(checkpoint)
    batch = Batch(model.spec)
    expected = batch.theirs(reference, task)
    assert gap(batch.ours(model), expected) <= 1e-4
    # A batch whose logits hardly differ would prove little.
    assert torch.stack([row[0] for row in expected]).std(0).max() > 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_logits_equal_those_of_transformers_for_random_configs(
    tmp_path: Path, family: str, seed: int
) -> None:
    task = TASKS[seed]
    reference = save_tiny(tmp_path, family, task, seed, **random_options(family, seed))
    model = build(load(tmp_path))
    batch = Batch(model.spec, seed)
    assert gap(batch.ours(model), batch.theirs(reference, task)) <= 1e-4


@pytest.mark.parametrize("task", ["bare", "mlm"])
def test_models_without_a_head_of_ours_give_the_same_encoder(
    tmp_path: Path, family: str, task: Task
) -> None:
    reference = save_tiny(tmp_path, family, task)
    checkpoint = load(tmp_path)
    assert checkpoint.heads == ()
    model = build(checkpoint)
    batch = Batch(model.spec)
    inputs = batch.joined()
    encoder = reference if task == "bare" else reference.base_model
    with torch.no_grad():
        expected = encoder(**inputs).last_hidden_state
        query, query_real = batch.side(batch.queries)
        passage, passage_real = batch.side(batch.passages)
        states = model.hidden("query", query, query_real)
        lengths = query_real.sum(1, keepdim=True)
        stored = model.hidden("passage", passage, passage_real, query_length=lengths)
        joined, frame = model.join(states, query_real, stored, passage_real)
        ours = model.stack(joined, frame)[frame.real_BT]
    assert (ours - expected[inputs["attention_mask"].bool()]).abs().max() <= 1e-4


def test_a_pre_5_modernbert_config_reads_the_same(tmp_path: Path) -> None:
    save_tiny(tmp_path, "modernbert", "rank", num_hidden_layers=7)
    new = load(tmp_path).encoder
    assert [layer.attention.window for layer in new.layers] == [None, 4, 4, None, 4, 4, None]
    assert {layer.attention.rotary for layer in new.layers[1:3]} == {10_000.0}
    assert new.layers[0].attention.rotary == 160_000.0
    old = {"layer_types": ..., "rope_parameters": ..., "global_attn_every_n_layers": 3}
    edit_config(tmp_path, **old, global_rope_theta=160_000.0, local_rope_theta=10_000.0)
    assert load(tmp_path).encoder == new
    edit_config(tmp_path, local_rope_theta=None, global_rope_theta=500.0)
    assert {layer.attention.rotary for layer in load(tmp_path).encoder.layers} == {500.0}


def test_the_window_reaches_half_of_local_attention_and_no_further(tmp_path: Path) -> None:
    """One local layer: moving the passage's token 4 from the first changes it, token 5 does not."""
    options = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "local_attention": 8}
    save_tiny(tmp_path, "modernbert", "rank", **options)
    model = build(load(tmp_path))
    ids = torch.arange(20, 40)[None]
    near, far = ids.clone(), ids.clone()
    near[0, 4], far[0, 5] = 99, 99

    def score(row: Tensor) -> float:
        real = torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 18, dtype=torch.bool)
        query = model.hidden("query", row[:, :2], real[0])
        passage = model.hidden("passage", row[:, 2:], real[1], query_length=2)
        return model.cross(query, real[0], passage, real[1], heads=["rank"])["rank"].item()

    assert score(near) != score(ids)
    assert score(far) == score(ids)


def test_names_of_the_first_bert_checkpoints(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bert", "rank")
    new = load(tmp_path).weights

    def rename(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )

    edit_weights(
        tmp_path, rename=rename, add={"bert.embeddings.position_ids": torch.arange(96)[None]}
    )
    old = load(tmp_path).weights
    assert all(torch.equal(old[name], new[name]) for name in new)


def test_leftovers_of_pre_training_are_ignored(tmp_path: Path) -> None:
    save_tiny(tmp_path, "deberta-v2", "rank")
    table = {"deberta.embeddings.position_embeddings.weight": torch.zeros(96, 32)}
    edit_weights(tmp_path, add={**table, "lm_predictions.lm_head.bias": torch.zeros(9)})
    assert "embedding.positions.weight" not in load(tmp_path).weights
