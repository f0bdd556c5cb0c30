"""Readers of passages, queries, judgments and pairs: streaming, in bounded memory."""

from decoupled.index.documents.chunks import CHUNK
from decoupled.index.documents.files import OnError, Problem, Report, Skipped
from decoupled.index.documents.pairs import Pair, Query, Span, read_pairs, read_qrels, read_queries
from decoupled.index.documents.passages import read_passages
from decoupled.index.documents.sources import check_sources, list_files, total_bytes
from decoupled.index.documents.walk import Chosen

__all__ = [
    "CHUNK",
    "Chosen",
    "OnError",
    "Pair",
    "Problem",
    "Query",
    "Report",
    "Skipped",
    "Span",
    "check_sources",
    "list_files",
    "read_pairs",
    "read_passages",
    "read_qrels",
    "read_queries",
    "total_bytes",
]
