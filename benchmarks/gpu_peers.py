"""What users run today on the same weights: the joint forward, and `CrossEncoder` end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoupled.model.tokens import Tokenizer


class Joint:
    """The checkpoint in transformers: bf16, SDPA, no mask since nothing is padded."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        import transformers

        self.net = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        )
        self.net = self.net.to(device).eval()
        self.device = device

    def compile(self) -> None:
        """From now on compiled; the next call pays for it."""
        self.net.compile()

    def inputs(self, tokenizer: Tokenizer, query: str, passages: Sequence[str]) -> dict[str, Any]:
        """Ids and types of pairs of equal length, on the device."""
        asks = tokenizer.query(query)
        texts = [windows[0].ids for windows in tokenizer.windows(passages)]
        ids = np.stack([np.concatenate([asks, text]) for text in texts]).astype(np.int64)
        types = np.zeros_like(ids)
        types[:, len(asks) :] = 1
        return {
            "input_ids": torch.from_numpy(ids).to(self.device),
            "token_type_ids": torch.from_numpy(types).to(self.device),
        }

    @torch.inference_mode()
    def forward(self, inputs: dict[str, torch.Tensor], batch: int) -> torch.Tensor:
        """Logits of all pairs, `batch` at a time."""
        count = len(inputs["input_ids"])
        parts = [
            self.net(**{k: v[i : i + batch] for k, v in inputs.items()}).logits
            for i in range(0, count, batch)
        ]
        return torch.cat(parts)


def cross_encoder(
    folder: Path, device: torch.device, dtype: torch.dtype, *, compiled: bool = False
) -> Callable[[str, Sequence[str], int], list[int]]:
    """Query and passages in, places in ranked order out, through `sentence-transformers`."""
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(
        str(folder), device=str(device), max_length=512, model_kwargs={"dtype": dtype}
    )
    if compiled:
        encoder.model.compile()

    def rerank(query: str, passages: Sequence[str], batch: int) -> list[int]:
        pairs = [(query, passage) for passage in passages]
        scores = encoder.predict(pairs, batch_size=batch, show_progress_bar=False)
        return np.argsort(-np.asarray(scores, np.float32), kind="stable").tolist()

    return rerank
