"""How the course starts Jupyter kernels, for storing outputs and for testing them. Standard library only."""

import os
from pathlib import Path

CELL_TIMEOUT = 120  # seconds


def quiet_kernels(folder: Path) -> None:
    """Let Jupyter kernels that this process starts print errors only; ``folder`` receives their configuration.

    Otherwise each kernel writes a notice about its transport to stderr when it starts.
    """
    profile = folder / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40  # errors only\n")
    os.environ["IPYTHONDIR"] = str(folder)
