"""The probe for processors that advertise what they cannot run."""

from __future__ import annotations

import os

import pytest

from decoupled.runtime import cpu


@pytest.fixture(autouse=True)
def own_machine(monkeypatch, tmp_path):
    """A cache of its own, and an environment that ends with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != cpu.VARIABLE})


def pretend(monkeypatch, *, survives: bool) -> list[str]:
    """A processor with AMX, whose probe lives or dies; returns the probes that were run."""
    runs: list[str] = []
    monkeypatch.setattr(cpu, "flags", lambda: frozenset({"avx512f", "amx_tile", "amx_bf16"}))
    monkeypatch.setattr(cpu, "_survives", lambda code: runs.append(code) or survives)
    return runs


def test_without_amx_nothing_is_probed(monkeypatch):
    runs = pretend(monkeypatch, survives=False)
    monkeypatch.setattr(cpu, "flags", lambda: frozenset({"avx2"}))
    assert cpu.amx_works() is None and cpu.protect() is False and runs == []


def test_a_probe_that_dies_caps_the_instruction_set_once(monkeypatch):
    runs = pretend(monkeypatch, survives=False)
    assert cpu.protect() is True
    assert os.environ[cpu.VARIABLE] == cpu.CAP
    assert cpu.protect() is False, "already capped"
    del os.environ[cpu.VARIABLE]
    assert cpu.amx_works() is False and len(runs) == 1, "the verdict is kept"


def test_a_probe_that_lives_changes_nothing(monkeypatch):
    pretend(monkeypatch, survives=True)
    assert cpu.amx_works() is True and cpu.protect() is False
    assert cpu.VARIABLE not in os.environ


def test_a_user_s_own_cap_stays(monkeypatch):
    pretend(monkeypatch, survives=False)
    os.environ[cpu.VARIABLE] = "AVX2"
    assert cpu.protect() is False and os.environ[cpu.VARIABLE] == "AVX2"


def test_a_child_that_dies_is_seen():
    assert cpu._survives("pass") is True
    assert cpu._survives("import os, signal; os.kill(os.getpid(), signal.SIGILL)") is False


def test_a_damaged_verdict_is_probed_again(monkeypatch):
    runs = pretend(monkeypatch, survives=False)
    cpu.amx_works()
    (verdict,) = cpu.cache_folder().glob("amx-*.json")
    verdict.write_text("half")
    assert cpu.amx_works() is False and len(runs) == 2
