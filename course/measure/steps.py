"""The steps that make `forward_hopper.py` fast, each described by the edits that undo it in the shipped file.

From these come the rungs of a ladder, which begins with all steps undone and does one after the other, and the losses, where
all are done but one. Every variant is the whole package with one file edited: it is checked and timed as the shipped one is.
"""

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from .. import copies
from ..copies import Edit


@dataclass(frozen=True)
class Step:
    """One step, done in the shipped file.

    name: one word. title: what is done, for a table. edits: (text that stands once in the file, text without the step) each.
    why: what it is for, in a sentence or two. file: path in the repository.
    """

    name: str
    title: str
    why: str
    edits: tuple[Edit, ...]
    file: str = "kernels/forward_hopper.py"


# The arithmetic of a block, which stands either under the products in flight or after them.
_SOFTMAX = """\
    m_new, shift, weights = weigh(m, scores, scale_log2, visible, block, MASKED, SCORES)
    rescale = gl.exp2(m * scale_log2 - shift)
    sums = thread_sums(weights)
    l = l * gl.convert_layout(gl.expand_dims(rescale, 1), sums.type.layout) + sums
"""
_NEXT_V = "    mbarrier.wait(shared.v_full.index((turn + 1) % BUFFERS), (turn + 1) // BUFFERS & 1)\n"
_PRODUCTS_DONE = "    acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n"

STEPS = (
    Step(
        "buffers",
        "two buffers each for K and V",
        "With one buffer the next block is loaded only after both consumers have used this one. With two, copies run while the "
        "tensor cores work.",
        (
            ("BUFFERS: gl.constexpr = gl.constexpr(2)", "BUFFERS: gl.constexpr = gl.constexpr(1)"),
            # One buffer cannot hold the next V while this one is used: it is waited for at the end of the turn.
            (_NEXT_V, "    mbarrier.wait(shared.v_full.index(v_slot), turn // BUFFERS & 1)\n"),
            ("    return m_new, l, acc, pack(", f"{_NEXT_V}    return m_new, l, acc, pack("),
        ),
    ),
    Step(
        "unmasked",
        "no mask in the inner loop",
        "Only blocks that the diagonal crosses are compared with it. All others go through a loop without a mask.",
        (("unmasked = gl.minimum(gl.maximum(row + 1 + sizes.kv_len - sizes.q_len, 0) // BLOCK_N, last)", "unmasked = 0"),),
    ),
    Step(
        "overlap",
        "the softmax under the product before",
        "The tensor cores multiply the weights of one block with its values while the other units compute the softmax of the "
        "next: only the scores are waited for before it, not both products.",
        (
            (_SOFTMAX, ""),
            ("    acc = acc * gl.expand_dims(", f"{_SOFTMAX}    acc = acc * gl.expand_dims("),
        ),
    ),
    Step(
        "branch",
        "a branch between the softmax and the wait",
        "A wait for a product is moved up by the compiler over arithmetic that does not need the product, here over the whole "
        "softmax. It is not moved over a branch, and the wait for the next V is one.",
        (
            ("    # The branch that keeps the next wait below the softmax.\n", _PRODUCTS_DONE),
            (f"& 1)\n{_PRODUCTS_DONE}    arrive_named(V_EMPTY + v_slot", "& 1)\n    arrive_named(V_EMPTY + v_slot"),
        ),
    ),
    Step(
        "pairs",
        "weights from turn to turn as pairs in int32",
        "A tensor of 16-bit numbers that lives over the edge of a loop is unpacked into single registers and packed again in "
        "every turn. Pairs in 32-bit numbers stay as the tensor cores want them.",
        (
            ("p = unpack(pairs, shared.v.dtype, gl.DotOperandLayout(0, OUTPUT, 2))",
             "p = gl.convert_layout(pairs, gl.DotOperandLayout(0, OUTPUT, 2))"),
            ("return m_new, l, acc, pack(weights, shared.v.dtype)", "return m_new, l, acc, weights.to(shared.v.dtype)"),
            ("pairs = pack(weights, shared.v.dtype)", "pairs = weights.to(shared.v.dtype)"),
        ),
    ),
    Step(
        "sums",
        "row sums per thread",
        "The four threads that hold a row add their sums once a tile instead of once a block.",
        (("return gl.sum(gl.reshape(p, [ROWS, BLOCK_N // 8, 8]), 1)", "return gl.expand_dims(gl.sum(p, 1), 1)"),),
    ),
    Step(
        "persistent",
        "programs that stay, tile after tile",
        "One program for each SM takes tile after tile, and loads the queries and keys of the next while the one before is "
        "finished and written. A program for each tile begins with empty buffers.",
        (
            ("programs = min(n_tiles, device_of(q).sm_count)", "programs = n_tiles"),
            ("group_size, programs, causal, tail > 0)", "group_size, device_of(q).sm_count, causal, tail > 0)"),
            ("lse.new_zeros(1, dtype=torch.int32) if order.drawn else None", "None"),
        ),
    ),
    Step(
        "sections",
        "heads in sections",
        "A few heads are finished before the next begin, so that several programs want the same keys at the same time.",
        (("section_heads(n_heads // group_size, group_size * row_tiles, causal) * group_size", "n_heads"),),
    ),
    Step(
        "named",
        "named barriers to give K and V back",
        "At a barrier in shared memory all threads of a consumer meet first, then one of them arrives. At a named barrier each "
        "warp arrives and goes on.",
        (
            ("    v_full: object\n", "    v_full: object\n    k_empty: object\n    v_empty: object\n"),
            ("        v_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),\n",
             "        v_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),\n"
             "        k_empty=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),\n"
             "        v_empty=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),\n"),
            ("        mbarrier.init(shared.v_full.index(i), count=1)\n",
             "        mbarrier.init(shared.v_full.index(i), count=1)\n"
             "        mbarrier.init(shared.k_empty.index(i), count=2)\n"
             "        mbarrier.init(shared.v_empty.index(i), count=2)\n"),
            ("    if turn >= BUFFERS:\n        wait_named(K_EMPTY + slot, ALL)\n",
             "    mbarrier.wait(shared.k_empty.index(slot), turn // BUFFERS & 1 ^ 1)\n"),
            ("    if turn >= BUFFERS:\n        wait_named(V_EMPTY + slot, ALL)\n",
             "    mbarrier.wait(shared.v_empty.index(slot), turn // BUFFERS & 1 ^ 1)\n"),
            ("    arrive_named(K_EMPTY + k_slot, ALL)\n", "    mbarrier.arrive(shared.k_empty.index(k_slot))\n"),
            ("arrive_named(K_EMPTY + kv_turn % BUFFERS, ALL)", "mbarrier.arrive(shared.k_empty.index(kv_turn % BUFFERS))"),
            ("    arrive_named(V_EMPTY + v_slot, ALL)\n", "    mbarrier.arrive(shared.v_empty.index(v_slot))\n"),
            ("arrive_named(V_EMPTY + kv_turn % BUFFERS, ALL)", "mbarrier.arrive(shared.v_empty.index(kv_turn % BUFFERS))"),
            ("    # A program must not end with a named barrier half full. By now the consumers know that there is no next "
             "tile.\n    for back in gl.static_range(1, BUFFERS + 1):\n"
             "        if kv_turn >= back:\n"
             "            wait_named(K_EMPTY + (kv_turn - back) % BUFFERS, ALL)\n"
             "            wait_named(V_EMPTY + (kv_turn - back) % BUFFERS, ALL)\n", ""),
        ),
    ),
)  # fmt: skip
NAMES = tuple(step.name for step in STEPS)

