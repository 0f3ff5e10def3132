"""course.measure.contenders: how each is asked. FlashInfer, FlashAttention and FlashMLA are played by modules that take
their arguments literally."""

import importlib
import sys
import types
import warnings
from dataclasses import replace

import pytest
import torch

import kernels
from course.measure import contenders, shapes, timing
from course.measure.bench import Bench
from course.measure.contenders import automatic_splits, calls_of, why_not
from course.measure.shapes import Point, Shape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Shape(2, 4, 2, 128, 16, 16)
LATENT = Shape(2, 3, 1, 128, 24, 16, head_dim_shared=16)
WHOLE = Shape(2, 4, 2, 20, 24, 16, q_len=20)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", SMALL.cache_bytes)
    monkeypatch.setattr(shapes, "SHORTEST_RAGGED", 3)


def attend(q, k, v, causal, scale=None):
    """q [M, Hq, D], k [N, Hkv, D], v [N, Hkv, Dv] -> [M, Hq, Dv], as FlashInfer has it."""
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    return kernels.reference.attention(*heads_first, causal=causal, scale=scale)[0][0].transpose(0, 1).to(q.dtype)


class Played:
    """A wrapper of FlashInfer's: plans what it is told and answers by the definition."""

    def __init__(self, workspace, *layout, **options):
        assert workspace.dtype == torch.uint8
        self.options = options

    def over_pages(self, q, caches, q_bounds, bounds, pages, lengths, causal, scale=None):
        out = []
        for b, n in enumerate(lengths):
            own = pages[bounds[b] : bounds[b + 1]].long()
            k, v = (cache[own].flatten(0, 1)[:n] for cache in caches)
            out.append(attend(q[q_bounds[b] : q_bounds[b + 1]], k, v, causal, scale))
        return torch.cat(out)


class Decode(Played):
    def plan(self, bounds, pages, last, n_q_heads, n_kv_heads, head_dim, page, *, q_data_type, kv_data_type):
        assert {bounds.dtype, pages.dtype, last.dtype} == {torch.int32} and q_data_type == kv_data_type == torch.bfloat16
        lengths = [(bounds[b + 1] - bounds[b] - 1) * page + last[b] for b in range(len(last))]
        self.planned = (range(len(last) + 1), bounds, pages, lengths, False)

    def run(self, q, caches):
        return self.over_pages(q, caches, *self.planned)


class PagedPrefill(Decode):
    def plan(self, q_bounds, *rest, causal, **types_):
        super().plan(*rest, **types_)
        self.planned = (q_bounds, *self.planned[1:4], causal)


class Latent(Played):
    def plan(self, *, metadata, num_heads, page_size, causal, sm_scale, query_layout, kv_cache_layout, **rest):
        assert query_layout == kv_cache_layout == "split"
        m = metadata
        self.planned = (m["qo_indptr"], m["kv_indptr"], m["kv_indices"], m["kv_len_arr"].tolist(), causal, sm_scale)

    def run(self, *, query, kv_cache):
        keys, latent = torch.cat(kv_cache, -1).unsqueeze(2), kv_cache[0].unsqueeze(2)
        return self.over_pages(torch.cat(query, -1), (keys, latent), *self.planned)


class Ragged(Played):
    def plan(self, q_bounds, bounds, n_q_heads, n_kv_heads, head_dim_qk, head_dim_vo, *, causal, q_data_type, kv_data_type):
        self.planned = (q_bounds, bounds, causal)

    def run(self, q, k, v):
        (q_bounds, bounds, causal), out = self.planned, []
        for b in range(len(bounds) - 1):
            keys = slice(bounds[b], bounds[b + 1])
            out.append(attend(q[q_bounds[b] : q_bounds[b + 1]], k[keys], v[keys], causal))
        return torch.cat(out)


@pytest.fixture
def played(monkeypatch):
    library = types.ModuleType("flashinfer")
    library.BatchDecodeWithPagedKVCacheWrapper = Decode
    library.BatchPrefillWithPagedKVCacheWrapper = PagedPrefill
    library.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    library.mla = types.ModuleType("flashinfer.mla")
    library.mla.BatchMLAPagedAttentionWrapper = Latent
    library.mla.MLAPlanMetadata = types.SimpleNamespace(csr=dict)
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", library.mla)
    monkeypatch.delitem(sys.modules, "course.measure.flashinfer_peer", raising=False)
    yield
    sys.modules.pop("course.measure.flashinfer_peer", None)


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        replace(SMALL, page_size=5),
        replace(SMALL, page_size=16, lengths="ragged", batch=3),
        replace(SMALL, q_len=3),
        LATENT,
        replace(LATENT, page_size=6),
        replace(LATENT, q_len=2),
        replace(LATENT, page_size=16, lengths="ragged", batch=3),
        WHOLE,
        replace(WHOLE, causal=False),
        replace(WHOLE, q_len=11),
    ],
    ids=str,
)
def test_flashinfer_is_asked_the_same_question(played, shape):
    errors, reason = Bench(shape, DEVICE, 0).check(Point(shape, "flashinfer", "fa2"))
    assert reason is None
    assert errors["error"]["relative_l2"] < 8e-3


