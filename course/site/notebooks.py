"""Execute the notebooks and store their outputs so that a second run changes nothing.

    python -m course.site notebooks [NAME ...]      all of them, or those whose file name begins with a NAME

The outputs are what a reader without a GPU sees, so notebooks are executed on the CPU. Strict nbval (``make test``) shows
when a stored output no longer agrees with its code.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from . import ROOT, jupyter, test

FOLDER = Path(ROOT, "notebooks")

# A view without its widget's state draws nothing, and its id is new at each run; the html beside it is what a page shows.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

FAILURES = (CellExecutionError, CellTimeoutError, DeadKernelError)

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


def paths() -> list[Path]:
    """Every notebook of the course, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """The notebook at ``path``, as format 4."""
    return nbformat.read(path, as_version=4)


def serialised(notebook: NotebookNode) -> str:
    """The text of the file that holds ``notebook``."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write ``notebook`` unless the file already says the same; return whether it was written. Never leaves half a file."""
    text = serialised(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
    return True


def stored_faults(path: Path) -> list[str]:
    """What must not be published: an error output nobody meant, a cell that was never run."""
    code = [(n, cell) for n, cell in enumerate(read(path).cells, 1) if cell.cell_type == "code" and cell.source.strip()]
    name = path.relative_to(ROOT)
    faults = [
        f"{name}, cell {number} holds an error: {output.ename}: {output.evalue}"
        for number, cell in code
        if "raises-exception" not in cell.metadata.get("tags", [])
        for output in cell.outputs
        if output.output_type == "error"
    ]
    unrun = [str(number) for number, cell in code if cell.execution_count is None]
    if unrun:
        faults.append(f"{name} has cells without stored outputs ({', '.join(unrun)}); make notebooks runs them")
    return faults


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with neighbouring pieces of one stream joined: where a stream is cut depends on timing."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def normalise(notebook: NotebookNode) -> None:
    """Keep what a reader sees and drop what differs from run to run or from machine to machine, in place."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
            for output in cell.outputs:
                output.get("data", {}).pop(WIDGET_VIEW, None)
                if output.output_type == "error":
                    # File names and line numbers of the machine that ran it.
                    output.traceback = [f"{output.ename}: {output.evalue}"]


def execute(path: Path) -> bool:
    """Run the notebook at ``path`` from its own folder, store its outputs, return whether the file changed.

    Where a cell fails, one of ``FAILURES`` is raised and the file is left as it was.
    """
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=jupyter.CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    os.environ["MHA_TO_MLA_PAGE"] = "1"  # explorers add what a page shows
    client.execute()
    normalise(notebook)
    return write(notebook, path)


def main(names: list[str]) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if (mode := test.mode()) != "interpreter":
        sys.exit(f"Stored outputs come from Triton's interpreter; here kernels are in mode '{mode}'.")
    with tempfile.TemporaryDirectory() as folder:
        jupyter.quiet_kernels(Path(folder))
        chosen = [path for path in paths() if not names or path.name.startswith(tuple(names))]
        if not chosen:
            sys.exit(f"No notebook begins with {' or '.join(names)}. There are: {', '.join(path.name for path in paths())}")
        failed = []
        for path in chosen:
            print(path.relative_to(ROOT), "...", end=" ", flush=True)
            try:
                print("changed" if execute(path) else "unchanged")
            except FAILURES as failure:
                print("failed\n" + re.sub(r"\x1b\[[\d;]*m", "", str(failure)))  # without the colours
                failed.append(path.name)
    if failed:
        sys.exit(f"Failed and left as they were: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
