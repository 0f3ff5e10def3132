"""Open the notebooks in JupyterLab; $MHA_TO_MLA is set, so that they work wherever they are saved to.

python -m course.site lab [arguments of jupyter lab]
"""

import os
import sys

from . import ROOT


def main(arguments: list[str]) -> None:
    lab = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={ROOT}",
        "--LabApp.default_url=/lab/tree/notebooks",
    ]
    if os.geteuid() == 0:
        lab.append("--allow-root")  # inside a container there is often no other user
    os.execv(sys.executable, lab + arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
