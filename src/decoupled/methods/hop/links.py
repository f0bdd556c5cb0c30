"""Reading candidates along their links: what the best of them point to, and which of them hear each other.

Two passages are linked where the metadata of one names the id of the other (`"links": ["id", …]`), where they
share a title, or where one mentions the title of the other. Where the best candidates have neither title nor
links, their own vectors say what is near them, and each passage hears all others.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from decoupled.index.record import Excerpt
from decoupled.index.store.base import Ranking, Rows, Snapshot
from decoupled.model.parts.head import HeadKind
from decoupled.model.tokens import Passage
from decoupled.runtime.base import Logits, Runtime
from decoupled.search.cross import score
from decoupled.search.request import SearchRun

READ = 24
"""The number of first-stage candidates that are read together."""
SEEDS = 8
"""The number of best candidates of a hop whose links are followed."""
FOLLOW = 4
"""The number of passages that are followed by the title, or else the vector, of each of them."""


def follow(snapshot: Snapshot, hits: Ranking, hops: int) -> Ranking:
    """The best candidates, followed by the passages they are linked to, again for each further hop."""
    rows, seeds = hits.rows[:READ], hits.rows[:SEEDS]
    step = _linked_to if any(map(_says, snapshot.texts(seeds))) else _near
    for _ in range(hops - 1):
        if not len(seeds):
            break
        new = step(snapshot, seeds)
        # Each passage once, in the order in which the best candidates name it.
        fresh = [row for row in dict.fromkeys(np.concatenate(new).tolist()) if row not in rows]
        seeds = np.array(fresh[: SEEDS * FOLLOW], np.int64)
        rows = np.concatenate([rows, seeds])
        seeds = seeds[:SEEDS]
    return Ranking(rows, np.zeros(len(rows), np.float32))


def _says(text: Excerpt) -> bool:
    """Whether a passage has anything to be linked by."""
    return bool(text.title.strip() or given_links(text))


def _linked_to(snapshot: Snapshot, seeds: Rows) -> list[Rows]:
    texts = snapshot.texts(seeds)
    titles = dict.fromkeys(text.title for text in texts if text.title.strip())
    named = [_named(snapshot, text) for text in texts]
    return named + [snapshot.lexical(title, FOLLOW).rows for title in titles]


def _near(snapshot: Snapshot, seeds: Rows) -> list[Rows]:
    """Rows near the seeds by the passages' own vectors, each of which finds itself too."""
    return [snapshot.dense(v, FOLLOW + 1).rows for v in snapshot.vectors(seeds) if v.any()] or [
        seeds
    ]


def _named(snapshot: Snapshot, text: Excerpt) -> Rows:
    """Rows of the passages that a passage links to; a link to nothing is passed over."""
    ids = given_links(text)
    digests = snapshot.digests(ids)
    return snapshot.locate([id for id, own in zip(ids, digests, strict=True) if own is not None])


def given_links(text: Excerpt | Passage) -> list[str]:
    """The ids that the metadata of a passage names as links; none where it is no list of ids."""
    ids = text.meta.get("links")
    if not isinstance(ids, list | tuple) or not all(isinstance(id, str) for id in ids):
        return []
    return list(ids)


def linked(texts: Sequence[Excerpt | Passage]) -> npt.NDArray[np.bool_]:
    """`[N,N]` mask of the windows that hear from each other."""
    links = np.zeros((len(texts), len(texts)), bool)
    names = [text.title.strip().casefold() for text in texts]
    bodies, named = (
        [text.text.casefold() for text in texts],
        [set(map(str, given_links(t))) for t in texts],
    )
    if not any(names) and not any(named):
        return ~np.eye(len(texts), dtype=bool)
    for n, text in enumerate(texts):
        for m, other in enumerate(texts):
            links[n, m] = (
                other.id in named[n]
                or text.id == other.id
                or bool(names[m] and (names[m] == names[n] or names[m] in bodies[n]))
            )
    # Hearing goes both ways, whichever passage names the other.
    links |= links.T
    np.fill_diagonal(links, False)
    return links


def score_linked(runtime: Runtime, search: SearchRun, heads: Sequence[HeadKind]) -> Logits:
    """Logits of all windows of a search in one batch, in which linked windows hear each other."""
    query, windows = search.encoding.states, search.windows
    if not len(windows):
        return score(runtime, query, windows.states, heads)
    texts = [text for _, text in search.describe(range(len(windows)))]
    return runtime.cross(query, windows.states, heads, links=linked(texts))
