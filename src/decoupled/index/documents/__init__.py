"""Readers of passages, queries, judgments and pairs: streaming, in bounded memory."""

from decoupled.index.documents.files import OnError, Problem, Report
from decoupled.index.documents.pairs import Pair, Query, Span, read_pairs, read_qrels, read_queries
from decoupled.index.documents.passages import read_passages
from decoupled.index.documents.sources import total_bytes

__all__ = [
    "OnError",
    "Pair",
    "Problem",
    "Query",
    "Report",
    "Span",
    "read_pairs",
    "read_passages",
    "read_qrels",
    "read_queries",
    "total_bytes",
]
