"""Masks, fillings and strides of the first softmax."""

from . import Mutant

_FILE = "kernels/first.py"
_TASK = "p2_triton.mask"

MUTANTS = (
    Mutant(
        name="row_without_a_mask",
        task=_TASK,
        file=_FILE,
        old=', mask=columns < n_columns, other=float("-inf")).to(tl.float32)',
        new=").to(tl.float32)",
        story="Lanes beyond the end of a row load what lies there, the next row or the next head, and it takes part in the "
        "sums. In one library gradients were wrong in the first tokens of every head but the first.",
        source="flagos-ai/FlagGems PR 898",
        given=True,
    ),
    Mutant(
        name="padding_holds_zero",
        task=_TASK,
        file=_FILE,
        old='    """Columns start, start + 1, … of a row as a tile [BLOCK] in float32, -inf where the row has ended."""\n'
        "    columns = (start + tl.arange(0, BLOCK)).to(tl.int64)\n"
        '    return tl.load(row + columns * column_stride, mask=columns < n_columns, other=float("-inf")).to(tl.float32)',
        new='    """Columns start, start + 1, … of a row as a tile [BLOCK] in float32."""\n'
        "    columns = (start + tl.arange(0, BLOCK)).to(tl.int64)\n"
        "    return tl.load(row + columns * column_stride, mask=columns < n_columns, other=0.0).to(tl.float32)",
        story="Padding is masked, but holds 0, and exp(0 - m) is a plausible number that every sum takes up. Lengths that fill "
        "their blocks do not show it; those that do not give too small weights.",
        source="ROCm/triton issue 666 and fla-org/flash-linear-attention issue 88, on lengths that do not fill their blocks",
        given=True,
    ),
    Mutant(
        name="column_stride_forgotten",
        task=_TASK,
        file=_FILE,
        old="tl.load(row + columns * column_stride, mask=columns < n_columns,",
        new="tl.load(row + columns, mask=columns < n_columns,",
        story="A kernel that takes every tensor for contiguous reads wrong elements of a transpose, and says nothing. The "
        "best known case is a backward pass that assumed the strides of the output for its gradient.",
        source="Dao-AILab/flash-attention issue 355",
        given=True,
    ),
    Mutant(
        name="sum_of_the_last_block",
        task=_TASK,
        file=_FILE,
        old="        total += tl.sum(tl.exp(scores - shift), 0)\n",
        new="        total = tl.sum(tl.exp(scores - shift), 0)\n",
        story="The sum of each block replaces that of the blocks before it. Rows of one block are right. A plausible slip; no "
        "incident is meant.",
        source="the forward twin of gradients that are overwritten instead of summed",
        given=True,
    ),
    Mutant(
        name="maximum_of_the_last_block",
        task=_TASK,
        file=_FILE,
        old="        largest = tl.maximum(largest, tl.max(scores, 0))\n",
        new="        largest = tl.max(scores, 0)\n",
        story="The shift is the largest score of the last block. The result does not change, until an earlier block is larger "
        "by 88 and exp overflows. A plausible slip; no incident is meant.",
        source="Milakov and Gimelshein 2018 (1805.02867), section 2, on why softmax is shifted",
    ),
    Mutant(
        name="softmax_without_a_shift",
        task=_TASK,
        file=_FILE,
        old="    weights = tl.exp(scores - shift)\n",
        new="    weights = tl.exp(scores)\n",
        story="The formula as it stands in books: right for small scores, infinite from 88.8 on in float32. A plausible slip; "
        "no incident is meant.",
        source="Milakov and Gimelshein 2018 (1805.02867), section 2",
    ),
    Mutant(
        name="empty_row_is_nan",
        task=_TASK,
        file=_FILE,
        old='    shift = tl.where(largest == float("-inf"), 0.0, largest)\n    weights',
        new="    shift = largest\n    weights",
        story="A row without a score has a maximum of -inf, and -inf - -inf is NaN. In kernels that work on parts of a row an "
        "idle part poisoned the whole result that way.",
        source="tile-ai/tilelang issue 328",
    ),
)
