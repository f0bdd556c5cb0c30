"""What became of each file of a corpus: read, unchanged, cut, skipped or left out, and why."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from decoupled.index.documents.files import File, Problem, ending_of

Status = Literal["read", "unchanged", "cut", "skipped", "left out"]
_WHY = 72
"""Characters of a reason in the table."""


class FileOutcome(NamedTuple):
    """A file, what became of it, and why it was not read whole."""

    path: str
    status: Status
    why: str = ""


def outcomes(
    files: Iterable[File], unchanged: Collection[str], problems: Iterable[Problem]
) -> tuple[FileOutcome, ...]:
    """The outcome of every file that was listed, and of every other one that a problem names."""
    statuses: dict[str, FileOutcome] = {}
    for problem in problems:
        lost: Status = "skipped" if problem.line is None else "cut"
        status: Status = lost if problem.kind == "lost" else "left out"
        # Of several lines of a file the first is told; one that is empty is no cut.
        if problem.line is None or problem.kind != "left out":
            statuses.setdefault(problem.path, FileOutcome(problem.path, status, problem.message))
    for file in files:
        whole: Status = "unchanged" if file.name in unchanged else "read"
        statuses.setdefault(file.shown, FileOutcome(file.shown, whole))
    return tuple(statuses.values())


def table_lines(files: Sequence[FileOutcome]) -> Iterator[str]:
    """A table by ending, where not every file was read: counts, and the commonest reason."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for path, status, why in files:
        counts[ending_of(path)][status] += 1
        if why:
            reasons[ending_of(path)][why] += 1
    if not reasons:
        return
    yield f"{'ending':<18}{'read':>8}{'cut':>6}{'skipped':>9}{'left out':>10}  why"
    for ending, count in sorted(counts.items(), key=lambda item: -item[1].total()):
        read = count["read"] + count["unchanged"]
        why, times = (reasons[ending].most_common(1) or [("", 0)])[0]
        short = f"{why[:_WHY]}…" if len(why) > _WHY else why
        more = f" ({times} of {reasons[ending].total()})" if times < reasons[ending].total() else ""
        yield (
            f"{ending[:17]:<18}{read:>8,}{count['cut']:>6,}{count['skipped']:>9,}"
            f"{count['left out']:>10,}  {short}{more}"
        ).rstrip()
