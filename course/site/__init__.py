"""What builds the book: the two commands, the Sphinx extension, executing and normalising notebooks, bootstrap and address.

Modules that have to start on a fresh machine (this one, ``__main__`` and ``environment``) use the standard library only and
no syntax newer than Python 3.6, because it is their job to find a Python that is new enough.
"""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "_build")
