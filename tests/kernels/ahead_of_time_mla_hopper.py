"""Compiles `mla_hopper.py` for a Hopper GPU that is not here and prints what the machine code shows, one JSON line each.

Runs in a process of its own, as `ahead_of_time.py` does, and for the same reason.
"""

import json

from ahead_of_time_hopper import descriptor, machine_code

from kernels.hopper import box_rows
from kernels.mla_hopper import BLOCK_TOKENS, mla_kernel

INTEGERS = (
    "table_sequence", "table_entry", "seq_lens_stride", "batch", "capacity", "n_rows", "n_q_heads", "q_len", "num_splits"
)  # fmt: skip


def mla_on(kind, out, page, work_list):
    box = box_rows(page, BLOCK_TOKENS)
    signature = {
        "q_latent": descriptor(kind, 1, 64, 256), "q_rope": descriptor(kind, 1, 64, 64),
        "latent": descriptor(kind, 1, box, 64), "k_rope": descriptor(kind, 1, box, 64),
        "seq_lens": "*i32", "out": f"*{out}", "lse": "*fp32", "scale_log2": "fp32",
        **({"block_table": "*i32"} if page else {}), **({"bounds": "*i32"} if work_list else {}),
        **dict.fromkeys(INTEGERS, "i32"),
    }  # fmt: skip
    return machine_code(mla_kernel, signature, PAGE=page, BOX=box)


# What is read from, what is written, the page size, and whether a work list says who does what.
CASES = {
    "whole": ("bf16", "bf16", 0, False),
    "split, page 64": ("fp16", "fp32", 64, False),
    "work list, page 16": ("bf16", "fp32", 16, True),
}

if __name__ == "__main__":
    for name, case in CASES.items():
        print(json.dumps({"case": name, **mla_on(*case)}))
