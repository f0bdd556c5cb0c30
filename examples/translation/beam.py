"""Beam search, one token at a time. Shapes: B sentences, K beams, C candidates, V vocabulary, T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from corpus import encode
from tokenizers import Tokenizer
from torch import Tensor
from translator import END, MOST, PAD, START, Steps, Translator

from decoupled.model.nn.block import Source
from decoupled.model.states import batches_by_length


@dataclass(frozen=True, kw_only=True)
class Beam:
    """How wide the search is, and by what the best is chosen of what it found."""

    width: int = 5
    penalty: float = 1.0
    """Translations are compared by log-probability over length to this power; 0 compares sums."""
    most: int = MOST
    """Tokens of a translation, its end included."""


class _Ended:
    """The best translation of each sentence that came to its end; after a beam of them nothing is added."""

    def __init__(self, batch: int, beam: Beam, device: torch.device) -> None:
        self.beam = beam
        self.score_B = torch.full((batch,), -torch.inf, device=device)
        self.ids_BT = torch.full((batch, beam.most), END, device=device)
        self.count_B = torch.zeros(batch, dtype=torch.long, device=device)

    def add(self, score_BC: Tensor, ids_BKT: Tensor, beam_BC: Tensor) -> bool:
        """Scores of candidates that end here, -inf for others; is every sentence done?"""
        length = ids_BKT.shape[2] + 1
        score_B, which_B1 = (score_BC / length**self.beam.penalty).max(1, keepdim=True)
        score_B = score_B[:, 0]
        better_B = (score_B > self.score_B) & (self.count_B < self.beam.width)
        row_B = beam_BC.gather(1, which_B1)[:, 0]
        ids_BT = torch.full_like(self.ids_BT, END)
        ids_BT[:, : length - 1] = ids_BKT[torch.arange(len(row_B), device=row_B.device), row_B]
        self.ids_BT = torch.where(better_B[:, None], ids_BT, self.ids_BT)
        self.score_B = torch.where(better_B, score_B, self.score_B)
        self.count_B = self.count_B + score_BC.isfinite().sum(1)
        return bool((self.count_B >= self.beam.width).all())


@torch.inference_mode()
def search(translator: Translator, source: Source, beam: Beam) -> tuple[list[list[int]], Tensor]:
    """The best translation of each sentence, without its end, and what it scores."""
    batch, width, device = len(source.real), beam.width, source.real.device
    steps, rows_DV = Steps(translator, _repeated(source, width)), translator.rows().T
    ended = _Ended(batch, beam, device)
    score_BK = torch.full((batch, width), -torch.inf, device=device)
    score_BK[:, 0] = 0.0
    last_N = torch.full((batch * width,), START, device=device)
    first_B1 = torch.arange(batch, device=device)[:, None] * width
    for length in range(1, beam.most + 1):
        logits_NV = (steps.step(last_N) @ rows_DV).float()
        logits_NV[:, [PAD, START]] = -torch.inf
        next_BKV = logits_NV.log_softmax(-1).view(batch, width, -1) + score_BK[..., None]
        if length == beam.most:
            next_BKV[..., :END] = next_BKV[..., END + 1 :] = -torch.inf
        # Twice as many candidates as beams: whatever ends among them, enough go on.
        score_BC, place_BC = next_BKV.flatten(1).topk(min(2 * width, next_BKV[0].numel()))
        beam_BC, token_BC = place_BC // next_BKV.shape[-1], place_BC % next_BKV.shape[-1]
        ends_BC = token_BC == END
        # What lies beyond the beam would not have gone on, and may not end either.
        ends_BC[:, width:] = False
        ids_BKT = steps.ids_BT.view(batch, width, -1)[..., 1:]
        if ended.add(score_BC.masked_fill(~ends_BC, -torch.inf), ids_BKT, beam_BC):
            break
        score_BK, kept_BK = score_BC.masked_fill(token_BC == END, -torch.inf).topk(width)
        last_N = token_BC.gather(1, kept_BK).flatten()
        steps.reorder((first_B1 + beam_BC.gather(1, kept_BK)).flatten())
    return [row[: row.index(END)] for row in ended.ids_BT.tolist()], ended.score_B


def _repeated(source: Source, times: int) -> Source:
    states, real = (x.repeat_interleave(times, 0) for x in (source.states, source.real))
    return Source(states=states, real=real, keep=True)


def translate(
    translator: Translator,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    beam: Beam,
    *,
    tokens: int = 4096,
) -> list[str]:
    """Texts in their order; about so many source tokens are searched at a time."""
    device = next(translator.parameters()).device
    ragged = encode(tokenizer, texts, target=False)
    found: dict[int, str] = {}
    for batch in batches_by_length(ragged.lengths, tokens):
        ids, real = (torch.from_numpy(x).to(device) for x in ragged.select(batch).pad())
        room = min(beam.most, 2 * ids.shape[1] + 10)
        with torch.inference_mode():
            source = translator.encode(ids.long(), real)
        made, _ = search(
            translator, source, Beam(width=beam.width, penalty=beam.penalty, most=room)
        )
        found |= zip(batch.tolist(), tokenizer.decode_batch(made), strict=True)
    return [found[number] for number in range(len(texts))]
