"""Unit vectors of texts by a sentence encoder: negatives are mined with them, and a vector learns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoupled.model.model import Model
from decoupled.model.spec import Side
from decoupled.model.states import Ragged, batches_by_length
from decoupled.train.loop.forward import EVALUATION_TOKENS, autocast
from decoupled.train.reshape import with_text

TOKENS = 256
"""Of a text, for a retriever."""


def sentence_encoder(model: Model) -> Model:
    """The model as it reads a text alone: with its own vector, or as the mean of its last states."""
    if model.spec.vector is None:
        model = Model.split(model, at=len(model.spec.layers), positions="restart")
    return with_text(model, query_tokens=min(TOKENS, model.spec.text.passage_tokens))


def vectors_of_texts(encoder: Model, texts: Sequence[str]) -> npt.NDArray[np.float16]:
    """`[texts,V]` unit vectors in half precision."""
    found: npt.NDArray[np.float16] = (
        vectors_of(encoder, encoder.tokenizer.queries(texts)).cpu().numpy()
    )
    return found


@torch.inference_mode()
def vectors_of(model: Model, texts: Sequence[npt.NDArray[Any]], side: Side = "query") -> Tensor:
    """Unit vectors of tokenised texts on the model's device, in half precision."""
    device = model.device
    lengths = np.fromiter((len(text) for text in texts), np.int64, len(texts))
    found = torch.zeros(len(texts), model.spec.vector_width, dtype=torch.half, device=device)
    for batch in batches_by_length(lengths, EVALUATION_TOKENS):
        padded, real = Ragged.stack([texts[i] for i in batch]).pad()
        ids = torch.from_numpy(padded.astype(np.int64)).to(device)
        mask = torch.from_numpy(real).to(device)
        with autocast(device, "bf16" if device.type == "cuda" else "fp32"):
            h = model.net.hidden(side, ids, mask)
        found[torch.from_numpy(batch).to(device)] = model.net.pool(h.float(), mask).half()
    return found
