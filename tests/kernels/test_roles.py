"""The roles of kernels in Gluon meet: run in plain Python, in many orders. And that faults in their meeting would be found."""

from dataclasses import replace

import pytest

import kernels
from course import copies
from course.measure.shapes import Shape
from tests.kernels.roles import run_attention, run_gradients

pytestmark = pytest.mark.skipif(kernels.MODE == "compiled", reason="kernels are text only where no GPU compiles them")
FILE = "kernels/forward_hopper.py"
# Tiles that are not full, keys more than queries and fewer, a group that shares; one block of keys and several.
SHAPES = [
    Shape(1, 3, 3, 515, q_len=300),
    Shape(1, 2, 1, 300, q_len=257, causal=False),
    Shape(1, 2, 2, 150, q_len=400),
    Shape(1, 2, 1, 640, q_len=640, head_dim_qk=192),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape):
    package = copies.with_text(FILE, copies.shipped_text(FILE))
    for seed in range(5):
        run_attention(package, shape, programs=1, counter=True, section=2, seed=seed)
        run_attention(package, shape, programs=2, counter=False, section=shape.n_q_heads, seed=seed)


@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("shape", [*SHAPES[:2], SHAPES[3]], ids=str)
def test_gradients(shape, head_dim_qk):
    file = "kernels/backward_hopper.py"
    package = copies.with_text(file, copies.shipped_text(file))
    for seed in range(5):
        run_gradients(package, replace(shape, head_dim_qk=head_dim_qk), seed=seed)


FAULTS = {
    "one buffer where the next V is waited for first": (
        "BUFFERS: gl.constexpr = gl.constexpr(2)", "BUFFERS: gl.constexpr = gl.constexpr(1)", "waits for"
    ),
    "K given back while it is read": (
        "    scores = warpgroup_mma_wait(1, deps=[scores])\n    arrive_named(K_EMPTY + k_slot, ALL)\n",
        "    arrive_named(K_EMPTY + k_slot, ALL)\n    scores = warpgroup_mma_wait(1, deps=[scores])\n",
        "written while consumer . still reads",
    ),
    "V given back while it is read": (
        "    acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n    arrive_named(V_EMPTY + v_slot, ALL)\n",
        "    arrive_named(V_EMPTY + v_slot, ALL)\n    acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n",
        "written while consumer . still reads",
    ),
    "V loaded into a buffer that is full": (
        "    if turn >= BUFFERS:\n        wait_named(V_EMPTY + slot, ALL)\n", "",
        "written while consumer . still reads|twice in a round|wrong values",
    ),
    "K not waited for": (
        "    mbarrier.wait(shared.k_full.index(k_slot), (turn + 1) // BUFFERS & 1)\n", "",
        "written while consumer . still reads|products are missing",
    ),
    "V not waited for": (
        "    mbarrier.wait(shared.v_full.index((turn + 1) % BUFFERS), (turn + 1) // BUFFERS & 1)\n", "",
        "written while consumer . still reads|wrong values",
    ),
    "queries loaded over an output that has not left": (
        "                tma.store_wait(0)\n                arrive_named(Q_EMPTY", "                arrive_named(Q_EMPTY",
        "still reads for the output",
    ),
    "the next tile announced over one that is not read": (
        "            wait_named(TILE_EMPTY + part, ONE)\n    shared.tile.store(", "            pass\n    shared.tile.store(",
        "waits for|twice in a round|products are missing|wrong values|output|left half full",
    ),
    "a barrier left behind": (
        "            wait_named(K_EMPTY + (kv_turn - back) % BUFFERS, ALL)\n", "", "left half full"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name):
    old, new, message = FAULTS[name]
    package = copies.with_text(FILE, copies.edited(FILE, [(old, new)], name))
    with pytest.raises(AssertionError, match=message):
        for seed in range(30):
            run_attention(package, SHAPES[0], programs=1, counter=True, section=2, seed=seed)


QUERIES_GIVEN_BACK = "    arrive_named(EMPTY + slot, ALL)\n"
QUERIES_FULL = "    mbarrier.wait(shared.full.index(slot), turn // BUFFERS & 1)\n"
PASSED = "    hand_over(shared, ds, turn, PART)\n"
FAULTS_OF_GRADIENTS = {
    "one place for dS": (
        [("4 if q_tail is None else 2", "1 if q_tail is None else 1")], "waits for|consumer . still reads|wrong"
    ),
    "dS of the other consumer not waited for": (
        [("    mbarrier.wait(shared.ds_full.index(slot), turn // TURNS & 1)\n", "")], "consumer . still reads|wrong blocks"
    ),
    "what is added overwritten on its way": (
        [("    tma.store_wait(0)\n    shared.sums", "    shared.sums")], "still reads for the output"
    ),
    "queries given back while they are read": (
        [
            (PASSED, PASSED + QUERIES_GIVEN_BACK),
            (f"{QUERIES_GIVEN_BACK}    return (dk_head,), dv\n", "    return (dk_head,), dv\n"),
        ],
        "is written while consumer . still reads",
    ),
    "queries not waited for": (
        [(f"{QUERIES_FULL}    scores = issue_scores", "    scores = issue_scores")], "consumer . still reads|wrong blocks"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS_OF_GRADIENTS)
def test_a_fault_of_the_gradients_is_found(name):
    edits, message = FAULTS_OF_GRADIENTS[name]
    file = "kernels/backward_hopper.py"
    package = copies.with_text(file, copies.edited(file, edits, name))
    with pytest.raises(AssertionError, match=message):
        for seed in range(30):
            run_gradients(package, SHAPES[0], seed=seed)
