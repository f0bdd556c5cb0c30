"""`CrossEncoder` of sentence-transformers over an engine: its calls and shapes, stored passages read once.

from decoupled.integrations.cross_encoder import CrossEncoder
CrossEncoder("docs.idx").rank("who wrote Dracula?", documents, top_k=3)
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoupled.errors import InputError
from decoupled.index.stored import stored_passages
from decoupled.model.scoring import sigmoid
from decoupled.search.engine import Engine
from decoupled.search.request import listed
from decoupled.search.results import Hits

REMEMBER = 256 << 20
"""Bytes in which the states of texts that no index holds are kept, for those that come again."""
TOGETHER = 32
"""Number of queries that are scored in one pass."""


class CrossEncoder:
    """Scores pairs of texts. `source` is an index, a model folder, a checkpoint, or an engine.

    A document that the index holds, word for word, is read from its stored states (which know its title too);
    any other is encoded now. Batches are made by tokens, so `batch_size` is taken and not needed; prompts and
    devices are those of the engine.
    """

    def __init__(self, source: str | Path | Engine) -> None:
        self.engine = source if isinstance(source, Engine) else Engine(source, remember=REMEMBER)
        self._ids: dict[bytes, str] = {}
        self._version: int | None = None

    @property
    def num_labels(self) -> int:
        """Number of outputs: 1 for a model that ranks, else its number of classes."""
        kinds = {head.kind: head for head in self.engine.spec.heads}
        ranks = "rank" in kinds or "classes" not in kinds
        return 1 if ranks else kinds["classes"].outputs

    def predict(  # noqa: PLR0913  # the signature of sentence-transformers
        self,
        inputs: Sequence[Sequence[str]] | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **_: Any,
    ) -> Any:
        """A score for each (query, document) pair, in order; a row of logits each where the model classifies.

        Scores are probabilities unless `activation_fn`, which gets a tensor of logits, makes them something
        else. One pair alone gives one score.
        """
        _refuse_prompts(prompt, prompt_name)
        pairs = [inputs] if _is_pair(inputs) else list(inputs)
        logits = self._logits(_checked(pairs), show_progress_bar)
        scores = self._activated(logits, activation_fn, bool(apply_softmax))
        if convert_to_tensor or not convert_to_numpy:
            tensor = _tensor(scores)
            scores = tensor if convert_to_tensor else list(tensor)
        return scores[0] if _is_pair(inputs) else scores

    def rank(  # noqa: PLR0913  # the signature of sentence-transformers
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        **_: Any,
    ) -> list[dict[str, object]]:
        """`{"corpus_id", "score"}` of the best documents, best first; with their `text` on request."""
        self.engine.spec.reads("rank")
        _refuse_prompts(prompt, prompt_name)
        pairs = _checked([(query, document) for document in documents])
        scores = self._activated(self._ranked(pairs, show_progress_bar), activation_fn, False)
        # Equal scores stay in the caller's order.
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [
            {"corpus_id": n, "score": float(scores[n])}
            | ({"text": documents[n]} if return_documents else {})
            for n in order
        ]

    def _logits(self, pairs: list[tuple[str, str]], shown: bool | None) -> npt.NDArray[np.float32]:
        if self.num_labels == 1:
            return self._ranked(pairs, shown)
        labels = self.engine.classify(pairs, raw=True)
        rows = [list(label.scores.values()) for label in labels]
        return np.array(rows, np.float32).reshape(len(pairs), self.num_labels)

    def _ranked(self, pairs: list[tuple[str, str]], shown: bool | None) -> npt.NDArray[np.float32]:
        """The logit of each pair: those of one query together, each different document once."""
        by_query: dict[str, list[int]] = {}
        for number, (query, _) in enumerate(pairs):
            by_query.setdefault(query, []).append(number)
        logits, stored = np.zeros(len(pairs), np.float32), self._stored()
        queries = list(by_query)
        for start in _progress(range(0, len(queries), TOGETHER), shown):
            requests, positions = [], []
            for query in queries[start : start + TOGETHER]:
                texts = {n: pairs[n][1] for n in by_query[query]}
                ids = {n: stored[key] for n, text in texts.items() if (key := _key(text)) in stored}
                documents = listed(ids, {n: t for n, t in texts.items() if n not in ids})
                requests.append(documents.request(query, raw=True))
                positions.append(documents.positions)
            for hits, where in zip(self.engine.run(requests), positions, strict=True):
                if isinstance(hits, Exception):
                    raise hits
                assert isinstance(hits, Hits)
                hits.check_whole()
                for hit in hits:
                    logits[where[hit.id]] = hit.score
        return logits

    def _stored(self) -> dict[bytes, str]:
        """The id of each passage that the index holds, by its text and by its title and text."""
        if self.engine.index is None:
            return {}
        snapshot = self.engine.index.refresh()
        # Reading all texts takes long, so it is done once for each version of the index.
        if snapshot.version != self._version:
            titled, plain = dict[bytes, str](), dict[bytes, str]()
            for passage in stored_passages(snapshot):
                plain[_key(passage.text)] = passage.id
                if passage.title:
                    titled[_key(f"{passage.title} {passage.text}")] = passage.id
            # Where a text alone and a title with a text are the same, the text alone counts.
            self._ids, self._version = titled | plain, snapshot.version
        return self._ids

    def _activated(
        self, logits: npt.NDArray[np.float32], function: Callable[[Any], Any] | None, softmax: bool
    ) -> Any:
        scores = logits
        if function is not None:
            scores = function(_tensor(logits)).numpy()
        elif self.num_labels == 1 or logits.ndim == 1:
            scores = sigmoid(logits.astype(np.float64)).astype(np.float32)
        if softmax and scores.ndim > 1:
            # Less the maximum, so that exp does not overflow.
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            scores = weights / weights.sum(-1, keepdims=True)
        return scores


def _is_pair(inputs: Sequence[Any]) -> bool:
    return len(inputs) == 2 and all(isinstance(text, str) for text in inputs)


def _refuse_prompts(prompt: str | None, prompt_name: str | None) -> None:
    if prompt is not None or prompt_name is not None:
        raise InputError("prompts are not read; put the prompt into the query")


def _checked(pairs: Iterable[Any]) -> list[tuple[str, str]]:
    checked = []
    for number, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(t, str) for t in pair):
            raise InputError(f"input {number} is {pair!r:.60}; give pairs of two strings")
        checked.append((pair[0], pair[1]))
    return checked


def _tensor(values: npt.NDArray[np.float32]) -> Any:
    """The values as a torch tensor; only callers who ask for tensors need torch."""
    return import_module("torch").as_tensor(values)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _progress(steps: range, shown: bool | None) -> Iterable[int]:
    if not shown:
        return steps
    from tqdm.auto import tqdm

    return tqdm(steps, desc="Batches")
