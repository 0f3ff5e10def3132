"""A synthetic recording: times follow a rule, so that tests know what a figure must say."""

from course import costs, measure
from course.measure import plans, steps
from course.measure.recordings import SINCE_2
from course.measure.shapes import Shape

READ_RATE = 4.6e12
T0 = 6e-6


def row(operation="decode", backend=None, batch=1, n_q_heads=32, n_kv_heads=8, context_len=8192, slower=1.0, **more) -> dict:
    attention = costs.Attention.gqa(n_q_heads, n_kv_heads, 128)
    n_bytes = costs.cache_bytes(attention, context_len, batch=batch)
    seconds = (T0 + n_bytes / READ_RATE) * slower
    return (
        SINCE_2
        | {
            "operation": operation,
            "backend": backend,
            "dtype": "bfloat16",
            "batch": batch,
            "n_q_heads": n_q_heads,
            "n_kv_heads": n_kv_heads,
            "head_dim_qk": 128,
            "head_dim_v": 128,
            "context_len": context_len,
            "num_splits": 4 if operation == "decode" else None,
            "splits": "automatic" if operation == "decode" else None,
            "cache_bytes": n_bytes,
            "flops": costs.decode_flops(attention, context_len, batch=batch),
            "status": "ok",
            "reason": None,
            "median_s": seconds,
            "p20_s": seconds * 0.98,
            "p80_s": seconds * 1.05,
            "rounds": 20,
            "method": "graph",
            "error": {"max_abs": 1e-3, "relative_l2": 1e-3},
        }
        | more
    )


def recording(*, kernels_sha256: str = "0" * 64) -> measure.Recording:
    rows = []
    for batch in (1, 16):
        for n_kv_heads in (1, 8, 32):
            for context_len in (512, 8192, 131072):
                at = {"batch": batch, "n_kv_heads": n_kv_heads, "context_len": context_len}
                rows += [
                    row("decode", **at),
                    row("decode", **at, slower=9.0, num_splits=1, splits="given"),
                    row("attention", slower=3.0, **at),
                    row("sdpa", "MATH", slower=20.0, **at),
                    row("sdpa", "FLASH", slower=1.2, **at),
                ]
    return measure.Recording(
        kind="decode",
        provenance={
            "gpu": "NVIDIA H200",
            "sm_count": 132,
            "l2_bytes": 62914560,
            "driver": "580.1",
            "torch": "2.11.0",
            "triton": "3.6.0",
            "date": "2026-11-29",
            "kernels_sha256": kernels_sha256,
        },
        reads=[{"bytes": 2**31, "median_s": 2**31 / READ_RATE, "p20_s": 4e-4, "p80_s": 5e-4}],
        rows=rows,
    )


FULL_SEQUENCE_RATE = 500e12  # FLOP/s of our kernel over whole sequences


def full_sequence_row(shape: Shape, operation="attention", backend=None, slower=1.0) -> dict:
    seconds = shape.flops / FULL_SEQUENCE_RATE * slower
    fields = {
        name: getattr(shape, name)
        for name in ("head_dim_qk", "head_dim_v", "q_len", "causal", "direction", "flops", "cache_bytes")
    }
    at = {name: getattr(shape, name) for name in ("batch", "n_q_heads", "n_kv_heads", "context_len")}
    times = {"median_s": seconds, "p20_s": seconds * 0.98, "p80_s": seconds * 1.05, "method": "events"}
    return row(operation, backend, **at, **fields, **times)


