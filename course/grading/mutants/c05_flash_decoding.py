"""Wrong versions of the merge and of the split decode kernel."""

from . import Mutant

WEIGHT = """        # Natural log and base e on purpose: a state alone has weight exp(0) = 1 and comes out unrounded.
        weight = tl.exp(part - shift)
"""
LOOP = "    for first in range(0, num_splits, BLOCK_S):\n"

MUTANTS = (
    Mutant(
        "merge_averages",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        WEIGHT,
        '        weight = tl.where(part == float("-inf"), 0.0, 1.0)\n',
        "Partial outputs are averaged: every split that has keys gets the same say, whatever its mass. Nearly right as long "
        "as the splits are equally long and the scores alike, so a test on one long random sequence passes.",
        "no public report is known to us; the first idea of many who merge for the first time, and the course's hand-worked "
        "example (2.1192 instead of 2.5813)",
        given=True,
    ),
    Mutant(
        "merge_weighs_in_base_two",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        WEIGHT,
        "        weight = tl.exp2(part - shift)\n",
        "Natural log-sum-exps are weighed in base 2. Nothing fails; a short state gets too much of the sum, because base 2 "
        "flattens the differences. Several libraries shipped the mix-up in one direction or the other, where one kernel kept "
        "its state in base 2 and the next one took it for natural.",
        "flashinfer-ai/flashinfer issue 2113; vllm-project/vllm pull requests 28840 and 47079",
        given=True,
    ),
    Mutant(
        "merge_returns_base_two",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        "largest + tl.log(total)))",
        "largest + tl.log2(total)))",
        "The merged output is right and the log-sum-exp is not, so nobody sees it until the result is merged once more: with "
        "a shared prefix, with another GPU, with a sink.",
        "sgl-project/sglang issue 40903, pull request 35045; pytorch/pytorch issue 181645",
        given=True,
    ),
    Mutant(
        "merge_weighs_empty_outputs",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        "values = tl.where((weight > 0.0)[:, None], values.to(tl.float32), 0.0)",
        "values = values.to(tl.float32)",
        "The output of a state without keys counts with the weight 0. If nobody wrote it, it may hold NaN, and 0 times "
        "NaN is NaN. It happened where trailing splits without tokens returned early and left their memory as it was.",
        "lvyufeng/PocketLLM pull request 98",
    ),
    Mutant(
        "merge_reads_one_block",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        LOOP,
        "    for first in range(0, BLOCK_S, BLOCK_S):\n",
        "The merge takes the first block of states and forgets the rest. A table of fixed size for the log-sum-exps does the "
        "same, or worse, when more splits come than it has places.",
        "flashinfer-ai/flashinfer pull request 3395 (review: the table of the merge kernel is not checked against the splits)",
    ),
    Mutant(
        "merge_shifts_by_minus_infinity",
        "05_flash_decoding.weights",
        "kernels/merge.py",
        'shift = tl.where(largest == float("-inf"), 0.0, largest)',
        "shift = largest",
        "If every split of a row is empty, the largest log-sum-exp is -inf and the shift computes -inf - -inf, which is NaN. "
        "Requests without tokens are rare in tests and common in a padded batch.",
        "tile-ai/tilelang issue 328",
    ),
    Mutant(
        "idle_split_rescales_by_nan",
        "05_flash_decoding.idle",
        "kernels/online_softmax.py",
        """    # A row that still has no key keeps m = -inf; shifting by it would compute -inf - -inf.
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
""",
        "    shift = m_new\n",
        "A row that has seen no key keeps its maximum at -inf, and rescaling computes exp(-inf - -inf). With one query token "
        "a split without tokens never enters the loop, so it takes several new tokens, or a mask, to meet it.",
        "pegainfer-project/pegainfer pull request 21",
        given=True,
    ),
    Mutant(
        "nothing_over_nothing",
        "05_flash_decoding.idle",
        "kernels/online_softmax.py",
        "total = tl.where(empty, 1.0, l)",
        "total = l",
        "A row without keys divides 0 by 0. The merge hides it, for it does not read the output of an empty state; with one "
        "split there is no merge.",
        "pegainfer-project/pegainfer pull request 21 (an idle split has to write output 0 and log-sum-exp -inf)",
        given=True,
    ),
    Mutant(
        "split_drops_the_tail",
        "05_flash_decoding.idle",
        "kernels/decode.py",
        "blocks_per_split = tl.cdiv(tl.cdiv(kv_len, BLOCK_N), num_splits)",
        "blocks_per_split = tl.cdiv(kv_len, BLOCK_N) // num_splits",
        "The number of tiles is divided by the number of splits and rounded down: the tiles that are left over are read by "
        "nobody, and with more splits than tiles nothing is read at all. All is well for powers of two.",
        "tile-ai/TileOPs issue 89, pull request 101 (decode kernels that took the length to be a multiple of splits and tiles)",
        given=True,
    ),
)
