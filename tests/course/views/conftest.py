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


@pytest.fixture
def with_recording(recorded, monkeypatch):
    """The synthetic recording, found where recordings are looked for."""
    from course import measure

    made = recorded.recording()
    monkeypatch.setattr(measure, "recordings", lambda *args, **kwargs: [made])
    return made


@pytest.fixture
def without_recording(monkeypatch):
    """A machine with no recording at all."""
    from course import measure

    monkeypatch.setattr(measure, "recordings", lambda *args, **kwargs: [])
