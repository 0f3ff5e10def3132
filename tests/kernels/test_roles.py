"""The roles of kernels in Gluon meet: run in plain Python, in many orders. And that faults in their meeting would be found."""

from dataclasses import replace

import pytest

import kernels
from course import copies
from course.measure.shapes import Shape
from tests.kernels.roles import run_attention, run_decode, run_gradients, run_mla

pytestmark = pytest.mark.skipif(kernels.MODE == "compiled", reason="kernels are text only where no GPU compiles them")
FORWARD, BACKWARD, DECODE, MLA = (f"kernels/{name}_hopper.py" for name in ("forward", "backward", "decode", "mla"))
# Tiles that are not full, keys more than queries and fewer, a group that shares; one block of keys and several.
SHAPES = [
    Shape(1, 3, 3, 515, q_len=300),
    Shape(1, 2, 1, 300, q_len=257, causal=False),
    Shape(1, 2, 2, 150, q_len=400),
    Shape(1, 2, 1, 640, q_len=640),
]
ORDERS = 5


def with_edits(file, edits=(), name="shipped"):
    return copies.with_text(file, copies.edited(file, edits, name))


@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape, head_dim_qk):
    package, shape = with_edits(FORWARD), replace(shape, head_dim_qk=head_dim_qk)
    for seed in range(ORDERS):
        run_attention(package, shape, programs=1, counter=True, section=2, seed=seed)
        for n_paired in (0, 2):
            run_attention(package, shape, programs=2, counter=False, section=shape.n_q_heads, n_paired=n_paired, seed=seed)


@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("shape", [*SHAPES[:2], SHAPES[3]], ids=str)
def test_gradients(shape, head_dim_qk):
    package = with_edits(BACKWARD)
    for seed in range(ORDERS):
        run_gradients(package, replace(shape, head_dim_qk=head_dim_qk), seed=seed)


@pytest.mark.parametrize(
    ("lengths", "n_q_heads", "n_kv_heads", "q_len", "num_splits"),
    [([300], 64, 1, 2, 1), ([129, 700], 16, 2, 4, 3), ([5, 129], 16, 2, 8, 2), ([200, 0, 384], 32, 1, 5, None)],
)
def test_decode(lengths, n_q_heads, n_kv_heads, q_len, num_splits):
    """Splits, some without tokens, and a share of a work list; two consumers, one that only stands by, and a second tile."""
    package = with_edits(DECODE)
    for seed in range(ORDERS):
        run_decode(package, lengths, n_q_heads=n_q_heads, n_kv_heads=n_kv_heads, q_len=q_len, num_splits=num_splits, seed=seed)


@pytest.mark.parametrize(
    ("lengths", "n_q_heads", "num_splits"),
    [([300], 64, 1), ([129, 700], 96, 3), ([64, 1, 513], 16, None), ([200, 0, 384], 128, None)],
)
def test_mla(lengths, n_q_heads, num_splits):
    """Splits, and a share of a work list, over sequences that end within a block and one that is empty."""
    package = with_edits(MLA)
    for seed in range(ORDERS):
        run_mla(package, lengths, n_q_heads=n_q_heads, num_splits=num_splits, seed=seed)


