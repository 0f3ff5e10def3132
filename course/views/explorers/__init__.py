"""Explorers: charts whose sliders and menus need no Python, on a page as in a notebook.

Python puts tables of coefficients into the chart (bytes of a cache, FLOPs of a pair, rates of a GPU, recorded times), all
from ``course.costs``, ``kernels.plan`` and recordings. What Vega adds are look-ups, products, sums and the larger of two
numbers; each ``Explorer.expected`` says from ``course.costs`` what must come out, for tests to compare.
"""
