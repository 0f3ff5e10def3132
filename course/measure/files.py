"""A recording's files: the one of a run under way, which grows row by row, and the sealed one.

Every finished row goes to ``<kind>.partial.jsonl`` at once. A run that is broken off keeps them; the next one goes on from
there if plan, kernels, GPU and versions are the same, and sets the old file aside otherwise. A complete file becomes
``<kind>-<date>.json``, which nothing overwrites.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from .recordings import load


class Partial:
    """The file of a run under way: a header line, then one line a read or row, each complete or (the last) cut off."""

    def __init__(self, path: Path, provenance: dict, say: Callable[[str], None]):
        self.path = path
        self.parts: dict[str, list[dict]] = {"read": [], "limit": [], "row": []}
        self.provenance = provenance
        header = {"provenance": provenance}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _complete_lines(path)
        if lines and comparable(lines[0]["provenance"]) == comparable(provenance):
            self.provenance = lines[0]["provenance"]
            for line in lines[1:]:
                for what, value in line.items():
                    self.parts[what].append(value)
            say(f"going on from {path.name}: {len(self.parts['row'])} rows are there")
        elif path.exists():
            aside = free_name(path, ".partial.jsonl")
            path.rename(aside)
            say(f"{path.name} belongs to another plan, kernels, GPU or versions: now {aside.name}; starting anew")
            lines = []
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines or [header]))
        os.replace(temporary, path)  # without the half line that a kill may have left
        self._file = path.open("a")

    def append(self, what: str, value: dict) -> None:
        self.parts[what].append(value)
        self._file.write(json.dumps({what: value}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def comparable(provenance: dict) -> dict:
    """What has to agree for one run to go on from another: all but the day and the commit."""
    return {**provenance, "date": None, "commit": None}


def up_to_date(kind: str, folder: Path, provenance: dict) -> str | None:
    """Name of a sealed recording in ``folder`` of the same plan, kernels, GPU and versions."""
    for path in sorted(folder.glob(f"{kind}-*.json"), reverse=True):
        recording = load(path)
        if recording.kind == kind and comparable(recording.provenance) == comparable(provenance):
            return path.name
    return None


def _complete_lines(path: Path) -> list[dict]:
    """Parsed lines up to the first that is damaged: a killed run may leave half a line."""
    lines: list[dict] = []
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
    return lines


def free_name(path: Path, suffix: str) -> Path:
    """``path``, or with -2, -3, … before the suffix if it is taken."""
    stem, number = path.name.removesuffix(suffix), 2
    while path.exists():
        path = path.with_name(f"{stem}-{number}{suffix}")
        number += 1
    return path


def seal(data: dict, path: Path) -> Path:
    """Write the recording in one step, under a name that is free."""
    path = free_name(path, ".json")
    temporary = path.with_name(path.name + ".tmp")
    # One line a row: readable, and a difference between two recordings shows where it is.
    head = json.dumps({key: data[key] for key in ("schema", "kind", "provenance")}, indent=2).removesuffix("\n}")
    for part in ("reads", "limits", "rows"):
        head += f',\n  "{part}": [' + ",".join(f"\n    {json.dumps(entry, allow_nan=False)}" for entry in data[part]) + "\n  ]"
    temporary.write_text(head + "\n}\n")
    os.replace(temporary, path)
    return path