# The ladder's rungs and the losses, as sets of undone steps. The last rung but one is the loss of the last step.
LADDER = tuple(frozenset(NAMES[n:]) for n in range(len(NAMES) + 1))
LOSSES = {name: frozenset({name}) for name in NAMES}
BARE = "bare"


def variant(undone: frozenset[str]) -> str:
    """How a recording calls the variant: 'bare', 'up to overlap', 'without overlap'. ValueError for what is not recorded."""
    if len(undone) == 1:
        return f"without {next(iter(undone))}"
    if undone not in LADDER[:-1]:
        raise ValueError(f"undone must be a rung or one step ({', '.join(NAMES)}), got {sorted(undone)}")
    rung = LADDER.index(undone)
    return f"up to {NAMES[rung - 1]}" if rung else BARE


VARIANTS = {variant(undone): undone for undone in (*LADDER[:-1], *LOSSES.values())}


def step(name: str) -> Step:
    """The step of that name. ValueError if there is none."""
    for each in STEPS:
        if each.name == name:
            return each
    raise ValueError(f"there is no step {name!r} (there are: {', '.join(NAMES)})")


def text(undone: Iterable[str]) -> str:
    """The file with these steps undone. Raises ValueError for a name that no step has, and where an edit does not apply."""
    steps = [step(name) for name in undone]
    return copies.edited(STEPS[0].file, [edit for each in steps for edit in each.edits], " and ".join(s.name for s in steps))


def diff(done: Step) -> str:
    """What the step changes, as a unified diff from the file without it to the shipped one."""
    before, after = (x.splitlines(keepends=True) for x in (text([done.name]), copies.shipped_text(done.file)))
    return "".join(difflib.unified_diff(before, after, f"without {done.name}", done.file))


@functools.cache
def load(undone: frozenset[str]) -> ModuleType:
    """The package `kernels` with these steps undone, under a name that is the same in each process."""
    return copies.with_text(STEPS[0].file, text(sorted(undone)), "kernels_" + variant(undone).replace(" ", "_"))
