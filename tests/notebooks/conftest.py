"""What our cell tags mean to nbval.

Loaded before the notebooks are collected because the commands that run them name this folder, or its parent, first.
"""

import os

from nbval.plugin import metadata_tags

os.environ.setdefault("MHA_TO_MLA_PAGE", "1")  # the stored outputs were made for a page

# What differs between machines is not compared; a check is, even in a lax run (on a GPU, or without Triton).
metadata_tags.update(dict.fromkeys(("bootstrap", "figure", "live"), ("check", False)), check=("check", True))
