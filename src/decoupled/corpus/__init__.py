"""Readers of passages, queries, judgments and pairs: streaming, in bounded memory."""

from decoupled.corpus.layouts import Pair, Span
from decoupled.corpus.pairs import read_pairs
from decoupled.corpus.passages import read_passages
from decoupled.corpus.problems import OnError, Problem, Report
from decoupled.corpus.queries import Query, read_qrels, read_queries
from decoupled.corpus.sources import total_bytes

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
