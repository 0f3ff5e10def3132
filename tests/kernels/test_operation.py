"""Every operation has two ways in: torch's, for whatever follows a computation, and the short one. Both give the same."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels._operation import NAMESPACE

pytestmark = pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton: without it there are no operations")


class Calls(TorchFunctionMode):
    """Which of our operations are called through torch."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, arguments=(), named=None):
        self.names += ours([function])
        return function(*arguments, **(named or {}))


class Watching(TorchDispatchMode):
    """Somebody who follows the computation: a profiler, a counter of FLOPs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names += ours([function])
        return function(*arguments, **(named or {}))


def ours(functions) -> list[str]:
    names = [str(function).split(".") for function in functions]
    return [name for namespace, name, *_ in (n for n in names if len(n) > 1) if namespace == NAMESPACE]


def steps(random, device):
    """Each operation: its name, and the call of a wrapper that gives tensors."""
    q, k, v = random(2, 4, 16), random(2, 2, 64, 16), random(2, 2, 64, 16)
    lengths = torch.tensor([9, 64], dtype=torch.int32, device=device)
    pages, table = random(8, 16, 2, 16), torch.arange(8, dtype=torch.int32, device=device).view(2, 4)
    latent, rope, q_rope, new = random(2, 64, 16), random(2, 64, 8), random(2, 4, 8), random(2, 2, 16)

    def appended(append, new, caches, *place):
        caches = [cache.clone() for cache in caches]
        append(*new, *caches, *place)
        return caches

    pair, mla = (new, new), (new[:, 0], q_rope[:, 0])
    latents = pages[:, :, 0], pages[:, :, 1, :8]
    return {
        "decode": lambda: kernels.decode(q, k, v, lengths, num_splits=2),
        "decode, paged": lambda: kernels.paged_decode(q, pages, pages, table, lengths),
        "decode, MLA": lambda: kernels.mla_decode(q, q_rope, latent, rope, scale=0.2),
        "decode, paged MLA": lambda: kernels.paged_mla_decode(q, q_rope, *latents, table, lengths, scale=0.2),
        "append": lambda: appended(kernels.append, pair, (k, v), lengths),
        "append, paged": lambda: appended(kernels.paged_append, pair, (pages, pages), table, lengths),
        "append, MLA": lambda: appended(kernels.mla_append, mla, (latent, rope), lengths),
        "append, paged MLA": lambda: appended(kernels.paged_mla_append, mla, latents, table, lengths),
        "plan_work": lambda: vars(kernels.plan_work(lengths, 4, 2, 16, torch.float32, capacity=64, shares=3)).values(),
        "merge": lambda: kernels.merge(random(3, 4, 16).clone(), torch.zeros(3, 4, device=device)),
        "attention": lambda: kernels.attention(k, k, v, causal=True),
        "one_row": lambda: kernels.one_row(q[0, 0], k[0, 0], v[0, 0]),
        "copy": lambda: (kernels.first.copy(k),),
        "softmax": lambda: (kernels.first.softmax(k[0, 0]),),
        "read": lambda: (kernels.first.read(torch.arange(99, dtype=torch.int32, device=device), programs=2),),
    }


NAMES = list(steps(lambda *shape: torch.zeros(shape), "cpu"))


@pytest.mark.parametrize("name", NAMES)
def test_the_short_way_is_taken_where_nobody_looks(random, device, generator, name):
    state = generator.get_state()
    step = steps(random, device)[name]
    with Calls() as calls:
        short = list(step())
    assert calls.names == []
    generator.set_state(state)
    step = steps(random, device)[name]
    with Watching() as watching:
        long = list(step())
    assert watching.names == [name.partition(",")[0]]
    assert short and all(torch.equal(a, b) for a, b in zip(short, long, strict=True))


def test_a_gradient_goes_through_torch(random):
    k = random(1, 2, 8, 16).requires_grad_()
    with Calls() as calls:
        out, _ = kernels.attention(k, k, k)
    assert calls.names == ["attention"] and out.requires_grad
    with Calls() as calls, torch.no_grad():
        out, _ = kernels.attention(k, k, k)
    assert calls.names == [] and not out.requires_grad


@pytest.mark.filterwarnings("ignore")  # what a trace says of Python numbers
def test_traces_hold_the_operation(random):
    q, k = random(2, 4, 16), random(2, 2, 64, 16)

    class Step(torch.nn.Module):
        def forward(self, q, k):
            return kernels.decode(q, k, k, num_splits=2)

    for graph in (torch.export.export(Step(), (q, k)).graph, make_fx(Step())(q, k).graph):
        assert ours(node.target for node in graph.nodes if node.op == "call_function") == ["decode"]
    assert f"{NAMESPACE}::decode" in str(torch.jit.trace(Step(), (q, k), check_trace=False).graph)


def test_tensors_that_are_not_plain_go_through_torch(random):
    k = random(1, 2, 8, 16)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(k)
    out, lse = kernels.attention(fake, fake, fake)
    assert type(out) is type(fake) and (out.shape, lse.shape) == (k.shape, k.shape[:3])


def test_what_is_written_into_counts_as_changed(random, device):
    """A gradient that needs the cache as it was must not be computed from what it is now."""
    k, v, new = random(1, 2, 8, 16), random(1, 2, 8, 16), random(1, 2, 16)
    lengths = torch.tensor([3], dtype=torch.int32, device=device)
    factor = torch.ones_like(k).requires_grad_()
    product = (factor * k).sum()
    kernels.append(new, new, k, v, lengths)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    before = [k._version, v._version]
    kernels.append(new, new, k, v, lengths)
    workspace = torch.empty(kernels.plan.decode_workspace(1, 1, 2, 16, 2), device=device)
    kernels.decode(new, k, v, num_splits=2, workspace=workspace)
    assert [k._version - before[0], v._version - before[1], workspace._version] == [1, 1, 1]
    with torch.inference_mode():  # such tensors keep no count
        kernels.append(new, new, k.clone(), v.clone(), lengths)


def loss(q, k, v):
    out, lse = kernels.attention(q, k, v, causal=True, scale=-0.3)
    return (out * torch.linspace(-1, 1, out.shape[-1], device=out.device)).sum() + lse.square().sum()


def by_autograd(*tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(loss(*leaves), leaves)


def test_torch_func_differentiates_attention(random):
    q, k, v = random(2, 4, 5, 16), random(2, 2, 7, 16), random(2, 2, 7, 8)
    wanted = by_autograd(q, k, v)
    for got in (
        torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v),
        torch.func.vjp(loss, q, k, v)[1](torch.ones((), device=q.device)),
        torch.func.jacrev(loss, argnums=(0, 1, 2))(q, k, v),
    ):
        assert all(map(torch.equal, got, wanted))
    # Of a function of something else, what is attended to is a constant.
    factor = torch.func.grad(lambda factor: (factor * kernels.attention(q, k, v)[0]).sum())(torch.ones_like(q[..., :8]))
    assert torch.equal(factor, kernels.attention(q, k, v)[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_and_batches_nest(random):
    q, k, v = random(3, 1, 4, 5, 16), random(1, 2, 7, 16), random(1, 2, 7, 8)
    each = [by_autograd(one, k, v) for one in q]
    inside = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), (0, None, None))(q, k, v)
    assert all(torch.equal(got, torch.stack(wanted)) for got, wanted in zip(inside, zip(*each, strict=True), strict=True))

    def total(q, k, v):
        return torch.vmap(loss, (0, None, None))(q, k, v).sum()

    d_q, d_k, d_v = torch.func.grad(total, argnums=(0, 1, 2))(q, k, v)
    assert torch.equal(d_q, inside[0])
    torch.testing.assert_close((d_k, d_v), (inside[1].sum(0), inside[2].sum(0)))
    # The other way to ask for several gradients at once.
    leaf = q[0].clone().requires_grad_()
    out, _ = kernels.attention(leaf, k, v)
    d_outs = random(3, *out.shape)
    (got,) = torch.autograd.grad(out, leaf, d_outs, is_grads_batched=True, retain_graph=True)
    assert torch.equal(got, torch.stack([torch.autograd.grad(out, leaf, d, retain_graph=True)[0] for d in d_outs]))


def test_other_derivatives_are_refused_by_name(random):
    k, q = random(1, 2, 8, 16), random(1, 2, 16)
    square = lambda x: kernels.attention(x, x, x)[0].square().sum()  # noqa: E731
    with pytest.raises(kernels.Unsupported, match="attention has no second derivative"):
        torch.func.jacrev(torch.func.grad(square))(k)
    with pytest.raises(kernels.Unsupported, match="attention has no forward-mode derivative"):
        torch.func.hessian(square)(k)
    with pytest.raises(kernels.Unsupported, match="attention has no forward-mode derivative, and q carries a tangent"):
        torch.func.jvp(square, (k,), (k,))
    with pytest.raises(kernels.Unsupported, match="decode has no backward and q requires a gradient"):
        torch.func.grad(lambda q: kernels.decode(q, k, k)[0].sum())(q)


MAPPED = {
    "decode": lambda q, k: kernels.decode(q, k, k, num_splits=2),
    "decode, MLA": lambda q, k: kernels.mla_decode(q, q[..., :8], k[:, 0], k[:, 0, :, :8], scale=0.2),
    "merge": lambda q, k: kernels.merge(k[:, :, :8], k[:, :, :8, 0]),
    "attention": lambda q, k: kernels.attention(k, k, k, causal=True),
    "one_row": lambda q, k: kernels.one_row(q[0, 0], k[0, 0], k[0, 1]),
    "copy": lambda q, k: (kernels.first.copy(q),),
    "softmax": lambda q, k: (kernels.first.softmax(q[0]), kernels.first.softmax_three_passes(q[0])),
    "read": lambda q, k: (kernels.first.read((100 * q).int(), programs=2),),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_one_call_after_the_other(random, name):
    q, k = random(3, 2, 4, 16), random(3, 2, 2, 64, 16)
    wanted = [torch.stack(parts) for parts in zip(*map(MAPPED[name], q, k), strict=True)]
    for axes in ((0, 1), (1, 0)):
        got = torch.vmap(MAPPED[name], axes)(*(t.movedim(0, axis) for t, axis in zip((q, k), axes, strict=True)))
        assert all(map(torch.equal, got, wanted))


def test_vmap_over_what_is_written(random, device):
    k, new = random(3, 2, 2, 8, 16), random(3, 2, 2, 16)
    lengths = torch.tensor([[1, 8], [3, 2], [5, 5]], device=device)
    wanted, got = [k.clone(), k.flip(0)], [k.clone(), k.flip(0)]
    for arguments in zip(new, new, *wanted, lengths, strict=True):
        kernels.append(*arguments)
    torch.vmap(kernels.append, out_dims=None)(new, new, *got, lengths)
    assert all(map(torch.equal, got, wanted)) and not torch.equal(got[0], k)
    with pytest.raises(kernels.Unsupported, match="append under torch.vmap writes into k for every element"):
        torch.vmap(lambda new: kernels.append(new, new, k[0], k[1], lengths[0]))(new)
    with pytest.raises(kernels.Unsupported, match="at least one element"):
        torch.vmap(lambda x: kernels.attention(x, x, x)[0])(k[:0])


def test_without_torchs_private_list_of_transforms(random, monkeypatch):
    """Nothing changes, but that everything goes through torch."""
    import kernels._operation as module

    monkeypatch.setattr(module, "_transform", lambda: True)
    monkeypatch.setattr(module, "_is_batch", lambda tensor: True)
    q, k, v = random(1, 4, 5, 16), random(1, 2, 7, 16), random(1, 2, 7, 8)
    gradients = by_autograd(q, k, v)
    with Calls() as calls:
        kernels.decode(q[:, :, 0], k, v)
    assert calls.names == ["decode"]
    monkeypatch.undo()
    assert all(map(torch.equal, gradients, by_autograd(q, k, v)))
