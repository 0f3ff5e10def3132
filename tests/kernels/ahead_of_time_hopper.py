"""Compiles the kernels written in Gluon for a Hopper GPU that is not here, and prints what the machine code shows, one JSON
line each: python ahead_of_time_hopper.py

Runs in a process of its own, as `ahead_of_time.py` does, and for the same reason.
"""

import itertools
import json
import re
import subprocess
import tempfile

import ahead_of_time  # noqa: F401  sets the mode and the path, imports `kernels` before Triton
import sanitize
import triton
from ahead_of_time import CUOBJDUMP, SHARED_MEMORY
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from kernels import backward_hopper, forward_hopper
from kernels.hopper import gl

# An instruction: its address, and the text up to the semicolon, a predicate first.
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)


def descriptor(kind, *block, dense=False):
    """The type of a tensor descriptor, as ``hopper.describe`` makes it."""
    bits = 32 if kind in ("fp32", "i32") else 16
    swizzle = 0 if dense or max(block[:-1], default=1) == 1 else min(128, block[-1] * bits // 8)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=bits, rank=len(block))
    return f"tensordesc<{kind}[{', '.join(map(str, block))}],{layout!r}>"


def machine_code(kernel, signature, **constants):
    """Counts over the whole kernel, and over the loops that multiply: ``signature`` has the types of the run-time arguments."""
    names = kernel.arg_names
    constants = dict.fromkeys((name for name in names if name not in signature), None) | constants
    built = triton.compile(
        GluonASTSource(
            kernel,
            {name: signature.get(name, "constexpr") for name in names},
            {(names.index(name),): value for name, value in constants.items()},
            {(names.index(name),): [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*")},
        ),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 4},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        text = subprocess.run([CUOBJDUMP, "--dump-sass", file.name], capture_output=True, text=True, check=True).stdout
    code = [(int(address, 16), re.sub(r"^@\S+\s+", "", line)) for address, line in INSTRUCTION.findall(text)]

    def count(lines, *beginnings):
        return sum(line.startswith(beginnings) for _, line in lines)

    def between_waits(lines):
        places = [place for place, (_, line) in enumerate(lines) if line.startswith("WARPGROUP.DEPBAR")]
        return lines[places[0] : places[-1]] if places else []

    spills = count(code, "STL", "LDL")
    loops = []
    for end, (address, line) in enumerate(code):
        target = re.search(r"^BRA.*?0x([0-9a-f]+)", line)
        if target and int(target[1], 16) <= address:
            body = [entry for entry in code[: end + 1] if entry[0] >= int(target[1], 16)]
            # Not what leads back from behind the end: waits that had to wait lie there.
            if count(body, "HGMMA") and not count(body, "EXIT") and not any(set(inner) <= set(body) for inner in loops):
                loops.append(body)
    return {
        "shared": built.metadata.shared,
        "limit": SHARED_MEMORY[90] * 1024,
        "products": count(code, "HGMMA"),
        "waits": count(code, "WARPGROUP.DEPBAR"),
        "spills": spills,
        "loops": [
            {
                "instructions": len(body),
                "products": count(body, "HGMMA"),
                "waits": count(body, "WARPGROUP.DEPBAR"),
                "spills": count(body, "STL", "LDL"),
                "exponentials": count(body, "MUFU.EX2"),
                "under_products": count(between_waits(body), "MUFU.EX2"),
            }
            for body in loops
        ],
    }


def attention(kind, head_dim_qk, *, causal, counter, forward=forward_hopper):
    tail, buffers = head_dim_qk - 128, forward.QUERY_BUFFERS[head_dim_qk, 128]
    integers = ("n_q_heads", "group_size", "q_len", "kv_len", "n_heads", "n_tiles", "n_paired", "section")
    signature = {
        "q": descriptor(kind, 1, 1, 64, 128), "k": descriptor(kind, 1, 1, 128, 128), "v": descriptor(kind, 1, 1, 128, 128),
        "out": descriptor(kind, 1, 64, 64 if buffers == 1 else 128), "lse": "*fp32", "scale_log2": "fp32",
        **dict.fromkeys(integers, "i32"),
    }  # fmt: skip
    if tail:
        signature |= {"q_tail": descriptor(kind, 1, 1, 64, tail), "k_tail": descriptor(kind, 1, 1, 128, tail)}
    if counter:
        signature["counter"] = "*i32"
    return machine_code(forward.attention_kernel, signature, CAUSAL=causal, Q_BUFFERS=buffers)


def gradients(kind, head_dim_qk, *, causal, split):
    integers = ("n_parts", "n_all_parts", "members", "splits", "q_len", "kv_len", "section")
    tile, total = descriptor(kind, 1, 1, 64, 128), descriptor("fp32", 16, 256, dense=True)
    signature = {
        **dict.fromkeys(("q", "v", "d_out"), tile), "k": descriptor(kind, 1, 1, 64, 64),
        **dict.fromkeys(("lse_log2", "delta"), descriptor("fp32", 1, 1, 64)), "dq_total": total,
        **dict.fromkeys(("dk_total", "dv_total") if split else ("dk", "dv"), total if split else tile),
        "scale_log2": "fp32", **dict.fromkeys(integers, "i32"),
    }  # fmt: skip
    if head_dim_qk > 128:
        tails = ("q_tail",) if split else ("q_tail", "dk_tail")
        signature |= dict.fromkeys(tails, descriptor(kind, 1, 1, 64, head_dim_qk - 128))
    return machine_code(backward_hopper.gradients_kernel, signature, CAUSAL=causal, SPLIT=split)


def hand_overs():
    """The small kernels of `sanitize.py`."""
    words = descriptor("i32", sanitize.WORDS.value)
    turns = {"turns": "i32"}
    yield "named", machine_code(sanitize.named_kernel, {"out": "*i32", **turns}, WAITS=True)
    yield "mbarrier", machine_code(sanitize.mbarrier_kernel, {"out": "*i32"}, WAITS=True)
    yield "copy in", machine_code(sanitize.copy_in_kernel, {"source": words, "out": "*i32", **turns}, WAITS=True)
    yield "copy out", machine_code(sanitize.copy_out_kernel, {"out": words, **turns}, WAITS=True)


def cases():
    yield "attention 128", attention("bf16", 128, causal=True, counter=True)
    yield "attention 192/128, full", attention("fp16", 192, causal=False, counter=False)
    yield "attention 192/128", attention("bf16", 192, causal=True, counter=True)
    yield "gradients 128", gradients("bf16", 128, causal=True, split=False)
    yield "gradients 128, full, split", gradients("fp16", 128, causal=False, split=True)
    yield "gradients 192/128", gradients("bf16", 192, causal=True, split=False)
    yield "gradients 192/128, full, split", gradients("fp16", 192, causal=False, split=True)


if __name__ == "__main__":
    for name, needs in itertools.chain(cases(), hand_overs()):
        print(json.dumps({"case": name, **needs}), flush=True)
