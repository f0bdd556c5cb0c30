"""ELECTRA: a small generator guesses the hidden words, and the model finds where it guessed wrong."""

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoupled.errors import InputError
from decoupled.methods.pretrain.mlm import (
    LanguageHead,
    Losses,
    Mlm,
    cross_entropy,
    labels_at,
    places,
    rows_at,
    table_of,
)
from decoupled.methods.pretrain.scratch import spread
from decoupled.methods.pretrain.texts import TextBatch, forward_text
from decoupled.model.nn.encoder import PairEncoder
from decoupled.model.spec import EncoderSpec, ModelSpec
from decoupled.model.split import unsplit

HIDDEN = 0.85
"""Share of the chosen tokens that the generator sees masked; it sees the others unchanged."""
HEAD_WIDTH = 64
TABLES = ("tokens", "positions", "types")


class Electra(Mlm):
    """The model tells replaced tokens from original ones; no gradient of that reaches the generator.

    They share the tables of the embedding, which learn from both. A token that the generator guessed right is
    an original one.
    """

    generator: PairEncoder | None

    def make_heads(self) -> None:
        """The generator with its head, and the discriminator's."""
        spec, share = self.student.spec, self.settings.generator
        width, table = spec.encoder.width, spec.encoder.embedding.width
        self.generator = None
        if share:
            generator = PairEncoder(generator_spec(spec, share))
            spread(generator)
            if self.settings.tied:
                _share(self.student, generator)
            self.generator = generator
            self.language = LanguageHead(
                generator.spec.encoder.width, table, spec.encoder.embedding.vocab
            )
            spread(self.language)
        self.detect = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        spread(self.detect)

    def losses(self, batch: TextBatch, draw: torch.Generator) -> tuple[Losses, dict[str, Tensor]]:
        """The generator's guesses, and which tokens it replaced."""
        how = self.settings
        chosen_BT = self.choose(batch, batch.free, draw)
        place_M = places(chosen_BT, batch, how.mask)
        guess_M, losses, seen = self._generate(batch, chosen_BT, place_M, draw)
        ids_BT, replaced_BT = exchanged(batch.ids, place_M, guess_M)
        # The discriminator reads samples, through which no gradient flows to the generator.
        y_BTD = self.read(batch.reading(ids_BT))
        real_BT = torch.cat([batch.query_real, batch.passage_real], 1)
        where_BT = chosen_BT if how.hidden_only else real_BT
        logit_BT = self.detect(y_BTD)[..., 0].float()
        loss, more = detection(logit_BT, replaced_BT, where_BT)
        return losses | {"detect": (how.detect, loss)}, seen | more

    def _generate(
        self, batch: TextBatch, chosen_BT: Tensor, place_M: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Losses, dict[str, Tensor]]:
        """Tokens for the chosen positions: drawn by the generator, or at random where there is none."""
        if self.generator is None:
            vocab = self.student.spec.encoder.embedding.vocab
            return (
                torch.randint(vocab, place_M.shape, generator=draw, device=place_M.device),
                {},
                {},
            )
        ids_BT = batch.ids
        chance_BT = torch.rand(ids_BT.shape, generator=draw, device=ids_BT.device)
        seen_BT = torch.where(chosen_BT & (chance_BT < HIDDEN), self.mask, ids_BT)
        y_BTD = forward_text(self.generator, batch.reading(seen_BT))
        table_VE = table_of(self.student if self.settings.tied else self.generator)
        logits_MV = self.language(rows_at(y_BTD, place_M), table_VE).float()
        loss, accuracy = cross_entropy(logits_MV, labels_at(ids_BT, place_M))
        guess_M = sample(logits_MV.detach(), draw)
        return guess_M, {"mlm": (1.0, loss)}, {"mlm_accuracy": accuracy}

    def whole_generator(self) -> PairEncoder:
        """The generator with tables of its own, as a model to keep."""
        if self.generator is None:
            raise InputError("generator=0 has no generator to keep; leave out --keep-generator")
        whole = PairEncoder(self.generator.spec)
        shared = {
            f"embedding.{name}.{n}": tensor
            for name in TABLES
            if (table := getattr(self.student.embedding, name)) is not None
            for n, tensor in table.state_dict().items()
        }
        whole.load_state_dict({**shared, **self.generator.state_dict()})
        return whole.eval()


def generator_spec(spec: ModelSpec, share: float) -> ModelSpec:
    """The same layers at a share of the width, over the same tables; the joint model."""
    whole = unsplit(spec)
    encoder = whole.encoder
    heads = max(1, round(encoder.width * share) // HEAD_WIDTH)
    # A multiple of the heads with an even head width.
    width = max(1, round(encoder.width * share) // (2 * heads)) * 2 * heads
    layers = tuple(
        replace(
            layer,
            attention=replace(cast(Any, layer.attention), heads=heads, head_width=width // heads),
            ffn=replace(layer.ffn, width=4 * width),
        )
        for layer in encoder.layers
    )
    project: Any = "none" if encoder.embedding.width == width else "after_norm"
    embedding = replace(encoder.embedding, project=project)
    small: EncoderSpec = replace(encoder, width=width, embedding=embedding, layers=layers)
    bare = replace(whole, encoder=small, heads=(), vector=None, late=None, scoring=None)
    return replace(bare, family=spec.family)


def _share(model: PairEncoder, generator: PairEncoder) -> None:
    """The generator reads the model's tables; they stay the model's alone, for saving and for training."""
    for name in TABLES:
        if getattr(generator.embedding, name) is not None:
            delattr(generator.embedding, name)
            # Past `nn.Module`: a registered table would be saved and counted twice.
            generator.embedding.__dict__[name] = getattr(model.embedding, name)


def sample(logits_MV: Tensor, draw: torch.Generator) -> Tensor:
    """`[M]` one token drawn from each distribution, by the Gumbel-max trick."""
    # -log E with E ~ Exp(1) is Gumbel noise, so logits - log E has it added.
    noise_MV = torch.empty_like(logits_MV).exponential_(generator=draw).log()
    return (logits_MV - noise_MV).argmax(-1)


def exchanged(ids_BT: Tensor, place_M: Tensor, guess_M: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens with guesses at these places, and where those differ from what was there."""
    flat = ids_BT.flatten()
    # What has no place goes behind the end, which is cut off again.
    longer = F.pad(flat, (0, 1)).scatter(0, place_M.where(place_M >= 0, len(flat)), guess_M)
    changed_BT = longer[:-1].view_as(ids_BT)
    return changed_BT, changed_BT != ids_BT


def detection(
    logit_BT: Tensor, replaced_BT: Tensor, where_BT: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean loss of telling replaced tokens apart, and the accuracy on all tokens and on replaced ones."""
    each_BT = F.binary_cross_entropy_with_logits(logit_BT, replaced_BT.float(), reduction="none")
    loss = (each_BT * where_BT).sum() / where_BT.sum().clamp(min=1)
    right_BT = (logit_BT > 0) == replaced_BT
    shares = {"detect_accuracy": where_BT, "detect_recall": where_BT & replaced_BT}
    seen = {name: (right_BT & of).sum() / of.sum().clamp(min=1) for name, of in shares.items()}
    return loss, seen


OBJECTIVE = Electra
