"""Recorded decode calls whose number of splits was given: as launches, and as the constants of the model of waves."""

from collections.abc import Mapping

from kernels._mode import Device
from kernels.decode import plan_decode

from .. import costs
from .recordings import Recording


def device(gpu: costs.Gpu) -> Device:
    """What the choice of tiles and splits asks of a GPU, from its data sheet."""
    return Device(gpu.capability, gpu.sm_count, gpu.shared_memory_per_block)


def split_launch(row: Mapping, gpu: costs.Gpu) -> costs.SplitLaunch:
    """The launch that a row of a recording was: GQA or MLA over a contiguous cache, in 16 bits, with any number of splits."""
    attention = costs.Attention(*(row[name] for name in ("n_q_heads", "n_kv_heads", "head_dim_qk", "head_dim_v")),
                                row["head_dim_shared"])  # fmt: skip
    planned = plan_decode(
        row["batch"], attention.n_q_heads, attention.n_kv_heads, row["context_len"], attention.head_dim_qk,
        attention.head_dim_v, 2, device(gpu), q_len=row["q_len"], num_splits=row["num_splits"],
        shared_width=attention.head_dim_shared,
    )  # fmt: skip
    return costs.SplitLaunch(
        context_len=row["context_len"],
        num_splits=planned.num_splits,
        programs_per_split=row["batch"] * planned.row_tiles,
        bytes_per_token=attention.bytes_per_token() / attention.n_kv_heads,
        partial_bytes=costs.partial_bytes(attention, planned.num_splits, batch=row["batch"], q_len=row["q_len"]),
        block_n=planned.tile.block_n,
    )


def split_rows(recording: Recording, **fields) -> list[dict]:
    """The rows whose number of splits was given and that succeeded, in the order of their splits."""
    rows = recording.select(**{"operation": "decode", "splits": "given", "status": "ok"} | fields)
    return sorted(rows, key=lambda row: (row["batch"], row["n_kv_heads"], row["context_len"], row["num_splits"]))


def one_program(recording: Recording, n_kv_heads: int, **fields) -> costs.Prediction:
    """Fixed time and speed of one program: from the calls with one split at batch 1, which have a program for each KV head.

    LookupError where fewer than two contexts are recorded.
    """
    rows = split_rows(recording, batch=1, n_kv_heads=n_kv_heads, num_splits=1, **fields)
    if len({row["context_len"] for row in rows}) < 2:
        raise LookupError(f"one split of {n_kv_heads} KV heads at batch 1 is recorded for fewer than two contexts")
    return costs.fit((row["cache_bytes"] / n_kv_heads, row["median_s"]) for row in rows)


def wave_model(recording: Recording, n_kv_heads: int = 8) -> costs.WaveModel:
    """The model's constants: bandwidth from the recorded read, speed and fixed time of a program from calls with one split,
    the cost of a wave and of the merge from the recorded splits of ``n_kv_heads`` that are powers of two.

    Powers of two avoid the ends of waves on most GPUs: what lies between them is left to try the model on. LookupError where
    the recording has too few rows.
    """
    gpu = costs.gpu(recording.provenance["gpu"])
    program = one_program(recording, n_kv_heads)
    rows = [row for row in split_rows(recording, n_kv_heads=n_kv_heads) if row["num_splits"].bit_count() == 1]
    try:
        return costs.fit_waves(
            ((split_launch(row, gpu), row["median_s"]) for row in rows),
            bandwidth=recording.read_bandwidth,
            program_rate=program.bandwidth,
            t0_s=program.t0_s,
            sm_count=gpu.sm_count,
        )
    except ValueError as error:
        raise LookupError(f"the recorded splits of {n_kv_heads} KV heads give no model: {error}") from None
