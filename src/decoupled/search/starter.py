"""What comes with the package: the starter model, sample passages, and questions to ask them."""

import atexit
import itertools
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from decoupled.index.documents import read_passages
from decoupled.index.index import Index
from decoupled.index.manifest import is_index
from decoupled.model import folder
from decoupled.model.sums import SUMS
from decoupled.model.tokens import Passage
from decoupled.runtime.cpu import cache_folder
from decoupled.search.engine import Engine

SAMPLE = Path(__file__).parents[1] / "assets" / "sample"
PASSAGES = SAMPLE / "passages.jsonl.gz"


@dataclass(frozen=True, kw_only=True)
class SampleQuestion:
    """A question about the sample passages, with the answers that count as right."""

    question: str
    answers: tuple[str, ...]


def sample_passages(on_bytes: Callable[[int], None] | None = None) -> Iterator[Passage]:
    """Paragraphs of Wikipedia, from the development set of SQuAD (see assets/sample/NOTICE)."""
    return read_passages(PASSAGES, chunk=None, on_bytes=on_bytes)


def sample_questions() -> list[SampleQuestion]:
    """Questions that no bundled model was trained on."""
    lines = (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [SampleQuestion(question=r["question"], answers=tuple(r["answers"])) for r in rows]


def sample_pairs() -> list[tuple[str, str]]:
    """Questions with passages to read them in: what a model is calibrated on when nothing else is given."""
    questions = itertools.cycle(sample.question for sample in sample_questions())
    return [(question, p.text) for question, p in zip(questions, sample_passages(), strict=False)]


def sample_index(path: Path | None = None, *, runtime: str = "auto") -> Index:
    """The index of the sample passages, open for writing; call `add(sample_passages())` to complete it."""
    model = folder.starter_model()
    if path is None:
        spec = folder.read_spec(model)
        tokenizer = folder.read_tokenizer(model, spec)
        mark = folder.fingerprint(spec, folder.read_tensors(model, spec.is_input), tokenizer.json)
        # An index copies its model with all of its files, so a change of any is another index.
        files = [model / SUMS, *sorted(model.glob("*/*.safetensors"))]
        copied = zlib.crc32(b"".join(file.read_bytes() for file in files))
        path = cache_folder() / f"sample-{mark[:12]}-{copied:08x}.idx"
    if is_index(path):
        return Index.open(path, model=model, write=True, runtime=runtime)
    return Index.create(path, model, runtime=runtime)


def sample_copy(path: Path) -> Path:
    """A copy of the sample index that may be changed at will; it goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="decoupled-sample-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copytree(path, folder / "sample.idx"))


def open(*, runtime: str = "auto") -> Engine:
    """An engine over the sample passages with the starter model; the first call builds its index."""
    with sample_index(runtime=runtime) as index:
        # Passages that are stored already are passed over, so a finished index is only compared.
        index.add(sample_passages())
    return sample_engine(index.path, runtime=runtime)


def sample_engine(path: Path, *, runtime: str = "auto") -> Engine:
    """An engine over a finished sample index, with the starter model as this installation has it."""
    return Engine(Index.open(path, model=folder.starter_model(), runtime=runtime))