RUN = {
    FORWARD: lambda package, seed: run_attention(package, SHAPES[0], programs=1, counter=True, section=2, seed=seed),
    BACKWARD: lambda package, seed: run_gradients(package, SHAPES[0], seed=seed),
    DECODE: lambda package, seed: run_decode(
        package, [200, 0, 384, 70, 90, 60, 300], n_q_heads=64, n_kv_heads=1, q_len=2, num_splits=None, seed=seed
    ),
    MLA: lambda package, seed: run_mla(package, [200, 0, 384], n_q_heads=64, num_splits=None, seed=seed),
}
READ = "is written while consumer . still reads"
WRONG = "wrong|products are missing| holds |loaded before|twice in a round"
K_READ, V_READ = "    arrive_named(K_EMPTY + k_slot, ALL)\n", "    arrive_named(V_EMPTY + v_slot, ALL)\n"
SOFTMAX = "    m_new, shift, weights = weigh("
BOTH_ISSUED = "    if q_tail is None:\n        scores = warpgroup_mma_wait(1"
PRODUCTS_DONE = "    acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n"
QUERIES_READ = "    arrive_named(EMPTY + slot, ALL)\n"
QUERIES_FULL = "    mbarrier.wait(shared.full.index(slot), turn // BUFFERS & 1)\n"
TILE = "    shared.tile.store("
PASSED = "    hand_over(shared, ds, turn, PART)\n"
LEFT_DONE = "    acc, weights = warpgroup_mma_wait(0, deps=[product, weights])\n"
K0_LEFT_READ = "    arrive_named(K0_LEFT_READ, CONSUMER_AND_PRODUCER)\n"
QUERIES_WAIT = "            if used > 0:\n                wait_named(Q_READ, CONSUMERS_AND_PRODUCER)\n"
FAULTS = {
    "one buffer where the next V is waited for first": (
        FORWARD, [("BUFFERS: gl.constexpr = gl.constexpr(2)", "BUFFERS: gl.constexpr = gl.constexpr(1)")], "waits for",
    ),
    "K given back while it is read": (FORWARD, [(K_READ + SOFTMAX, SOFTMAX), (BOTH_ISSUED, K_READ + BOTH_ISSUED)], READ),
    "V given back while it is read": (FORWARD, [(PRODUCTS_DONE + V_READ, V_READ + PRODUCTS_DONE)], READ),
    "V loaded into a buffer that is full": (
        FORWARD, [("    if turn >= BUFFERS:\n        wait_named(V_EMPTY + slot, ALL)\n", "")], f"{READ}|{WRONG}",
    ),
    "K not waited for": (
        FORWARD, [("    mbarrier.wait(shared.k_full.index(k_slot), (turn + 1) // BUFFERS & 1)\n", "")], f"{READ}|{WRONG}",
    ),
    "V not waited for": (
        FORWARD, [("    mbarrier.wait(shared.v_full.index((turn + 1) % BUFFERS), (turn + 1) // BUFFERS & 1)\n", "")],
        f"{READ}|{WRONG}",
    ),
    "queries loaded over an output that has not left": (
        FORWARD,
        [("                tma.store_wait(0)\n                arrive_named(Q_EMPTY", "                arrive_named(Q_EMPTY")],
        "still reads for the output",
    ),
    "the next tile announced over one that is not read": (
        FORWARD, [(f"            wait_named(TILE_EMPTY + part, ONE)\n{TILE}", f"            pass\n{TILE}")],
        f"{WRONG}|waits for|output|left half full",
    ),
    "a barrier left behind": (
        FORWARD, [("            wait_named(K_EMPTY + (kv_turn - back) % BUFFERS, ALL)\n", "")], "left half full",
    ),
    "one place for dS": (BACKWARD, [("4 if q_tail is None else 2", "1 if q_tail is None else 1")], f"{READ}|{WRONG}|waits for"),
    "dS of the other consumer not waited for": (
        BACKWARD, [("    mbarrier.wait(shared.ds_full.index(slot), turn // TURNS & 1)\n", "")], f"{READ}|{WRONG}",
    ),
    "what is added overwritten on its way": (
        BACKWARD, [("    tma.store_wait(0)\n    # A row", "    # A row")], "still reads for the output",
    ),
    "queries given back while they are read": (
        BACKWARD,
        [(PASSED, PASSED + QUERIES_READ), (f"{QUERIES_READ}    return (dk_head,), dv\n", "    return (dk_head,), dv\n")], READ,
    ),
    "queries not waited for": (
        BACKWARD, [(f"{QUERIES_FULL}    scores = issue_scores", "    scores = issue_scores")], f"{READ}|{WRONG}",
    ),
    "half of a block cleared while the other consumer reads it": (
        DECODE, [("        wait_named(CLEARED, 2 * 128)\n", "        arrive_named(CLEARED, 2 * 128)\n")], READ,
    ),
    "queries of the next piece loaded over those that are read": (
        DECODE, [("        mbarrier.wait(shared.q_empty.index(slot), turn // 2 & 1 ^ 1)\n", "")], f"{READ}|{WRONG}|waits for",
    ),
    "values given back while they are read": (
        DECODE,
        [(
            "            acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n"
            "            arrive_named(V_EMPTY + kv_turn % BUFFERS, ALL)\n",
            "            arrive_named(V_EMPTY + kv_turn % BUFFERS, ALL)\n"
            "            acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n",
        )], READ,
    ),
    "half of a block given back while it is read": (MLA, [(LEFT_DONE + K0_LEFT_READ, K0_LEFT_READ + LEFT_DONE)], READ),
    "weights stored over columns that are still read": (MLA, [("return warpgroup_mma_wait(0, deps=[s])", "return s")], READ),
    "queries loaded over those that are read": (
        MLA, [(f"{QUERIES_WAIT}            load_queries(", "            load_queries(")], f"{READ}|{WRONG}|waits for",
    ),
    "the other's maximum not waited for": (
        MLA, [("    wait_named(M1_READY, CONSUMERS)\n", "    arrive_named(M1_READY, CONSUMERS)\n")],
        f"{READ}|{WRONG}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name):
    file, edits, message = FAULTS[name]
    package = with_edits(file, edits, name)
    with pytest.raises(AssertionError, match=message):
        for seed in range(30):
            RUN[file](package, seed)
