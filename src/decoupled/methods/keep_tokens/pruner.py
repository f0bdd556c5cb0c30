"""Which tokens of a passage are stored, where not all are: those that no other can stand for.

How much a token would be missed is how far its states are from the nearest of those that stay, times what
it is worth: how much an empty query attends to it in the first cross layer, for which no query is needed.
With `k = W_k (U z + b)`, a score is `(U' W_k' q)·z` plus what is the same for all tokens, so it is one
product of the states with a few rows. Shapes: N tokens of all texts, T of one, W width of states, H heads,
R rows of a query, S = R·H, K width of a head, D width of the encoder.
"""

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError, SpecError
from decoupled.model.parts.attention.dot import SelfAttention
from decoupled.model.parts.layer import LayerSpec
from decoupled.model.parts.linear import WHOLE
from decoupled.model.spec import ModelSpec
from decoupled.model.states import States
from decoupled.runtime.base import Runtime

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

GONE = -2.0
"""Similarity of a token that was removed: less than any cosine, so that it is never the nearest."""


def check_keep(spec: ModelSpec, share: float) -> None:
    """Raise `InputError` or `SpecError` where passages cannot be stored with this share of their tokens."""
    if not 0 < share <= 1:
        raise InputError(f"keep_tokens={share}; choose a share of the tokens, above 0 up to 1")
    above = spec.layers[spec.split :]
    if share == 1:
        return
    if spec.cross_embed != "none" or not above or not all(map(_placeless, above)):
        raise SpecError(
            f"keep_tokens={share:g} needs cross layers that do not look at positions, as those of BERT, and "
            f"these of {spec.family} do, or there are none; keep all tokens"
        )
    if above[0].attention_maps != WHOLE:
        raise SpecError(
            f"keep_tokens={share:g} needs whole matrices in the first cross layer; index with the model as "
            "it was before they were shrunk, or keep all tokens"
        )


def _placeless(layer: LayerSpec) -> bool:
    """Whether a layer computes the same for a token wherever it stands in the text."""
    kind = layer.attention
    ordinary = isinstance(kind, SelfAttention) and layer.order == "post" and not layer.more
    return ordinary and kind.window is None and kind.rotary is None  # type: ignore[attr-defined]


class TokenPruner:
    """Chooses which tokens of each text are stored, by the first cross layer of the model."""

    def __init__(self, runtime: Runtime, share: float) -> None:
        spec = runtime.spec
        check_keep(spec, share)
        self.share, text = share, spec.text
        self._special = len(text.passage_prefix), len(text.passage_suffix)
        layer = spec.layers[spec.split]
        attention, name = layer.attention, f"stack.attention.{layer.attention_slot}.attention."
        own = {n: np.asarray(t, np.float32) for n, t in runtime.tensors(name).items()}
        up = {n: np.asarray(t, np.float32) for n, t in runtime.tensors("projection.up.").items()}
        empty_query = runtime.encode("query", [runtime.tokenizer.query("")]).states.values
        states_RW = empty_query.astype(np.float32)
        if spec.projected("query"):
            states_RW = states_RW @ up["projection.up.weight"].T + up["projection.up.bias"]
        q_RI = states_RW @ own[f"{name}query.weight"].T + own.get(f"{name}query.bias", 0)
        # [R,H·K] -> [R,H,K]
        q_RHK = q_RI.reshape(len(q_RI), -1, attention.head_width)
        # [H·K,D] -> [H,K,D]
        k_HKD = own[f"{name}key.weight"].reshape(q_RHK.shape[1], attention.head_width, -1)
        # q·(W_k z) = (W_k' q)·z: the key matrix is applied to the query once, not to every token.
        asks_RHD = np.einsum("rhk,hkd->rhd", q_RHK, k_HKD) / np.sqrt(attention.head_width)
        asks_SD = asks_RHD.reshape(-1, k_HKD.shape[-1])
        projected = spec.projected("passage")
        # Stored states are projected, so the way back up is folded in as well: [S,D] -> [S,W].
        self._asks = asks_SD @ up["projection.up.weight"] if projected else asks_SD

    def rows(self, states: States) -> list[Rows]:
        """For each text the rows of the tokens to keep, in order: special tokens and those most missed."""
        values = states.values.astype(np.float32)
        spans = zip(states.starts.tolist(), states.lengths.tolist(), strict=True)
        return [self._chosen(values[start : start + length]) for start, length in spans]

    def _chosen(self, states_TW: Floats) -> Rows:
        before, after = self._special
        rows, size = np.arange(len(states_TW)), len(states_TW)
        stays = (rows < before) | (rows >= size - after)
        count = max(int(np.ceil(self.share * size)), before + after)
        return least_missed(states_TW, np.sqrt(self.looked(states_TW)), stays, count)

    def looked(self, states_TW: Floats) -> Floats:
        """`[T]`: how much an empty query attends to each token of a text."""
        scores_TS = states_TW @ self._asks.T
        # Softmax over the tokens T of the text; less the maximum, so that exp does not overflow.
        weights_TS = np.exp(scores_TS - scores_TS.max(0))
        return np.asarray((weights_TS / weights_TS.sum(0)).sum(1))


def least_missed(
    states_TW: Floats, worth_T: Floats, stays_T: npt.NDArray[np.bool_], count: int
) -> Rows:
    """Rows of the `count` tokens of a text that stay, in order; those least missed are removed one by one.

    The worth of a removed token goes to the one that is most like it and stands for it from then on.
    """
    size = np.linalg.norm(states_TW, axis=1, keepdims=True)
    unit_TW = states_TW / np.maximum(size, 1e-9)
    alike_TT = unit_TW @ unit_TW.T
    np.fill_diagonal(alike_TT, GONE)
    rows, worth, kept = np.arange(len(worth_T)), worth_T.copy(), np.ones(len(worth_T), np.bool_)
    near = alike_TT.argmax(1)
    missed = np.where(stays_T, np.inf, worth * (1 - alike_TT[rows, near]))
    for _ in range(len(rows) - count):
        gone = int(missed.argmin())
        worth[near[gone]] += worth[gone]
        alike_TT[:, gone], missed[gone], kept[gone] = GONE, np.inf, False
        # Only tokens whose nearest was removed, and the heir of its worth, have a new cost.
        again = np.append(np.flatnonzero(near == gone), near[gone])
        near[again] = alike_TT[again].argmax(1)
        # Infinite cost marks tokens that always stay and those that are gone.
        left = again[np.isfinite(missed[again])]
        missed[left] = worth[left] * (1 - alike_TT[left, near[left]])
    return np.flatnonzero(kept)
