"""What one request may ask for, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the server; an answer that refuses a request names the bound by these names."""

    body_bytes: int = 16 << 20
    """Bytes of a request's body."""
    body_seconds: float = 20.0
    """Time that a client may take to send its body."""
    documents: int = 1000
    """Documents to rerank, passages to add, or candidates to read in one request."""
    characters: int = 200_000
    """Characters of one text."""
    seconds: float = 60.0
    """Time from a request's arrival to its answer, waiting included."""
    queue: int = 256
    """Requests that may wait; further ones are told to come back."""
    batch_tokens: int = 16_384
    """Tokens of the requests that are computed together, by an estimate from their lengths."""
