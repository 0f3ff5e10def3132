"""Small synthetic recordings, made in a test's own folder."""

import copy
import json

import pytest

import kernels
from course.measure import code
from course.measure.recordings import SINCE_2

PROVENANCE = {
    "gpu": "NVIDIA H200",
    "sm_count": 132,
    "l2_bytes": 62914560,
    "capability": "9.0",
    "memory_bytes": 150000000000,
    "driver": "1.2.3",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "python": "3.12.3",
    "date": "2026-11-29",
    "commit": None,
    "kernels_sha256": "0" * 64,
    "method": "made up for a test",
    "plan_sha256": "1" * 64,
    "peers": {"FlashInfer": None},
}
ROW = {
    "operation": "decode",
    "backend": None,
    "dtype": "bfloat16",
    "batch": 1,
    "n_q_heads": 32,
    "n_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_v": 128,
    "context_len": 8192,
    **SINCE_2,
    "num_splits": 16,
    "splits": "automatic",
    "cache_bytes": 33554432,
    "flops": 134217728,
    "status": "ok",
    "reason": None,
    "median_s": 1.4e-5,
    "p20_s": 1.3e-5,
    "p80_s": 1.5e-5,
    "rounds": 50,
    "method": "graph",
    "error": {"max_abs": 1e-3, "relative_l2": 2e-3},
}
NO_TIME = {"median_s": None, "p20_s": None, "p80_s": None, "rounds": None, "method": None, "error": None}
DATA = {
    "schema": 2,
    "kind": "decode",
    "provenance": PROVENANCE,
    "reads": [
        {"bytes": 2**25, "median_s": 1e-5, "p20_s": 1e-5, "p80_s": 1e-5},
        {"bytes": 2**31, "median_s": 4.6e-4, "p20_s": 4.5e-4, "p80_s": 4.7e-4},
    ],
    "limits": [{"operation": "copy", "bytes": 2**31, "flops": 0, "median_s": 5e-4, "p20_s": 5e-4, "p80_s": 5e-4}],
    "rows": [
        ROW,
        {**ROW, "batch": 16, "cache_bytes": 16 * 33554432, "median_s": 1.2e-4, "p20_s": 1.2e-4, "p80_s": 1.2e-4},
        {
            **ROW,
            **NO_TIME,
            "operation": "sdpa",
            "backend": "EFFICIENT",
            "num_splits": None,
            "splits": None,
            "status": "unsupported",
            "reason": "needs equal heads",
        },
    ],
}


@pytest.fixture
def data():
    """A valid recording as a dictionary, to be spoiled at will."""
    return copy.deepcopy(DATA)


@pytest.fixture
def write(tmp_path):
    """Writes a recording (or text) under tmp_path/<folder>/<name> and returns its path."""

    def write(content, name="decode-2026-11-29.json", folder="nvidia-h200"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def present_digest():
    return code.kernels_sha256()


@pytest.fixture
def defined(monkeypatch):
    """The float64 definitions answer for our kernels: the interpreter is slow, and some kernels need a GPU."""

    def answering(name):
        definition = getattr(kernels.reference, name)

        def answer(*args, **options):
            first = args[0] if args else next(iter(options.values()))
            out, lse = definition(*args, **{key: value for key, value in options.items() if key != "work"})
            return out.to(first.dtype), lse.float()

        return answer

    for name in ("attention", "decode", "paged_decode", "mla_decode", "paged_mla_decode"):
        monkeypatch.setattr(kernels, name, answering(name), raising=False)
