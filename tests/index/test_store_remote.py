"""Stores under addresses: the package they need, the lease of their writer."""

from __future__ import annotations

import numpy as np
import pytest

from decoupled.errors import DecoupledError, IndexBusy, MissingDependency
from decoupled.index.store import remote
from decoupled.index.store.lance import LanceStore
from decoupled.index.store.location import location_of
from records import TOKEN_BYTES, record


def test_an_address_without_its_package_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(remote, "import_module", missing)
    with pytest.raises(MissingDependency, match=r'pip install "decoupled-transformer\[cluster\]"'):
        LanceStore.open("s3://bucket/docs.idx")


def test_a_lease_lapses(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    uri = f"memory://{tmp_path.name}-lease"
    first = LanceStore.create(uri, token_bytes=TOKEN_BYTES)
    first.append([record("a", vector=False)], part="0")
    with pytest.raises(IndexBusy, match=r"is being written by process .* lapses 10 minutes after"):
        LanceStore.open(uri, write=True)
    monkeypatch.setattr(remote, "LAPSE", 0.0)
    second = LanceStore.open(uri, write=True)
    with pytest.raises(IndexBusy, match="was taken over by another writer"):
        first.append([record("b", vector=False)], part="1")
    first.close()
    monkeypatch.undo()
    with pytest.raises(IndexBusy, match="is being written by process"):
        LanceStore.open(uri, write=True)
    second.append([record("b", vector=False)], part="1")
    assert second.snapshot.passages == 2
    assert second._location.total() > 0
    with pytest.raises(DecoupledError, match="is gone"):
        second._location.read([("absent", 0, 1)], memoryview(bytearray(1)))
    second.close()
    LanceStore.open(uri, write=True).close()


def test_a_claim_of_a_clock_that_went_wrong_lapses(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    location = location_of(f"memory://{tmp_path.name}-future")
    with monkeypatch.context() as ahead:
        ahead.setattr(remote.time, "time", lambda: 4e9)
        first = location.lock()
    location.lock()
    monkeypatch.setattr(remote, "LAPSE", 0.0)  # so that it asks
    with pytest.raises(IndexBusy, match="was taken over by another writer"):
        first.confirm()


class Answered500:
    """An object store that carries a conditional `put` out, answers with an error, and is asked again."""

    def __init__(self, api):
        self._api = api

    def __getattr__(self, name):
        return getattr(self._api, name)

    def put(self, *args, mode="overwrite"):
        self._api.put(*args, mode=mode)
        return self._api.put(*args, mode=mode)


def test_a_writer_knows_its_own_claim_after_an_error(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    location = location_of(f"memory://{tmp_path.name}-claim")
    api = location._api
    location._api = Answered500(api)
    lease = location.lock()  # made
    monkeypatch.setattr(remote, "LAPSE", 0.0)
    lease.confirm()  # renewed
    second = location.lock()  # taken over
    with pytest.raises(IndexBusy, match="was taken over by another writer"):
        lease.confirm()
    monkeypatch.undo()
    lease.release()  # not its own any more
    location._api = api
    with pytest.raises(IndexBusy, match="is being written by process"):
        location.lock()
    second.release()
    location.lock().release()


def test_whatever_is_asked_of_a_store_that_cannot_be_reached_is_one_error(tmp_path):
    obstore = pytest.importorskip("obstore")

    class Unreachable:
        exceptions = obstore.exceptions

        def __getattr__(self, name):
            def fail(*_, **__):
                raise obstore.exceptions.GenericError("no route to host\nDebug source: …")

            return fail

    location = location_of(f"memory://{tmp_path.name}-unreachable")
    lease = location.lock()
    location._api = lease._api = Unreachable()
    for ask in (
        lambda: location.put([np.zeros(1, np.uint8)]),
        lambda: location.length("a"),
        lambda: location.read([("a", 0, 1)], memoryview(bytearray(1))),
        location.segments,
        lambda: location.remove("a"),
        location.names,
        lambda: location.load("a"),
        lambda: location.save("a", b""),
        lambda: location.stamp("a"),
        lambda: location.fetch("model"),
        lambda: location.publish("model", lambda path: path.write_bytes(b"")),
        location.total,
        location.lock,
        lease.release,
    ):
        with pytest.raises(DecoupledError, match=r"cannot be reached \(no route to host\); check"):
            ask()
