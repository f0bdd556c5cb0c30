"""The tools: what each is called with, and its answer as JSON within a budget of tokens."""

import json
from collections.abc import Sequence

from decoupled.errors import InputError
from decoupled.index.stored import AROUND, passage_and_around
from decoupled.model.jsonable import JsonObject
from decoupled.model.tokens import Tokenizer
from decoupled.search.request import Request
from decoupled.search.results import Answer, Answers, Evidence, Hit
from decoupled.serve.http.service import Service

LEAST = 100
"""Tokens without which an answer cannot hold a sentence and where it stands."""
ENVELOPE = 40
"""Tokens that are kept free for what stands around the items."""
LISTED = 100_000
"""Records that `list` looks at."""
EVIDENCE = 3
"""Places that are shown for one answer."""


async def search(
    service: Service, query: str, k: int, where: JsonObject | None, max_tokens: int
) -> JsonObject:
    """The best passages, each with what matters of its text."""
    room = _room(max_tokens)
    request = Request(query=query, head="rank", k=k, retrieve=True, where=where, prune="auto")
    (hits,) = (await service.run([request])).results
    shown = [_hit(hit) for hit in hits if isinstance(hit, Hit)]
    return {**_within(shown, "passages", room, service), **_notes(hits.notes)}


def _hit(hit: Hit) -> JsonObject:
    start, end = hit.place or (hit.offset, hit.offset + len(hit.text))
    place = {"id": hit.id, "source": hit.document, "start": start, "end": end}
    titled = {"headings": hit.title} if hit.title else {}
    return {**place, **titled, "score": round(hit.score, 4), "text": hit.shown_text}


async def ask(service: Service, question: str, max_tokens: int) -> JsonObject:
    """The answers that are likely right, with the sentences they stand in; or that there is none."""
    room = _room(max_tokens)
    request = Request(
        query=question, head="span", k=3, retrieve=True, threshold="auto", prune="auto"
    )
    (answers,) = (await service.run([request])).results
    assert isinstance(answers, Answers)
    shown = [_answer(answer) for answer in answers]
    verdict = {} if shown else {"verdict": answers.verdict.partition("; a threshold")[0]}
    fitted = _within(shown, "answers", room, service)
    return {**fitted, **verdict, **_notes(answers.notes)}


def _answer(answer: Answer) -> JsonObject:
    places = [_place(place) for place in (answer.evidence or (answer,))[:EVIDENCE]]
    return {"text": answer.text, "probability": round(answer.score, 4), "evidence": places}


def _place(place: Evidence) -> JsonObject:
    start, end = place.place or (place.offset + place.start, place.offset + place.end)
    shown = {"id": place.passage_id, "source": place.document, "start": start, "end": end}
    around = place.passage if place.pruned_text is None else place.pruned_text
    return {**shown, "text": around}


async def read(service: Service, ident: str, around: int, max_tokens: int) -> JsonObject:
    """A passage with the text of its document around it."""
    room = _room(max_tokens)
    if not 0 <= around <= AROUND:
        raise InputError(f"around={around}; choose 0 to {AROUND} characters")
    passage, near = await service.in_thread(lambda: passage_and_around(service.newest(), ident))
    start = passage.meta.get("start")
    pieces = [passage]
    if isinstance(start, int):
        low, high = start - around, start + len(passage.text) + around
        pieces = [p for p in near if p.meta["start"] < high and p.meta["start"] + len(p.text) > low]
        start = int(pieces[0].meta["start"])
    last = pieces[-1]
    end = last.meta.get("end") if isinstance(start, int) else None
    titled = {"headings": passage.title} if passage.title else {}
    place = {} if start is None else {"start": start, "end": end}
    shown = {"id": ident, "source": str(passage.meta.get("document") or ident), **place, **titled}
    text = "\n\n".join(piece.text for piece in pieces)
    (item,) = _within([{**shown, "text": text}], "item", room, service)["item"]
    return item


async def list_documents(service: Service, where: JsonObject | None, max_tokens: int) -> JsonObject:
    """The documents of the index, in the order of their names, and how many passages each has."""
    room = _room(max_tokens)

    def look() -> tuple[list[JsonObject], bool]:
        documents: dict[str, JsonObject] = {}
        for number, excerpt in enumerate(service.newest().scan(where)):
            if number == LISTED:
                return list(documents.values()), True
            name = str(excerpt.meta.get("document") or excerpt.id)
            one = documents.setdefault(name, {"source": name, "passages": 0})
            headings = excerpt.meta.get("headings") or [excerpt.title]
            if headings[0]:
                one.setdefault("title", headings[0])
            one["passages"] += excerpt.window == 0
        return sorted(documents.values(), key=lambda one: str(one["source"])), False

    documents, more = await service.in_thread(look)
    notes = _notes([f"only the first {LISTED:,} records were looked at"] if more else [])
    fitted = _within(documents, "documents", room, service)
    return {"total": len(documents), **fitted, **notes}


# Budget -------------------------------------------------------------------------------------------


def _room(max_tokens: int) -> int:
    if max_tokens < LEAST:
        raise InputError(
            f"max_tokens={max_tokens} is too little for an answer; give {LEAST} or more"
        )
    return max_tokens - ENVELOPE


def _within(items: Sequence[JsonObject], name: str, room: int, service: Service) -> JsonObject:
    """As many items as the room has tokens for, by the model's tokenizer; the first is cut if it must be."""
    tokenizer = service.engine.runtime.tokenizer
    kept: list[JsonObject] = []
    for item in items:
        size = _size(tokenizer, item)
        if size > room and not kept and "text" in item:
            item = _cut(item, room, tokenizer)
            size = _size(tokenizer, item)
        if size > room:
            break
        kept.append(item)
        room -= size
    left = len(items) - len(kept)
    more = {"left_out": f"{left} more; raise max_tokens to see them"} if left else {}
    return {name: kept, **more}


def _cut(item: JsonObject, room: int, tokenizer: Tokenizer) -> JsonObject:
    """The item with less evidence, then with less text, so that it fits."""
    if "evidence" in item:
        item = {**item, "evidence": [_cut(item["evidence"][0], room // 2, tokenizer)]}
    spare = room - _size(tokenizer, {**item, "text": ""}) - 2
    (text,) = tokenizer.cut([item["text"]], max(1, spare))
    return item if text == item["text"] else {**item, "text": text + " …", "cut": True}


def _size(tokenizer: Tokenizer, item: JsonObject) -> int:
    return tokenizer.lengths([json.dumps(item, ensure_ascii=False)])[0]


def _notes(notes: Sequence[str]) -> JsonObject:
    return {"notes": list(notes)} if notes else {}