def full_sequence_recording() -> measure.Recording:
    """Of kind 'prefill': cuDNN a tenth faster than ours, all else slower, MQA's gradients not in plain form; a chunk."""
    rows = []
    for direction in ("forward", "backward"):
        for n_kv_heads, width in ((32, 128), (8, 128), (1, 128), (16, 192)):
            for context_len in (1024, 4096, 8192, 16384):
                n_q_heads = 16 if width == 192 else 32
                shape = Shape(
                    16384 // context_len, n_q_heads, n_kv_heads, context_len,
                    q_len=context_len, head_dim_qk=width, direction=direction,
                )  # fmt: skip
                rows += [
                    full_sequence_row(shape),
                    full_sequence_row(shape, "sdpa", "CUDNN", slower=0.9),
                    full_sequence_row(shape, "sdpa", "FLASH", slower=1.5),
                    full_sequence_row(shape, "flash_attn", "fa4", slower=1.1),
                ]
                if direction == "forward" or n_kv_heads > 1:
                    rows.append(full_sequence_row(shape, "portable_attention", slower=1.2))
                if direction == "backward" and n_q_heads > n_kv_heads:
                    rows.append(full_sequence_row(shape, "partials_then_sum", slower=1.25))
    rows += [full_sequence_row(Shape(2, 32, 8, 8192, q_len=q_len), slower=2.0) for q_len in (64, 1024)]
    made = recording()
    product = {"operation": "matmul sustained", "bytes": 2**27, "flops": 2 * 8192**3}
    product |= {"median_s": product["flops"] / 675e12, "p20_s": 1.5e-3, "p80_s": 2e-3}
    return measure.Recording(kind="prefill", provenance=made.provenance, reads=made.reads, rows=rows, limits=[product])


def steps_recording() -> measure.Recording:
    """Of kind 'steps': each rung of the ladder 20 TFLOP/s faster than the one before, each loss 6 more than the one before.

    The step 'pairs' is a loss in the ladder, and cuDNN refuses the last shape.
    """
    whole = full_sequence_recording()
    rows = []
    for shape in plans.step_workloads("bfloat16"):
        rate = {("portable_attention", None): 300e12, ("attention", None): 600e12, ("sdpa", "CUDNN"): 550e12}
        for place, undone in enumerate(steps.LADDER[:-1]):
            rate["attention_steps", steps.variant(undone)] = 400e12 + 20e12 * place - 30e12 * ("pairs" not in undone)
        for place, undone in enumerate(steps.LOSSES.values(), 1):
            rate["attention_steps", steps.variant(undone)] = 600e12 - 6e12 * place
        for (operation, backend), speed in rate.items():
            rows.append(full_sequence_row(shape, operation, backend, slower=FULL_SEQUENCE_RATE / speed))
    rows[-len(rate) + 2] |= {"status": "unsupported", "reason": "refuses", "median_s": None}
    return measure.Recording(kind="steps", provenance=whole.provenance, reads=whole.reads, rows=rows, limits=whole.limits)


def mla_row(shape: Shape, operation: str = "mla_decode", backend: str | None = None, slower: float = 1.2) -> dict:
    """Bound by its bytes or by its products, whichever takes longer, and a fixed time."""
    seconds = T0 + max(shape.cache_bytes / READ_RATE, shape.flops / 675e12) * slower
    return full_sequence_row(shape, operation, backend) | {
        "median_s": seconds,
        "p20_s": seconds * 0.98,
        "p80_s": seconds * 1.05,
        "splits": None if operation in ("flashinfer", "flash_mla") else "automatic",
        "head_dim_shared": shape.head_dim_shared,
    }


def mla_recording() -> measure.Recording:
    """Of kind 'mla': 16 to 128 heads at three sizes, two peers, one row whose splits were given.

    The plain form is recorded apart, slower still.
    """
    rows = []
    for batch, context_len in ((16, 8192), (64, 8192), (1, 131072)):
        for heads in (16, 32, 64, 96, 128):
            shape = Shape.mla(batch, heads, context_len)
            rows += [mla_row(shape), mla_row(shape, "flashinfer", "fa3", 1.3), mla_row(shape, "flashinfer", "fa2", 1.6)]
            rows.append(mla_row(shape, "flash_mla", slower=1.4))
            rows.append(mla_row(shape, slower=0.5) | {"splits": "given", "num_splits": 4})
            rows.append(mla_row(shape, "portable_mla_decode", slower=2.5))
            rows.append(mla_row(shape, slower=0.5) | {"operation": "paged_mla_decode", "page_size": 64})
    whole = full_sequence_recording()
    return measure.Recording(kind="mla", provenance=whole.provenance, reads=whole.reads, rows=rows, limits=whole.limits)
