"""Compiles kernels for GPUs that are not here and prints what they need, one JSON line each: python ahead_of_time.py SM...

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
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a sixth of the time, and nothing here reads it
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import kernels  # noqa: I001  before Triton
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import backward, plan_decode, tiles
from kernels.append import append_kernel, place_in_sequence, place_on_page
from kernels.attend import Cache, Layout, load_contiguous
from kernels.decode import decode_kernel
from kernels.first import copy_kernel, read_kernel, softmax_kernel, softmax_three_passes_kernel
from kernels.forward import attention_kernel, load_described
from kernels.merge import merge_kernel
from kernels.one_row import one_row_kernel
from kernels.paged import load_paged
from kernels.work_list import plan_work_kernel, work_kernel

SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB a program may use
CUOBJDUMP = next((pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("cuobjdump*"))
ONE = "1"  # the type of a stride of 1, which Triton compiles in
DENSE = ("i32", "i32", "i32", ONE)  # strides of a tensor with dense columns
ALIKE = {89: 86}  # both have Ampere's instructions: the same kernel with the same tile becomes the same code
FORMATS = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8e4nv": 1}


compiled = {}


def compile_for(sm, *request):
    """What ``needs`` says, each request once for GPUs that are alike."""
    key = repr((ALIKE.get(sm, sm), request))
    if key not in compiled:
        compiled[key] = needs(sm, *request)
    return compiled[key]


def needs(sm, kernel, signature, constants, num_warps, steps=None):
    """Registers, spilled bytes, shared memory and use of bfloat16 of the kernel on compute capability ``sm``.

    ``signature`` gives the type of each run-time argument, tuples of types for tuples; "constexpr", and what it leaves out, is
    None or among ``constants``; ``steps`` gives the step between rows where the tuple of strides has it as a constant.
    """
    types, values, aligned = {}, {}, {}

    def describe(kind, path):
        if isinstance(kind, tuple):
            for position, entry in enumerate(kind):
                describe(entry, (*path, position))
        elif kind in ("constexpr", ONE):
            values[path] = 1 if kind == ONE else None
        elif kind.startswith("*") or kind == "i32" and len(path) > 1:
            aligned[path] = [["tt.divisibility", 16]]

    def type_of(kind):
        if isinstance(kind, tuple):
            entries = [type_of(entry) for entry in kind]
            return type(kind)(*entries) if hasattr(kind, "_fields") else tuple(entries)
        return "constexpr" if kind == ONE else kind

    for position, name in enumerate(kernel.arg_names):
        kind = signature.get(name, "constexpr")
        types[name] = type_of(kind)
        if name in constants:
            values[position,] = constants[name]
        else:
            describe(kind, (position,))
        if steps and name in steps:
            values[position, 2] = steps[name]
    built = triton.compile(
        ASTSource(kernel, types, values, aligned),
        target=GPUTarget("cuda", sm, 32),
        options={"num_warps": num_warps},  # as launched: the loops carry their own number of stages
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return {
        "kernels": [kernel.__name__], "registers": int(registers), "stack": int(stack), "shared": built.metadata.shared,
        "bfloat16": "bf16" in built.asm["ttgir"] or ".bf16" in built.asm["ptx"],
    }  # fmt: skip


def layout_for(head, tail, v, page=0, scaled=False):
    """Of a cache whose blocks lie apart, each dense."""
    k_token, v_token = head, v
    if scaled:
        head, v = head // 2, v // 2
    pads = (tiles.pad(head), tiles.pad(tail) if tail else 0, tiles.pad(v))
    return Layout(head, tail, v, *pads, k_token, 1, tail, 1, v_token, 1, int(scaled), int(scaled), page)


def decode_on(sm, kind, head_dim_qk, head_dim_v, group_size, context_len, *, cached=None, mla=False, page=None, work=False):
    """The decode kernel, or the work-list kernel, over the cache described."""
    cached = cached or kind
    device = kernels.Device((sm // 10, sm % 10), 132, SHARED_MEMORY[sm] * 1024)
    scaled = FORMATS[cached] == 1
    if mla:
        head, tail = head_dim_v, head_dim_qk - head_dim_v
    elif scaled:
        head, tail = head_dim_qk, 0
    else:
        head, tail = tiles.split_width(head_dim_qk)
    tile = plan_decode(
        1, group_size, 1, 0 if work else context_len, head_dim_qk, head_dim_v, 4 if kind == "fp32" else FORMATS[cached], device,
        num_splits=1, shared_width=head if mla else 0, page_size=page, eight_bits=scaled, portable=True,
    ).tile  # fmt: skip
    has_tail = tail > 0
    none = "constexpr"
    pointers = {
        "k": f"*{cached}", "k_tail": f"*{kind if mla else cached}" if has_tail else none, "v": none if mla else f"*{cached}",
        "k_scale": "*fp32" if scaled else none, "v_scale": "*fp32" if scaled and not mla else none,
    }  # fmt: skip
    strides = [none if pointer == none else "i32" for pointer in pointers.values() for _ in range(2)]
    cache = Cache(*pointers.values(), "*i32" if page else none, *strides, "i32" if page else none, ONE if page else none)
    integers = ("seq_lens_stride", "batch", "capacity", "n_kv_heads", "group_size", "q_len", "num_splits")
    signature = {
        "q": f"*{kind}", "q_tail": f"*{kind}" if has_tail else none,
        "q_strides": DENSE, "q_tail_strides": DENSE if has_tail else none,
        "cache": cache, "seq_lens": "*i32", "bounds": "*i32", "out": f"*{kind}", "lse": "*fp32",
        "scale_log2": "fp32", **dict.fromkeys(integers, "i32"),
    }  # fmt: skip
    constants = {
        "load_tile": load_paged if page else load_contiguous, "ROWS": tile.rows, "BLOCK_N": tile.block_n,
        "LAYOUT": layout_for(head, tail, head_dim_v, page or 0, scaled), "STAGES": tile.num_stages, "PRECISION": "ieee",
    }  # fmt: skip
    kernel = work_kernel if work else decode_kernel
    signature = {name: kind for name, kind in signature.items() if name in kernel.arg_names}
    return tile, compile_for(sm, kernel, signature, constants, tile.num_warps)


def attention_on(sm, kind, head_dim_qk, head_dim_v, q_len, described=False):
    capability = (sm // 10, sm % 10)
    tile = tiles.forward_tile(q_len, head_dim_qk, head_dim_v, FORMATS[kind], capability, SHARED_MEMORY[sm] * 1024)
    head, tail = tiles.split_width(head_dim_qk)
    layout = layout_for(head, tail, head_dim_v)

    def source(columns):
        return f"tensordesc<{kind}[1, 1, {tile.block_n}, {columns}]>" if described else f"*{kind}"

    signature = {
        "q": f"*{kind}", "k": source(layout.padded_head), "v": source(layout.padded_v), "out": f"*{kind}", "lse": "*fp32",
        "q_strides": DENSE, "kv_strides": ("i32",) * 6, "k_tail": source(layout.padded_tail) if tail else "constexpr",
        "scale_log2": "fp32", **dict.fromkeys(("n_q_heads", "group_size", "q_len", "kv_len"), "i32"),
    }  # fmt: skip
    constants = {
        "load_tile": load_described if described else load_contiguous, "ROWS": tile.rows, "BLOCK_N": tile.block_n,
        "LAYOUT": layout, "CAUSAL": True, "STAGES": tile.num_stages, "PRECISION": "ieee",
    }  # fmt: skip
    return tile, compile_for(sm, attention_kernel, signature, constants, tile.num_warps)


def merge_on(sm, slots=False):
    strides = ("out_split_stride", "out_row_stride", "lse_split_stride")
    integers = ("num_splits", "rows_per_sequence", *strides)
    signature = {**dict.fromkeys(("outs", "lses", "out", "lse"), "*fp32"), **dict.fromkeys(integers, "i32")}
    if slots:
        signature["slots"] = "*i32"
    constants = {"out_column_stride": 1, "lse_row_stride": 1, "BLOCK_S": 64, "D_V": 128, "BLOCK_V": 128}
    return tiles.Tile(64, 0, 2, 3), compile_for(sm, merge_kernel, signature, constants, 2)


def plan_work_on(sm):
    signature = {
        **dict.fromkeys(("seq_lens", "bounds", "slots"), "*i32"),
        **dict.fromkeys(("seq_lens_stride", "batch", "capacity", "shares"), "i32"),
    }
    return None, compile_for(sm, plan_work_kernel, signature, {"BLOCK_B": 64, "BLOCK_I": 64}, 8)


def copy_on(sm, kind):
    signature = {"x": f"*{kind}", "out": f"*{kind}", "n_elements": "i32", "x_stride": ONE}
    return None, compile_for(sm, copy_kernel, signature, {"BLOCK": 1024}, 4)


def read_on(sm):
    signature = {"x": "*i32", "out": "*i32", "n_elements": "i32", "elements_per_program": "i32"}
    return None, compile_for(sm, read_kernel, signature, {"BLOCK": 1024, "UNROLL": 8}, 4)


def softmax_on(sm, kind, block, three_passes=False, column_stride=ONE):
    kernel = softmax_three_passes_kernel if three_passes else softmax_kernel
    signature = {
        "x": f"*{kind}", "out": f"*{kind}", "n_columns": "i32", "row_stride": "i32", "column_stride": column_stride
    }  # fmt: skip
    return None, compile_for(sm, kernel, signature, {"BLOCK": block}, 4 if block <= 2048 else 16)


def one_row_on(sm, kind, head_dim_qk, head_dim_v, block_n):
    signature = {
        **dict.fromkeys(("q", "k", "v", "out"), f"*{kind}"), "lse": "*fp32", "q_stride": ONE,
        **dict.fromkeys(("k_strides", "v_strides"), ("i32", ONE)), "scale_log2": "fp32", "kv_len": "i32",
    }  # fmt: skip
    pads = {"PAD_QK": tiles.pad(head_dim_qk), "PAD_V": tiles.pad(head_dim_v)}
    constants = {"BLOCK_N": block_n, "D_QK": head_dim_qk, "D_V": head_dim_v, **pads}
    return None, compile_for(sm, one_row_kernel, signature, constants, 4)


def append_on(sm, kind, head_dim_qk, head_dim_v, *, cached=None, mla=False, paged=False):
    cached = cached or kind
    scaled = FORMATS[cached] == 1
    integers = ("seq_lens_stride", "q_len", "n_kv_heads", "n_outer", "capacity", "page_size")
    names = ("k_scale",) if mla else ("k_scale", "v_scale")
    signature = {
        "k_new": f"*{kind}", "v_new": f"*{kind}", "k": f"*{cached}", "v": f"*{kind if mla else cached}", "seq_lens": "*i32",
        **{f"{name}_strides": DENSE for name in ("k_new", "v_new", "k", "v")}, **dict.fromkeys(integers, "i32"),
        **(dict.fromkeys(names, "*fp32") if scaled else {}),
        **({f"{name}_strides": ("i32", "i32", ONE) for name in names} if scaled else {}),
        **({"block_table": "*i32", "block_table_strides": ("i32", ONE)} if paged else {}),
    }  # fmt: skip
    pads = {"PAD_QK": tiles.pad(head_dim_qk), "PAD_V": tiles.pad(head_dim_v)}
    constants = {"place": place_on_page if paged else place_in_sequence, "D_QK": head_dim_qk, "D_V": head_dim_v, **pads}
    return None, compile_for(sm, append_kernel, signature, constants, 1 if max(head_dim_qk, head_dim_v) <= 256 else 4)


def backward_on(sm, kind, head_dim_qk, head_dim_v):
    """The kernel of dK and dV, then that of dQ; what either needs most."""
    limit = SHARED_MEMORY[sm] * 1024
    widths = backward.widths_of(head_dim_qk, head_dim_v)
    dkdv, dq = tiles.backward_tile(widths.columns, FORMATS[kind], (sm // 10, sm % 10), limit)
    strides = ("i32", "i32", "constexpr", ONE)
    of_each = []
    for kernel, tile, outputs in ((backward.dkdv_kernel, dkdv, ("dk", "dv")), (backward.dq_kernel, dq, ("dq",))):
        sizes = ("n_q_heads", "group_size", "n_parts", "members", "splits", "q_len", "kv_len")
        integers = [name for name in kernel.arg_names if name in sizes]
        signature = {
            **dict.fromkeys(("q", "k", "v", "d_out", *outputs), f"*{kind}"), **dict.fromkeys(("lse_log2", "delta"), "*fp32"),
            **dict.fromkeys([name for name in kernel.arg_names if name.endswith("_strides")], strides),
            "scale_log2": "fp32", **dict.fromkeys(integers, "i32"),
        }  # fmt: skip
        steps = {name: head_dim_v if name[0] in "vd" else head_dim_qk for name in kernel.arg_names if name.endswith("_strides")}
        constants = {
            "BLOCK_M": tile.rows, "BLOCK_N": tile.block_n, "WIDTHS": widths,
            "CAUSAL": True, "STAGES": tile.num_stages, "PRECISION": "ieee",
        }  # fmt: skip
        of_each.append(compile_for(sm, kernel, signature, constants, tile.num_warps, steps))
    numbers = ("registers", "stack", "shared", "bfloat16")
    most = {name: max(need[name] for need in of_each) for name in numbers}
    return (dkdv, dq), {"kernels": [name for need in of_each for name in need["kernels"]], **most}


def delta_on(sm, kind, head_dim_v):
    strides = ("i32", "i32", "constexpr", ONE)
    signature = {
        **dict.fromkeys(("out", "d_out"), f"*{kind}"), **dict.fromkeys(("lse", "d_lse", "lse_log2", "delta"), "*fp32"),
        "out_strides": strides, "d_out_strides": strides, "d_lse_strides": ("i32", "i32", ONE),
        "n_q_heads": "i32", "q_len": "i32",
    }  # fmt: skip
    constants = {"ROWS": backward.ROW_ALIGNMENT.value, "WIDTHS": backward.widths_of(head_dim_v, head_dim_v)}
    steps = {"out_strides": head_dim_v, "d_out_strides": head_dim_v}
    return None, compile_for(sm, backward.delta_kernel, signature, constants, 8, steps)


def cases(sm):
    half = "fp16" if sm < 80 else "bf16"
    other = "fp32" if sm < 80 else half  # before bfloat16 there are two to choose from: of what is alike each gets a share
    widest = 192 if sm < 80 else 256
    described = sm >= 90
    found = {
        "copy of 4 bytes": (copy_on, "i32"),
        "softmax 1024": (softmax_on, half, 1024),
        "softmax 32768, any strides": (softmax_on, "fp32", 32768, {"column_stride": "i32"}),
        "softmax, three passes": (softmax_on, other, 1024, {"three_passes": True}),
        "one row 128": (one_row_on, half, 128, 128, 16),
        "one row 576/512": (one_row_on, other, 576, 512, 16),
        "append 128": (append_on, half, 128, 128),
        "append 512 + 64, paged": (append_on, other, 512, 64, {"mla": True, "paged": True}),
        "decode 128, group 4, long": (decode_on, half, 128, 128, 4, 32768),
        "decode 128, group 64, short": (decode_on, half, 128, 128, 64, 1024),
        "decode 128, group 128, long": (decode_on, half, 128, 128, 128, 32768),
        f"decode {widest}, group 8": (decode_on, half, widest, widest, 8, 8192),
        "decode 128, float32": (decode_on, "fp32", 128, 128, 4, 8192),
        "decode 128, page 16, work list": (decode_on, half, 128, 128, 4, 0, {"page": 16, "work": True}),
        "decode 128, page 64": (decode_on, other, 128, 128, 4, 8192, {"page": 64}),
        "attention 128": (attention_on, half, 128, 128, 4096, {"described": described}),
        "attention 192/128": (attention_on, half, 192, 128, 4096, {"described": described}),
        "attention 192/128, one query": (attention_on, other, 192, 128, 1),
        "attention 256": (attention_on, other, 256, 256, 4096),
        "attention 256, 40 queries": (attention_on, other, 256, 256, 40),
        "gradients 128": (backward_on, half, 128, 128),
        "merge": (merge_on,),
        "merge, work list": (merge_on, {"slots": True}),
        "plan of work": (plan_work_on,),
    }
    mla = {"mla": True}
    found |= {
        "MLA 512 + 64, 16 heads": (decode_on, half, 576, 512, 16, 8192, mla),
        "MLA 512 + 64, 16 heads, page 64": (decode_on, other, 576, 512, 16, 8192, mla | {"page": 64}),
    }
    if sm < 80:
        # What else notebooks launch: too plain for a limit of any GPU, but not for its types.
        found["read"] = (read_on,)
        found["terms of gradients 128"] = (delta_on, half, 128)
        found["gradients 64, float32"] = (backward_on, "fp32", 64, 64)
    if sm >= 80:
        found["decode 576/512, group 16"] = (decode_on, half, 576, 512, 16, 8192)
        found["MLA 512 + 64, 128 heads"] = (decode_on, half, 576, 512, 128, 8192, mla)
        found["gradients 192/128"] = (backward_on, half, 192, 128)
    if sm >= 89:
        fp8 = {"cached": "fp8e4nv"}
        found["append 128, 8 bits"] = (append_on, half, 128, 128, fp8)
        found["decode 128, 8 bits"] = (decode_on, half, 128, 128, 4, 32768, fp8)
        found["MLA 512 + 64, 8 bits, float32 queries"] = (decode_on, "fp32", 576, 512, 16, 8192, mla | fp8)
        found["MLA 512 + 64, 8 bits, 16 heads"] = (decode_on, half, 576, 512, 16, 32768, mla | fp8)
        found["MLA 512 + 64, 8 bits, 128 heads, page 64"] = (decode_on, half, 576, 512, 128, 8192, mla | fp8 | {"page": 64})
    return found


def main(sm):
    for name, (function, *arguments) in cases(sm).items():
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        tile, needed = function(sm, *arguments, **options)
        print(json.dumps({"sm": sm, "case": name, "tile": str(tile), "limit": SHARED_MEMORY[sm] * 1024, **needed}), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(int(argument))