def test_flashinfer_is_planned_once_for_all_copies(played, monkeypatch):
    plans = []
    plan = Decode.plan
    monkeypatch.setattr(Decode, "plan", lambda self, *args, **options: (plans.append(self), plan(self, *args, **options))[1])
    monkeypatch.setattr(timing, "ROTATED_BYTES", 3 * SMALL.cache_bytes)
    calls = Bench(SMALL, DEVICE, 0).calls(Point(SMALL, "flashinfer", "CUDA cores"))
    assert len(calls) == 3 and len(plans) == 1
    assert plans[0].options == {"use_tensor_cores": False, "backend": "auto"}
    assert not torch.equal(calls[0]()[0][0], calls[1]()[0][0])


@pytest.mark.parametrize(
    "shape",
    [
        WHOLE,
        replace(WHOLE, causal=False),
        replace(WHOLE, q_len=11),
        replace(WHOLE, direction="backward"),
        replace(WHOLE, direction="backward", causal=False),
    ],
    ids=str,
)
def test_flash_attention_is_asked_the_same_question(monkeypatch, shape):
    asked = []

    def flash_attn_func(q, k, v, *, causal):
        """Token-major [B, M, H, D]; the log-sum-exp only on request."""
        asked.append(q.requires_grad)
        assert q.shape[:3] == (shape.batch, shape.q_len, shape.n_q_heads) and {x.stride(-1) for x in (q, k, v)} == {1}
        out, _ = kernels.reference.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
        return out.transpose(1, 2).to(q.dtype), None

    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", types.SimpleNamespace(flash_attn_func=flash_attn_func))
    bench = Bench(shape, DEVICE, 0)
    errors, reason = bench.check(Point(shape, "flash_attn", "fa4"))
    assert reason is None
    assert errors["error"]["relative_l2"] < 8e-3
    (call,) = calls_of(Point(shape, "flash_attn", "fa4"), bench.inputs[:1])
    before = len(asked)
    call()
    backward = shape.direction == "backward"
    assert set(asked) == {backward}
    assert len(asked) - before == (not backward)  # the forward pass of a backward call was made before


@pytest.mark.parametrize(
    "shape",
    [
        replace(LATENT, page_size=64),
        replace(LATENT, page_size=64, batch=3, context_len=200, lengths="ragged"),
        LATENT,
        replace(LATENT, q_len=2),
        replace(LATENT, page_size=64, q_len=2),
    ],
    ids=str,
)
def test_flash_mla_is_asked_the_same_question(monkeypatch, shape):
    planned = []

    def get_mla_metadata(lengths, rows_of_a_kv_head, n_kv_heads):
        assert lengths.dtype == torch.int32 and lengths.tolist() == shape.seq_lens
        assert (rows_of_a_kv_head, n_kv_heads) == (shape.q_len * shape.n_q_heads, 1)
        planned.append(("programs", "parts"))
        return planned[-1]

    def flash_mla_with_kvcache(q, cache, table, lengths, head_dim_v, programs, parts, *, softmax_scale, causal):
        """q [B, M, Hq, 24], cache [pages, 64, 1, 24] -> [B, M, Hq, 16] and the log-sum-exp."""
        assert (programs, parts) == planned[-1] and table.dtype == torch.int32
        assert q.shape == (shape.batch, shape.q_len, shape.n_q_heads, 24) and cache.shape[1:] == (64, 1, 24)
        out = []
        for b, n in enumerate(lengths.tolist()):
            keys = cache[table[b].long()].flatten(0, 1)[:n]
            out.append(attend(q[b], keys, keys[..., :head_dim_v], causal, softmax_scale))
        return torch.stack(out), None

    package = types.ModuleType("sgl_kernel")
    package.flash_mla = types.ModuleType("sgl_kernel.flash_mla")
    package.flash_mla.get_mla_metadata = get_mla_metadata
    package.flash_mla.flash_mla_with_kvcache = flash_mla_with_kvcache
    monkeypatch.setitem(sys.modules, "sgl_kernel", package)
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_mla", package.flash_mla)
    bench = Bench(shape, DEVICE, 0)
    errors, reason = bench.check(Point(shape, "flash_mla"))
    assert reason is None
    assert errors["error"]["relative_l2"] < 8e-3
    (call,) = calls_of(Point(shape, "flash_mla"), bench.inputs[:1])
    before = len(planned)
    call()
    assert len(planned) == before  # what serves all layers of a step is not timed


