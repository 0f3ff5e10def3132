"""Predict first: compare a reader's guess with the answer, and keep the guesses.

The log is the reader's own file. Lines are only ever appended; a line that cannot be read stays where it is and is reported.
"""

import html
import json
import math
import os
from dataclasses import dataclass
from datetime import datetime
from numbers import Real
from pathlib import Path

# Factors that come from a unit and not from reasoning, with what to say about them.
_UNIT_SLIPS = (
    (100.0, "a fraction against a percentage"),
    (1.024, "KiB against kB: powers of two against powers of ten"),
    (1.024**2, "MiB against MB: powers of two against powers of ten"),
    (1.024**3, "GiB against GB: powers of two against powers of ten"),
    (8.0, "bits against bytes"),
    (1e3, "one step of the unit prefix (kilo, mega, giga)"),
    (1024.0, "one step of the unit prefix (KiB, MiB, GiB)"),
    (1e6, "two steps of the unit prefix"),
    (1024.0**2, "two steps of the unit prefix"),
)


def log_path() -> Path:
    """Where predictions are kept: ``$MHA_TO_MLA_PREDICTIONS``, else ``.predictions.jsonl`` at the course's root."""
    given = os.environ.get("MHA_TO_MLA_PREDICTIONS")
    return Path(given) if given else Path(__file__).resolve().parents[2] / ".predictions.jsonl"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: float, unit: str) -> str:
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return f"{number}{unit}" if unit in ("%", "×") else f"{number} {unit}".rstrip()


def _distance(guess: float, answer: float) -> str:
    """How far off, in words: '2.0 times too low', '4% too high'."""
    if answer == 0 or guess == 0 or (guess > 0) != (answer > 0):
        return f"off by {abs(guess - answer):,.4g}"
    ratio = guess / answer
    side = "high" if ratio > 1 else "low"
    if 2 / 3 <= ratio <= 1.5:
        return f"{abs(ratio - 1) * 100:.2g}% too {side}"
    return f"{max(ratio, 1 / ratio):,.{1 if max(ratio, 1 / ratio) < 100 else 0}f} times too {side}"


def _slip(guess: float, answer: float) -> str | None:
    """A factor that a mistaken unit would explain, or None."""
    if guess <= 0 or answer <= 0:
        return None
    ratio = max(guess / answer, answer / guess)
    for factor, what in _UNIT_SLIPS:
        if abs(ratio / factor - 1) < 0.005:
            return what
    return None


def predict(
    name: str, guess: float | None, answer: float, *, unit: str = "", tolerance: float = 0.1, question: str = ""
) -> None:
    """Print how far ``guess`` is from ``answer`` and add both to the log.

    ``tolerance`` is relative: 0.1 accepts 10% either way. While ``guess`` is None nothing is revealed and nothing is logged.
    A guess that is no number is answered with a message, never with an error. ValueError if the author's side is wrong
    (``answer`` no finite number, ``tolerance`` not positive).
    """
    if not _is_number(answer):
        raise ValueError(f"answer must be a finite number, got {answer!r}")
    if not _is_number(tolerance) or tolerance <= 0:
        raise ValueError(f"tolerance must be a positive number, got {tolerance!r}")
    in_unit = f" in {unit}" if unit else ""
    if guess is None:
        print(f"No guess yet for '{name}'. Replace None with a number{in_unit} in the cell above, run it, then run this one.")
        return
    if not _is_number(guess):
        print(
            f"A guess is one finite number{in_unit}, such as guess = 12.5, but this is {guess!r} "
            f"({type(guess).__name__}). Nothing was logged."
        )
        return
    within = abs(guess - answer) <= tolerance * abs(answer)
    told = f"you said {_text(guess, unit)}, the answer is {_text(answer, unit)}"
    if guess == answer:
        print(f"Exactly right: {_text(answer, unit)}.")
    elif within:
        print(f"Right, within {tolerance:.0%}: {told}, {_distance(guess, answer)}.")
    else:
        print(f"Not within {tolerance:.0%}: {told}, {_distance(guess, answer)}.")
        if slip := _slip(guess, answer):
            print(f"That factor looks like {slip}: check the unit before the reasoning.")
    _append(
        {
            "name": name,
            "question": question,
            "guess": float(guess),
            "answer": float(answer),
            "unit": unit,
            "tolerance": tolerance,
            "within": bool(within),
            "when": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
    )


def _append(entry: dict) -> None:
    path = log_path()
    line = json.dumps(entry, ensure_ascii=False)
    try:
        with path.open("a+b") as log:
            # A log that was cut off in the middle of a line must not swallow this one.
            if log.tell() and (log.seek(-1, os.SEEK_END), log.read(1))[1] != b"\n":
                line = "\n" + line
            log.write(line.encode() + b"\n")
    except OSError as problem:
        print(f"The prediction could not be kept in {path.name}: {problem.strerror}.")


@dataclass(frozen=True)
class PredictionLog:
    """What the log holds: ``entries`` as dicts, oldest first, and the numbers of the lines that could not be read."""

    entries: list[dict]
    damaged: list[int]

    def _summary(self) -> str:
        if not self.entries and not self.damaged:
            return "No predictions yet: give a number in a predict cell and run the cell below it."
        right = sum(entry["within"] for entry in self.entries)
        text = f"{right} of {len(self.entries)} predictions within their tolerance."
        if self.damaged:
            lines = ", ".join(map(str, self.damaged))
            text += f" Could not be read and left as they are: line {lines}."
        return text

    def __repr__(self) -> str:
        rows = [
            f"{entry['name']}: {_text(entry['guess'], entry['unit'])} against {_text(entry['answer'], entry['unit'])}, "
            f"{_verdict(entry)}"
            for entry in self.entries
        ]
        return "\n".join([*rows, self._summary()])

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>"
            f"<td style='text-align:left'>{html.escape(entry['question'] or entry['name'])}</td>"
            f"<td>{html.escape(_text(entry['guess'], entry['unit']))}</td>"
            f"<td>{html.escape(_text(entry['answer'], entry['unit']))}</td>"
            f"<td style='text-align:left'>{html.escape(_verdict(entry))}</td></tr>"
            for entry in self.entries
        )
        table = (
            "<table "
            "class='prediction-log'><thead><tr><th>prediction</th><th>you</th><th>answer</th><th>verdict</th></tr>"
            f"</thead><tbody>{cells}</tbody></table>"
            if self.entries
            else ""
        )
        return f"{table}<p>{html.escape(self._summary())}</p>"


def _verdict(entry: dict) -> str:
    if entry["guess"] == entry["answer"]:
        return "✓ exactly"
    return ("✓ " if entry["within"] else "✗ ") + _distance(entry["guess"], entry["answer"])


def _read(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    texts = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "question", "unit"))
    if texts and all(_is_number(entry.get(key)) for key in ("guess", "answer")) and isinstance(entry.get("within"), bool):
        return entry
    return None


def prediction_log() -> PredictionLog:
    """Everything predicted so far, as a table in a notebook."""
    path = log_path()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    entries, damaged = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _read(line)
        if entry is None:
            damaged.append(number)
        else:
            entries.append(entry)
    return PredictionLog(entries, damaged)
