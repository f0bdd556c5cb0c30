"""What one request may ask for, how much may wait, and who may ask: bounds, keys, and the Host header."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from decoupled.errors import InputError
from decoupled.serve.http.responses import RequestProblem

OPEN = ("/health", "/ready", "/")
"""Never behind a key: they tell nothing. Nor are the parts of the page, under /static/."""
SOURCE = "/v1/source/"
"""Where the files are that passages came from."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the server; an answer that refuses a request names the bound by these names."""

    connections: int = 1000
    """Connections at once, or fewer where this process may not open so many files."""
    header_bytes: int = 32 << 10
    """Bytes of a request's headers, its path included."""
    headers: int = 100
    """Number of headers of a request."""
    header_seconds: float = 10.0
    """Seconds that a client may take to connect and send its headers."""
    body_bytes: int = 16 << 20
    """Bytes of a request's body."""
    body_seconds: float = 20.0
    """Seconds that a client may take to send its body."""
    bytes_in_flight: int = 128 << 20
    """Bytes of all bodies that are arriving or being answered, beyond the first 64 KiB of each."""
    values: int = 100_000
    """Values in a body: items of lists and fields of objects, however deep."""
    depth: int = 64
    """Depth to which lists and objects may be nested in a body."""
    documents: int = 1000
    """Documents to rerank, passages to add, or candidates to read in one request."""
    characters: int = 200_000
    """Characters of one text."""
    query_characters: int = 8192
    """Characters of a query or a question, of which the model reads the beginning."""
    id_characters: int = 4096
    """Characters of a passage's id."""
    seconds: float = 60.0
    """Seconds from a request's arrival to its answer, waiting included."""
    queue: int = 256
    """Requests that may wait; further ones are told to come back."""
    queue_seconds: float = 3.0
    """Seconds of work that may wait, by the pace so far; what would wait longer is told to come back."""
    tokens_in_flight: int = 2_000_000
    """Tokens of all requests that wait or are computed, by an estimate from their lengths."""
    writer_seconds: float = 0.0
    """Seconds that a change waits for another writer of the index, before it is refused."""
    batch_tokens: int = 16_384
    """Tokens of the requests that are computed together, by an estimate from their lengths."""

    def check(self, limit: str, what: str, size: int) -> None:
        """Raise a `RequestProblem` where a request is beyond one of these."""
        bound: int = getattr(self, limit)
        if size > bound:
            message = f"{what} is {size:,}; this server's limit {limit} is {bound:,}"
            if limit == "body_bytes":  # what is left of it is not read
                raise RequestProblem(413, message, kind="limit", headers={"connection": "close"})
            raise RequestProblem(422, message, kind="limit")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Keys, and what they are needed for."""

    keys: tuple[bytes, ...] = ()
    protect_reads: bool = False
    """Ask for a key for queries too, not only for changes."""
    writes: bool = True
    """Whether the index may be changed at all."""
    hosts: tuple[str, ...] = ()
    """Names under which queries without a key are taken, beside those of this machine; `*` for any."""
    files: Literal["none", "local", "all"] = "none"
    """Who may open the files that passages came from: nobody, this machine, or whoever may query."""

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise a `RequestProblem` unless the request may pass."""
        # Queries are POST since they have a body; what changes the index is PUT or DELETE.
        change = method not in ("GET", "HEAD", "OPTIONS", "POST")
        is_open = path in OPEN or path.startswith("/static/")
        host = host_name(headers.get("host", ""))
        opens = self.files == "all" or (self.files == "local" and is_local(host))
        if path.startswith(SOURCE) and not opens:
            raise _forbidden("this server does not open files under this name", "--open-files")
        if change and not self.writes:
            raise _forbidden("this server does not change its index", "--api-key-file to allow it")
        if self.keys and self._has_key(headers):
            return
        if self.keys and (change or (self.protect_reads and not is_open)):
            message = "an API key is needed: send it as `Authorization: Bearer KEY`"
            scheme = {"www-authenticate": "Bearer"}
            raise RequestProblem(401, message, kind="unauthorized", headers=scheme)
        # A page from elsewhere can make a browser send requests here under a name of its own.
        if is_local(host) or (is_open and not change):
            return
        if change:
            why = "without API keys, changes are taken only for localhost"
            raise _forbidden(why, "--api-key-file")
        if host not in self.hosts and "*" not in self.hosts:
            why = f"this server is not asked under the name {host[:80]!r} without an API key"
            raise _forbidden(why, "--allow-host NAME")

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key_sent = (key if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip()
        sent = key_sent.encode("utf-8", "surrogateescape")
        # Every key is compared, so that the time says nothing about which one was close.
        return any([hmac.compare_digest(sent, key) for key in self.keys])


def _forbidden(why: str, option: str) -> RequestProblem:
    return RequestProblem(403, f"{why}; start it with {option}", kind="forbidden")


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    # Several colons without brackets are an IPv6 address, not a port.
    return name.partition(":")[0] if name.count(":") <= 1 else name


def is_local(host: str) -> bool:
    """Whether a Host header, or an address, names the machine itself."""
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of a file: one a line; empty lines and those that begin with # are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the key file {path} cannot be read: {error}") from None
    stripped = [line.strip() for line in lines]
    keys = tuple(k.encode() for k in stripped if k and not k.startswith("#"))
    if not keys:
        raise InputError(f"the key file {path} holds no key; write one a line")
    return keys
