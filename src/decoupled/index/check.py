"""`check` compares every byte that an index reads with its checksum; `repair` mends what it can.

Whatever can be made again from a passage's text is: states, vectors, search indexes, the codec where it has
no numbers, Lance's manifest from its second copy. A passage whose text is damaged is lost, and named.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from decoupled.errors import DecoupledError
from decoupled.index.encode import encode_passages
from decoupled.index.manifest import (
    CODEC,
    MODEL,
    Manifest,
    check_own_model,
    initial_codec,
    load_codec,
    read_manifest,
    save_codec,
    spec_of,
)
from decoupled.index.store.location import Location, location_of
from decoupled.model.codec import Codec, needs_fit
from decoupled.model.jsonable import JsonObject
from decoupled.model.progress import Progress, counter
from decoupled.model.tokens import Passage
from decoupled.runtime.open import open_runtime


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One part of an index whose bytes differ from what was written."""

    what: str
    repaired: bool = False
    lost: tuple[str, ...] = ()
    """Ids of passages that could not be saved, as far as they can be read."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of `check`: how much was compared, and every damage."""

    index: str
    passages: int = 0
    records: int = 0
    bytes: int = 0
    """Number of bytes that were compared with their checksums."""
    covered: bool = True
    """Whether the table stores checksums; one of an early version gets them from `repair` or a commit."""
    damage: tuple[Damage, ...] = ()

    def to_json(self) -> JsonObject:
        """The result as a JSON object, with the lost ids and the verdict."""
        return {**asdict(self), "lost": list(self.lost), "sound": self.sound}

    @property
    def sound(self) -> bool:
        """Whether everything is as it was written, after any repairs."""
        return all(d.repaired and not d.lost for d in self.damage)

    @property
    def lost(self) -> tuple[str, ...]:
        """Ids of passages that could not be saved."""
        return tuple(dict.fromkeys(i for d in self.damage for i in d.lost))

    @property
    def compared(self) -> str:
        """How much was compared, in words."""
        return f"{self.passages} passages, {self.bytes / 1e6:.1f} MB compared"

    def lines(self) -> Iterator[str]:
        """Lines for a terminal: each damage, the lost passages, and a summary of a sound index."""
        for one in self.damage:
            yield f"{'mended' if one.repaired else 'damaged'}: {one.what}"
        if lost := self.lost:
            shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
            yield f"lost: {shown}; add them again, by the command that made the index"
        if self.sound and not self.covered:
            yield "made before tables had checksums: texts and states were compared; --repair adds them"
        if self.sound:
            yield f"{self.index}: sound ({self.compared})"


def check(index: str | Path, *, repair: bool = False, progress: Progress | None = None) -> Checked:
    """Compare every byte of an index that is read with its checksum; with `repair`, mend what can be.

    Without `repair` nothing is changed and others may write meanwhile; with it this is the one writer.
    """
    location = location_of(index)
    run = _Check(location, repair, counter(progress, location.total()))
    manifest = read_manifest(index)  # nothing can be told of an index without it
    # Model and codec come first: without them no damaged record could be encoded again.
    codec = run.model_and_codec(manifest)
    if codec is not None:
        run.table(manifest, codec)
    return run.done()


@dataclass
class _Check:
    location: Location
    repair: bool
    compared: Callable[[int], None]
    damage: list[Damage] = field(default_factory=list)
    result: Checked = Checked(index="")

    def done(self) -> Checked:
        return replace(self.result, index=self.location.name, damage=tuple(self.damage))

    def add(self, count: int) -> None:
        self.result = replace(self.result, bytes=self.result.bytes + count)
        self.compared(count)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record an error in a part that cannot be made again as damage that stays."""
        try:
            yield
        except DecoupledError as error:
            self.damage.append(Damage(what=str(error)))

    def model_and_codec(self, manifest: Manifest) -> Codec | None:
        """The codec, if it is sound or could be made again; None where records cannot be decoded."""
        folder = self.location.fetch(MODEL)
        with self.noted():
            check_own_model(self.location, manifest, folder)
            if (folder / "openvino").is_dir():
                open_runtime(folder, name="openvino")  # compares the ranges of int8
        self.add(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))
        name, spec = manifest.codec, spec_of(folder)
        try:
            codec = load_codec(self.location, name, spec)
        except DecoupledError as error:
            codec, what = None, str(error)
        else:
            what = f"{CODEC} of {self.location.name} is gone"
        # Before the first passage there is no codec file: only an index with a table has lost one.
        if codec is None and self._begun():
            # A fitted codec cannot be made again: its numbers came from a sample of the corpus.
            again = None if needs_fit(name) else initial_codec(name, spec)
            if again is not None and self.repair:
                save_codec(self.location, again)
            self.damage.append(Damage(what=what, repaired=self.repair and again is not None))
            return again
        return codec

    def _begun(self) -> bool:
        from decoupled.index.store.lance import LanceStore

        return LanceStore.exists(self.location.address)

    def table(self, manifest: Manifest, codec: Codec) -> None:
        """Compare the table and the states, file by file and then record by record."""
        if not self._begun():
            return
        from decoupled.index.store.repair import Inspection

        folder, keep = self.location.fetch(MODEL), manifest.keep_tokens
        titles = manifest.titles

        def encode(passages: list[Passage]) -> list[Any]:
            # The model is loaded only where some record must be encoded again.
            if not runtimes:
                runtimes.append(open_runtime(folder, codec))
            return encode_passages(runtimes[0], codec, passages, titles=titles, keep=keep)

        runtimes: list[Any] = []
        with Inspection(self.location, repair=self.repair, compared=self.add) as seen, self.noted():
            seen.run(encode)
            self.result = replace(
                self.result, passages=seen.passages, records=seen.records, covered=seen.covered
            )
        self.damage += [
            Damage(what=what, repaired=repaired, lost=tuple(lost))
            for what, repaired, lost in seen.damage
        ]
