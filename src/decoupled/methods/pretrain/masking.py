"""What pre-training hides: whole words, spans of them, and words in another order.

Everything happens on the device of the tokens, drawn from a generator of a seed and the number of the step:
other words are hidden each time, and a run that goes on hides what it would have hidden. Shapes: B texts, T
tokens.
"""

import hashlib

import torch
from torch import Tensor

from decoupled.errors import InputError
from decoupled.model.tokens import Tokenizer, parse_tokenizer

HIDDEN, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask and a random token; the others stay (BERT)."""


def generator(device: torch.device, *numbers: int) -> torch.Generator:
    """A generator that depends on these numbers alone, whatever was drawn before."""
    mixed = hashlib.sha256(repr(numbers).encode()).digest()[:7]
    return torch.Generator(device).manual_seed(int.from_bytes(mixed, "big"))


def choose(
    free_BT: Tensor, begins_BT: Tensor, share: float, draw: torch.Generator, *, words: int = 1
) -> Tensor:
    """`[B,T]`: about that share of the free tokens of each text, at least one, in whole words.

    Up to so many words in a row are chosen together, n of them with a chance of 1/n; 0 chooses tokens.
    """
    ahead = torch.zeros_like(free_BT[:, :1])
    # A word begins anew after a token that is not free, such as a separator.
    begins_BT = begins_BT | ~torch.cat([ahead, free_BT[:, :-1]], 1) | (words == 0)
    span_BT = begins_BT.long().cumsum(1) - 1
    if words > 1:
        chance = 1 / torch.arange(1, words + 1, device=free_BT.device)
        # Span length n with probability proportional to 1/n, as in ALBERT.
        sizes = torch.multinomial(chance, span_BT.numel(), replacement=True, generator=draw) + 1
        ends_BT = sizes.view_as(span_BT).cumsum(1)
        span_BT = torch.searchsorted(ends_BT, span_BT, right=True)
    # Spans in an order by chance, and their tokens in a row: those within the budget are chosen.
    key_BT = _random(free_BT, draw).gather(1, span_BT).masked_fill(~free_BT, 2.0)
    rank_BT = key_BT.argsort(dim=1, stable=True).argsort(dim=1)
    # A span is chosen whole or not at all: its last token must be within the budget.
    last_BT = torch.zeros_like(rank_BT).scatter_reduce(
        1, span_BT, rank_BT.masked_fill(~free_BT, 0), "amax"
    )
    budget_B1 = (share * free_BT.sum(1, keepdim=True)).round().clamp(min=1)
    chosen_BT = (last_BT.gather(1, span_BT) < budget_B1) & free_BT
    # A first word that is longer than the budget gives one of its tokens.
    return chosen_BT | (~chosen_BT.any(1, keepdim=True) & (rank_BT == 0) & free_BT)


def hide(
    ids_BT: Tensor, chosen_BT: Tensor, draw: torch.Generator, *, mask: int, vocab: int
) -> Tensor:
    """The tokens with most of the chosen ones masked, and some exchanged (BERT's 80, 10, 10)."""
    chance_BT = _random(ids_BT, draw)
    other_BT = torch.randint(vocab, ids_BT.shape, generator=draw, device=ids_BT.device)
    hidden_BT = torch.where(
        chance_BT < HIDDEN, mask, torch.where(chance_BT < HIDDEN + RANDOM, other_BT, ids_BT)
    )
    return torch.where(chosen_BT, hidden_BT, ids_BT)


def shuffle(
    free_BT: Tensor, share: float, draw: torch.Generator, *, window: int = 3
) -> tuple[Tensor, Tensor]:
    """Where each token comes from, `[B,T]`, and which were in a window that changed its order.

    Windows of free tokens, as many as cover that share of them, each in an order that is not its own.
    """
    batch, width = free_BT.shape
    place_T = torch.arange(width, device=free_BT.device)
    # Of windows that begin a multiple of their size apart no two overlap; where the first begins is drawn.
    phase_B1 = torch.randint(window, (batch, 1), generator=draw, device=free_BT.device)
    inside_BT = (place_T - phase_B1) % window
    start_BT = place_T - inside_BT
    whole_BT = torch.zeros(batch, width + window, dtype=torch.long, device=free_BT.device)
    whole_BT = whole_BT.scatter_add(1, start_BT.clamp(min=0), (free_BT & (start_BT >= 0)).long())
    usable_BT = (whole_BT.gather(1, start_BT.clamp(min=0)) == window) & (start_BT >= 0)
    key_BT = _random(free_BT, draw).masked_fill(~usable_BT | (inside_BT > 0), 2.0)
    rank_BT = key_BT.argsort(dim=1).argsort(dim=1).gather(1, start_BT.clamp(min=0))
    count_B1 = (share * free_BT.sum(1, keepdim=True) / window).ceil()
    moved_BT = usable_BT & (rank_BT < count_B1)
    order_BTW = torch.rand(batch, width, window, generator=draw, device=free_BT.device).argsort(-1)
    same_BT1 = (order_BTW == torch.arange(window, device=free_BT.device)).all(-1, keepdim=True)
    # An identity permutation would teach nothing, so it is rotated by one.
    order_BTW = torch.where(same_BT1, order_BTW.roll(1, -1), order_BTW)
    own_BTW = order_BTW.gather(1, start_BT.clamp(min=0)[..., None].expand(-1, -1, window))
    source_BT = start_BT + own_BTW.gather(2, inside_BT[..., None])[..., 0]
    return torch.where(moved_BT, source_BT, place_T), moved_BT


def _random(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=draw, device=like.device)


def mask_token(tokenizer: Tokenizer) -> int:
    """The token that stands for one to be guessed."""
    own = parse_tokenizer(tokenizer.json)
    for name in ("[MASK]", "<mask>"):
        if (token := own.token_to_id(name)) is not None:
            return token
    raise InputError(
        "tokenizer.json has neither [MASK] nor <mask>, which pre-training puts for tokens to be guessed; "
        "add one of them, or use another tokenizer"
    )
