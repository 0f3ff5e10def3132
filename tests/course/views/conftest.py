"""What the tests of views share."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("views_recorded", Path(__file__).with_name("recorded.py"))
recorded_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recorded_module)


@pytest.fixture
def recorded():
    """The module that makes synthetic recordings."""
    return recorded_module


@pytest.fixture(scope="session")
def other_kinds():
    """The synthetic recordings of other kinds than decode steps; making them takes longer than most tests."""
    return {"prefill": recorded_module.full_sequence_recording(), "mla": recorded_module.mla_recording()}


@pytest.fixture
def with_recording(recorded, other_kinds, monkeypatch):
    """The synthetic recordings, found where recordings are looked for; the one of decode steps is returned."""
    from course import measure

    made = recorded.recording()
    monkeypatch.setattr(measure, "recordings", lambda gpu=None, kind="decode", **_: [other_kinds.get(kind, made)])
    return made


@pytest.fixture
def without_recording(monkeypatch):
    """A machine with no recording at all."""
    from course import measure

    monkeypatch.setattr(measure, "recordings", lambda *args, **kwargs: [])
