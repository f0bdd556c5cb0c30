"""The head of a table: its newest version, with checksums of every file that version reads.

Lance compares nothing that it reads, and opens whatever version it finds. The head is written after each
commit and before that is acknowledged. So a version newer than the head was never acknowledged, and where
there is only an older one, what was acknowledged is lost. It also holds a second copy of Lance's manifest.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from decoupled.errors import DecoupledError, panics
from decoupled.index.store.location import TABLE, Location

HEAD = "head.json"
AT_OPEN = 256 << 20
"""Bytes of the table that are compared when a version is opened, the smallest files first."""

Sum = tuple[int, int]
"""Bytes of a file and their CRC-32."""


@dataclass(frozen=True, kw_only=True)
class TableHead:
    """What a version consists of. Only local files are listed: object stores compare checksums themselves."""

    version: int
    rows: int
    """Live rows of the table, markers of parts included."""
    manifest: bytes
    """A copy of Lance's manifest of this version, byte by byte."""
    files: Mapping[str, Sum] = field(default_factory=dict)
    """Size and checksum of each file, by its path in the table."""

    @classmethod
    def of(cls, dataset: Any, location: Location, before: TableHead | None) -> TableHead:
        """The head of the version that a dataset is at; what an older one knows is not read again."""
        sums_before = before.files if before else {}
        sums = {
            f: sums_before.get(f) or location.file_sum(f"{TABLE}/{f}")
            for f in _files(dataset, location)
        }
        return cls(
            version=int(dataset.version),
            rows=int(dataset.count_rows()),
            manifest=location.load(manifest_file(dataset.version)) or b"",
            files={f: file_sum for f, file_sum in sums.items() if file_sum is not None},
        )

    @classmethod
    def load(cls, location: Location) -> TableHead | None:
        """The head of a table; None for one from before there were heads."""
        content = location.load(HEAD)
        if content is None:
            return None
        try:
            fields = json.loads(content)
            if fields.pop("crc32") != _sum(fields):
                raise ValueError("its checksum differs")
            manifest = zlib.decompress(base64.b64decode(fields.pop("manifest")))
            files = {f: (size, crc) for f, (size, crc) in fields.pop("files").items()}
            return cls(manifest=manifest, files=files, **fields)
        except Exception as error:  # whatever a damaged file leads to
            raise damage(location.name, f"{HEAD} is damaged ({error})") from None

    def save(self, location: Location) -> None:
        """Write the head in one step, durably."""
        fields = asdict(self)
        fields["manifest"] = base64.b64encode(zlib.compress(self.manifest)).decode()
        fields["files"] = {f: list(file_sum) for f, file_sum in self.files.items()}
        location.save(HEAD, json.dumps({**fields, "crc32": _sum(fields)}).encode())

    def sound(self, location: Location) -> bool:
        """Whether Lance's manifest of this version is there and unchanged."""
        # What Lance keeps in memory has no manifest that could be loaded.
        return not self.manifest or location.load(manifest_file(self.version)) == self.manifest

    def wrong(self, location: Location, files: Iterable[str], budget: int = AT_OPEN) -> list[str]:
        """The files that are gone, cut off or changed; only `budget` bytes are read, small files first."""
        chosen, total = [], 0
        for file in sorted(files, key=lambda f: self.files[f][0]):
            total += self.files[file][0]
            if total > budget:
                break
            chosen.append(file)
        with ThreadPoolExecutor(4) as pool:
            file_sums = pool.map(lambda f: location.file_sum(f"{TABLE}/{f}"), chosen)
            return [f for f, now in zip(chosen, file_sums, strict=True) if now != self.files[f]]


def verify(location: Location, dataset: Any, verified: set[str]) -> None:
    """Compare a dataset with the head, and bring it up to it where a writer went on meanwhile.

    Files in `verified` were compared before, and the others join them. Raises `DecoupledError` where
    something that was acknowledged is damaged or gone.
    """
    head = sound_head(location)
    if head is not None and head.version > dataset.version:
        dataset.checkout_latest()
        if head.version > dataset.version:
            raise damage(location.name, lost(head.version, dataset.version))
        head = sound_head(location)
    if head is None or head.version != dataset.version:
        return  # a version that its writer has not sealed yet, or never will
    fresh = head.files.keys() - verified
    if wrong := head.wrong(location, fresh):
        rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise damage(location.name, f"{wrong[0]}{rest} of its table is damaged or gone")
    verified |= fresh


def sound_head(location: Location) -> TableHead | None:
    """The head, whose manifest is what was written; `DecoupledError` where it is not."""
    head = TableHead.load(location)
    while head is not None and not head.sound(location):
        again = TableHead.load(location)
        if again is None or again.version == head.version:
            raise damage(
                location.name, f"the manifest of version {head.version} is damaged or gone"
            )
        head = again  # a writer went on, and removed what it superseded
    return head


def damage(name: str, what: str) -> DecoupledError:
    """The error of a store that is not what was written, with the remedy."""
    return DecoupledError(
        f"{name} is damaged: {what}; run `decoupled check {name} --repair`, which says what can be saved, or "
        "restore it from a copy"
    )


def lost(version: int, newest: int) -> str:
    """The message for a table whose newest acknowledged version is gone."""
    return f"version {version} was written and is gone or torn, and version {newest} lacks what it changed"


def manifest_file(version: int) -> str:
    """Lance's manifest of a version, by its path in a location."""
    # Lance numbers manifests downwards, so that the newest is listed first.
    return f"{TABLE}/_versions/{(1 << 64) - 1 - version:020}.manifest"


def trouble(name: str) -> Any:
    """A context in which a panic of Lance becomes a `DecoupledError` that says the remedy."""
    return panics(lambda why: damage(name, f"Lance cannot read it ({why})"))


def _files(dataset: Any, location: Location) -> list[str]:
    """Every file that this version of the table reads."""
    paths = []
    for fragment in dataset.get_fragments():
        paths += [f"data/{file.path}" for file in fragment.metadata.files]
        if (deletions := fragment.metadata.deletion_file) is not None:
            paths.append(deletions.path(fragment.fragment_id))
    for index in dataset.describe_indices():
        for piece in index.segments:
            paths += [
                f"_indices/{piece.uuid}/{n}"
                for n in location.inside(f"{TABLE}/_indices/{piece.uuid}")
            ]
    return paths


def _sum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