@pytest.mark.parametrize(
    ("library", "operation", "backend"),
    [("flashinfer", "flashinfer", "fa2"), ("flash_attn", "flash_attn", "fa4"), ("sgl_kernel", "flash_mla", None)],
)
def test_without_a_library_the_error_names_it(monkeypatch, library, operation, backend):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=library):
        calls_of(Point(WHOLE, operation, backend), Bench(WHOLE, DEVICE, 0).inputs)


@pytest.mark.parametrize("shape", [SMALL, WHOLE, replace(WHOLE, q_len=11)], ids=str)
def test_flex_is_asked_the_same_question(monkeypatch, shape):
    from torch.nn.attention.flex_attention import flex_attention

    wide = replace(shape, head_dim_qk=16)
    monkeypatch.setattr(contenders, "_compiled_flex", lambda: flex_attention)  # compiling takes long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Bench(wide, DEVICE, 0).check(Point(wide, "flex"))[1] is None


def test_sdpa_aligns_several_tokens_bottom_right():
    shape = replace(SMALL, q_len=3)
    for backend in ("MATH", "FLASH"):
        try:
            assert Bench(shape, DEVICE, 0).check(Point(shape, "sdpa", backend))[1] is None
        except RuntimeError:  # a backend may refuse; it may not answer another question
            assert backend == "FLASH"


def test_a_work_list_is_made_from_the_lengths(monkeypatch, defined):
    asked = {}
    monkeypatch.setattr(kernels, "plan_work", lambda lengths, *shape, **more: asked.update(more, shape=shape), raising=False)
    shape = replace(LATENT, page_size=6, lengths="ragged", batch=3)
    assert Bench(shape, DEVICE, 0).check(Point(shape, shape.operation, work_list=True))[1] is None
    assert asked == {"shape": (3, 1, 16, torch.bfloat16), "capacity": 132, "q_len": 1}


def test_automatic_splits_are_what_decode_launches():
    shape = Shape(1, 4, 1, 2048, 16, 16, "float16")
    q = torch.randn(1, 4, 16, device=DEVICE, dtype=torch.float16)
    k = torch.randn(1, 1, 2048, 16, device=DEVICE, dtype=torch.float16)
    splits = automatic_splits(Point(shape, "decode"), DEVICE)
    if kernels.MODE == "interpreter":
        from course.measure import count_traffic

        assert count_traffic(kernels.decode, q, k, k).launches[0].programs == splits
    elements = kernels.plan.decode_workspace(1, 1, 4, 16, splits)
    kernels.decode(q, k, k, workspace=torch.empty(max(elements, 1), device=DEVICE))


def test_reasons_are_one_line_without_paths():
    error = RuntimeError("cannot open /opt/some/where/lib.so:12\nsecond line")
    assert why_not(error) == "cannot open …:12"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.warn("Memory efficient kernel not used because: (Triggered internally at /a/b.cpp:1.)", stacklevel=1)
        warnings.warn("needs as many KV heads as query heads (Triggered internally at /a/b.cpp:2.)", stacklevel=1)
    assert why_not(RuntimeError("No available kernel."), warned) == "needs as many KV heads as query heads"
    assert why_not(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize(("direction", "chooser"), [("forward", "forward_hopper"), ("backward", "backward_hopper")])
def test_the_portable_form_is_ours_kept_from_the_kernels_of_one_gpu(direction, chooser, monkeypatch):
    module, kept = importlib.import_module(f"kernels.{chooser}"), []
    monkeypatch.setattr(module, "faster", lambda *_: kept.append(kernels.hopper._portable))
    shape = replace(WHOLE, direction=direction)
    for operation, expected in (("attention", False), ("portable_attention", True)):
        assert Bench(shape, DEVICE, 0).check(Point(shape, operation))[1] is None
        assert set(kept) == {expected}, operation
        kept.clear()
    assert not kernels.hopper._portable
