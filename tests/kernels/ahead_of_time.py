"""Compiles kernels for a GPU that is not here and prints what they need, one JSON line each: python ahead_of_time.py SM...

Runs in a process of its own, because Triton's compiler and its interpreter exclude each other.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "0"
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import kernels  # noqa: I001  before Triton
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import plan_decode, tiles
from kernels.decode import decode_kernel
from kernels.forward import attention_kernel
from kernels.merge import merge_kernel

SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB a program may use
CUOBJDUMP = next((pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("cuobjdump*"))
LAST_AXIS_DENSE = ("i32", "i32", "i32", "constexpr")


def compile_for(sm, kernel, signature, constants, tile):
    """Registers, spilled bytes and shared memory of the kernel on compute capability ``sm``."""
    names = kernel.arg_names
    types, values, aligned = {}, {}, {}
    for position, name in enumerate(names):
        types[name] = signature.get(name, "constexpr")
        if name in constants:
            values[position,] = constants[name]
        elif isinstance(types[name], tuple):
            for axis, kind in enumerate(types[name]):
                if kind == "constexpr":
                    values[position, axis] = 1
                else:
                    aligned[position, axis] = [["tt.divisibility", 16]]
        elif types[name].startswith("*"):
            aligned[position,] = [["tt.divisibility", 16]]
    built = triton.compile(
        ASTSource(kernel, types, values, aligned),
        target=GPUTarget("cuda", sm, 32),
        options={"num_warps": tile.num_warps},  # as launched: the loops carry their own number of stages
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return {"registers": int(registers), "stack": int(stack), "shared": built.metadata.shared}


def tile_constants(tile, head_dim_qk, head_dim_v):
    pads = {"PAD_QK": tiles.pad(head_dim_qk), "PAD_V": tiles.pad(head_dim_v)}
    widths = {"D_QK": head_dim_qk, "D_V": head_dim_v, **pads}
    return {"ROWS": tile.rows, "BLOCK_N": tile.block_n, "STAGES": tile.num_stages, "PRECISION": "ieee", **widths}


def tensors(dtype):
    strides = {f"{name}_strides": LAST_AXIS_DENSE for name in "qkv"}
    return {**dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}"), "lse": "*fp32", "scale_log2": "fp32", **strides}


def decode_on(sm, dtype, head_dim_qk, head_dim_v, group_size, context_len):
    device = kernels.Device((sm // 10, sm % 10), 132, SHARED_MEMORY[sm] * 1024)
    itemsize = 4 if dtype == "fp32" else 2
    tile = plan_decode(1, group_size, 1, context_len, head_dim_qk, head_dim_v, itemsize, device, num_splits=1).tile
    integers = ("seq_lens_stride", "batch", "capacity", "n_kv_heads", "group_size", "q_len", "num_splits")
    signature = {**tensors(dtype), "seq_lens": "*i32", **dict.fromkeys(integers, "i32")}
    needs = compile_for(sm, decode_kernel, signature, tile_constants(tile, head_dim_qk, head_dim_v), tile)
    return tile, needs


def attention_on(sm, dtype, head_dim_qk, head_dim_v, q_len):
    itemsize = 4 if dtype == "fp32" else 2
    tile = tiles.forward_tile(q_len, head_dim_qk, head_dim_v, itemsize, (sm // 10, sm % 10), SHARED_MEMORY[sm] * 1024)
    signature = {**tensors(dtype), **dict.fromkeys(("n_q_heads", "group_size", "q_len", "kv_len"), "i32")}
    constants = {"CAUSAL": True, **tile_constants(tile, head_dim_qk, head_dim_v)}
    return tile, compile_for(sm, attention_kernel, signature, constants, tile)


def merge_on(sm):
    strides = ("out_split_stride", "out_row_stride", "lse_split_stride")
    signature = {**dict.fromkeys(("outs", "lses", "out", "lse"), "*fp32"), **dict.fromkeys(("num_splits", *strides), "i32")}
    constants = {"out_column_stride": 1, "lse_row_stride": 1, "BLOCK_S": 64, "D_V": 128, "PAD_V": 128}
    tile = tiles.Tile(64, 0, 2, 3)
    return tile, compile_for(sm, merge_kernel, signature, constants, tile)


def main(sm):
    half = "fp16" if sm < 80 else "bf16"
    widest = 192 if sm < 80 else 256
    cases = {
        "decode 128, group 4, long": (decode_on, half, 128, 128, 4, 32768),
        "decode 128, group 64, short": (decode_on, half, 128, 128, 64, 1024),
        "decode 128, group 128, long": (decode_on, half, 128, 128, 128, 32768),
        f"decode {widest}, group 8": (decode_on, half, widest, widest, 8, 8192),
        "decode 128, float32": (decode_on, "fp32", 128, 128, 4, 8192),
        "attention 128": (attention_on, half, 128, 128, 4096),
        "attention 192/128, one query": (attention_on, half, 192, 128, 1),
        "attention 256": (attention_on, half, 256, 256, 4096),
        "attention 256, 40 queries": (attention_on, half, 256, 256, 40),
        "merge": (merge_on,),
    }
    if sm >= 80:
        cases["decode 576/512, group 16"] = (decode_on, half, 576, 512, 16, 8192)
    for name, (function, *arguments) in cases.items():
        tile, needs = function(sm, *arguments)
        print(json.dumps({"sm": sm, "case": name, "tile": str(tile), "limit": SHARED_MEMORY[sm] * 1024, **needs}), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(int(argument))
