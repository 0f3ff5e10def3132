"""Softmax of a row whose scores arrive tile by tile: the step every attention kernel of the course shares.

A row carries three numbers: ``m``, the largest score so far; ``l``, the sum of exp(score - m); and ``acc``, the sum of
exp(score - m) times the value. A larger score in a later tile only shifts the reference point, so the old ``l`` and ``acc``
are rescaled by exp(m_old - m_new) and nothing is approximated (Milakov and Gimelshein 2018, section 3; Dao et al. 2022,
algorithm 1).

Exponentials are taken in base 2: the caller folds log2(e) into the scale, because exp2 is one GPU instruction and exp is two.
The state leaves through ``finish`` in natural log, and base 2 is seen nowhere else.
"""

from ._mode import tl, triton

LOG2_E = 1.4426950408889634
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def begin(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """State of rows that have seen no key: m = -inf, l = 0, acc = 0."""
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    return m, l, acc


@triton.jit
def weigh(m, l, scores, scale_log2):
    """Take in the scores of one tile, [ROWS, BLOCK_N], not yet scaled, -inf where hidden.

    Returns the new m and l, the factor [ROWS] that rescales an older acc, and the tile's weights [ROWS, BLOCK_N]. The scale
    has to be positive: then the largest score stays the largest, and scaling and shifting are one multiply-add.
    """
    m_new = tl.maximum(m, tl.max(scores, 1) * scale_log2)
    # A row that still has no key keeps m = -inf; shifting by it would compute -inf - -inf.
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    rescale = tl.exp2(m - shift)
    p = tl.exp2(scores * scale_log2 - shift[:, None])
    return m_new, l * rescale + tl.sum(p, 1), rescale, p


@triton.jit
def finish(m, l, acc):
    """Output [ROWS, WIDTH] and natural log-sum-exp [ROWS]; a row without keys gives 0 and -inf."""
    empty = l == 0.0
    total = tl.where(empty, 1.0, l)
    lse = tl.where(empty, float("-inf"), (m + tl.log2(total)) * LN_2)
    return acc / total[:, None], lse
