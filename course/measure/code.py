"""Which code a recording measured: a digest that goes on when statements change, not when somebody words a comment better."""

import hashlib
import io
import tokenize
from functools import cache
from pathlib import Path

import kernels

LAYOUT = (tokenize.NL, tokenize.COMMENT)
BETWEEN_STATEMENTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


@cache
def kernels_sha256() -> str:
    """SHA-256 over the statements of the package ``kernels``: a recording names the kernels it measured by it."""
    return sha256(Path(kernels.__file__).parent)


def is_current(provenance: dict) -> bool:
    """Whether the kernels that a recording or report is about are the ones that are here now."""
    return provenance["kernels_sha256"] == kernels_sha256()


def sha256(folder: Path) -> str:
    """SHA-256 over the names and statements of the Python files in a folder, the same under every version of Python."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        total.update(f"{path.name}\0{statements(path.read_text())}\0".encode())
    return total.hexdigest()


def statements(source: str) -> str:
    """The text without comments, docstrings, blank lines and spaces at the ends of lines."""
    lines = source.splitlines()
    for (row, column), (last_row, last_column) in reversed(_comments_and_docstrings(source)):
        lines[row - 1 : last_row] = [lines[row - 1][:column] + lines[last_row - 1][last_column:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _comments_and_docstrings(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Start and end of each, as line and column. A string that is a statement of its own counts as a docstring."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    code = [token for token in tokens if token.type not in LAYOUT]
    found = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    for before, token, after in zip([None, *code], code, code[1:], strict=False):
        opens = before is None or before.type in BETWEEN_STATEMENTS
        if token.type == tokenize.STRING and opens and after.type == tokenize.NEWLINE:
            found.append((token.start, token.end))
    return sorted(found)
