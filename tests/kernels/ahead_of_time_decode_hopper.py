"""Compiles `decode_hopper.py` for a Hopper GPU that is not here and prints what the machine code shows, one JSON line each.

Runs in a process of its own, as `ahead_of_time.py` does, and for the same reason.
"""

import json

from ahead_of_time_hopper import descriptor, machine_code

from kernels.decode_hopper import TILE, many_rows_kernel, query_box
from kernels.hopper import box_rows

INTEGERS = (
    "table_sequence", "table_entry", "seq_lens_stride", "batch", "capacity", "n_kv_heads", "n_q_heads",
    "group_size", "q_len", "n_rows", "num_splits",
)  # fmt: skip


def decode_on(kind, out, group_size, page, work_list):
    box = box_rows(page, TILE.block_n)
    signature = {
        "q": descriptor(kind, 1, *query_box(group_size), 64),
        "k": descriptor(kind, 1, 1, box, 64), "v": descriptor(kind, 1, 1, box, 64),
        "seq_lens": "*i32", "out": f"*{out}", "lse": "*fp32", "scale_log2": "fp32",
        **({"block_table": "*i32"} if page else {}), **({"bounds": "*i32"} if work_list else {}),
        **dict.fromkeys(INTEGERS, "i32"),
    }  # fmt: skip
    return machine_code(many_rows_kernel, signature, PAGE=page, BOX=box)


# What is read from, what is written, the group size, the page size, and whether a work list says who does what.
CASES = {
    "whole, a head for itself": ("bf16", "bf16", 1, 0, False),
    "split, page 64, groups of 96": ("fp16", "fp32", 96, 64, False),
    "work list, page 16": ("bf16", "fp32", 16, 16, True),
}

if __name__ == "__main__":
    for name, case in CASES.items():
        print(json.dumps({"case": name, **decode_on(*case)}), flush=True)
