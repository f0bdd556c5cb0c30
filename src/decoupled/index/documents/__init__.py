"""Readers of passages: streaming, in bounded memory."""

from decoupled.index.documents.chunks import CHUNK
from decoupled.index.documents.files import OnError, Problem, Report, Skipped
from decoupled.index.documents.passages import read_passages
from decoupled.index.documents.sources import check_sources, list_files, total_bytes
from decoupled.index.documents.walk import Chosen

__all__ = [
    "CHUNK",
    "Chosen",
    "OnError",
    "Problem",
    "Report",
    "Skipped",
    "check_sources",
    "list_files",
    "read_passages",
    "total_bytes",
]
