"""The definitions themselves: against PyTorch in float64, against numbers worked by hand, against each other."""

import math

import pytest
import torch

from kernels import reference


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_q_heads", "n_kv_heads", "q_len", "kv_len"), [(3, 3, 5, 5), (6, 2, 4, 9), (5, 1, 7, 3)])
def test_attention_is_torchs_with_the_mask_written_out(n_q_heads, n_kv_heads, q_len, kv_len, causal):
    q, k, v = randn(2, n_q_heads, q_len, 6), randn(2, n_kv_heads, kv_len, 6), randn(2, n_kv_heads, kv_len, 4)
    mask = torch.ones(q_len, kv_len, dtype=torch.bool)
    if causal:
        mask = torch.tensor([[j <= i + kv_len - q_len for j in range(kv_len)] for i in range(q_len)])
    seen = mask.any(-1)
    k_all, v_all = (t.repeat_interleave(n_q_heads // n_kv_heads, 1) for t in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k_all, v_all, attn_mask=mask)
    out, lse = reference.attention(q, k, v, causal=causal)
    torch.testing.assert_close(out[:, :, seen], wanted[:, :, seen])
    scores = (q @ k_all.transpose(-1, -2) / math.sqrt(6)).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))
    assert (out[:, :, ~seen] == 0).all() and (lse[:, :, ~seen] == -torch.inf).all()


def test_hand_worked_row():
    """Scores 2, 0, 3, 1 and values 1 to 4: output 2.5813, log-sum-exp 3.4402; halves merge to the same, averages do not."""
    k = torch.tensor([2.0, 0.0, 3.0, 1.0]).view(1, 1, 4, 1)
    v = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4, 1)
    q = torch.ones(1, 1, 1, 1)
    out, lse = reference.attention(q, k, v, scale=1.0)
    assert round(out.item(), 4) == 2.5813 and round(lse.item(), 4) == 3.4402
    halves = [reference.attention(q, k[:, :, i : i + 2], v[:, :, i : i + 2], scale=1.0) for i in (0, 2)]
    assert [round(o.item(), 4) for o, _ in halves] == [1.1192, 3.1192]
    merged, merged_lse = reference.merge(torch.stack([o for o, _ in halves]), torch.stack([x for _, x in halves]))
    torch.testing.assert_close(merged, out)
    torch.testing.assert_close(merged_lse, lse)


def test_bottom_right_alignment():
    v = torch.arange(1.0, 6.0).view(1, 1, 5, 1)
    out, lse = reference.attention(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 5, 1), v, causal=True)
    assert out.flatten().tolist() == [2.5, 3.0]
    torch.testing.assert_close(lse.flatten(), torch.tensor([4.0, 5.0], dtype=torch.float64).log())


def test_decode_reads_nothing_beyond_a_length():
    q, k, v = randn(3, 4, 5), randn(3, 2, 9, 5), randn(3, 2, 9, 3)
    lengths = torch.tensor([0, 4, 9])
    for b, n in enumerate(lengths):
        k[b, :, n:], v[b, :, n:] = torch.nan, torch.nan
    out, lse = reference.decode(q, k, v, lengths)
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()
    wanted, _ = reference.attention(q[1:2].unsqueeze(2), k[1:2, :, :4], v[1:2, :, :4])
    torch.testing.assert_close(out[1:2], wanted.squeeze(2))
    assert not out.isnan().any()


def test_several_new_tokens_are_causal_among_themselves():
    q, k, v = randn(1, 3, 4, 5), randn(1, 2, 9, 5), randn(1, 2, 9, 3)
    out, _ = reference.decode(q, k, v)
    for t in range(3):
        alone, _ = reference.decode(q[:, t], k[:, :, : 7 + t], v[:, :, : 7 + t])
        torch.testing.assert_close(out[:, t], alone)


def test_paged_decode_is_decode_with_an_address():
    q, k, v = randn(2, 4, 5), randn(2, 2, 8, 5), randn(2, 2, 8, 3)
    lengths = torch.tensor([8, 5])
    table = torch.tensor([[3, 0], [4, 1]], dtype=torch.int32)
    k_pages, v_pages = (
        torch.full((6, 4, 2, 5), torch.nan, dtype=torch.float64),
        torch.full((6, 4, 2, 3), torch.nan, dtype=torch.float64),
    )
    for b in range(2):
        for j in range(int(lengths[b])):
            page = table[b, j // 4].item()
            k_pages[page, j % 4], v_pages[page, j % 4] = k[b, :, j], v[b, :, j]
    paged = reference.paged_decode(q, k_pages, v_pages, table, lengths)
    dense = reference.decode(q, k, v, lengths)
    torch.testing.assert_close(paged, dense)


def test_absorbed_mla_is_expanded_mla():
    """Moving W^UK to the query and W^UV to the output changes no score and no value; the scale stays 1/sqrt(d_nope + d_r)."""
    batch, n_q_heads, context_len, latent_dim, nope_dim, rope_dim, head_dim_v = 2, 3, 7, 8, 4, 2, 5
    q_nope, q_rope = randn(batch, n_q_heads, 1, nope_dim), randn(batch, n_q_heads, 1, rope_dim)
    latent, k_rope = randn(batch, context_len, latent_dim), randn(batch, context_len, rope_dim)
    w_uk, w_uv = randn(n_q_heads, latent_dim, nope_dim), randn(n_q_heads, latent_dim, head_dim_v)
    scale = (nope_dim + rope_dim) ** -0.5
    wanted, wanted_lse = reference.mla_expanded(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale=scale)
    q_latent = torch.einsum("bhd,hcd->bhc", q_nope[:, :, 0], w_uk)
    attended, lse = reference.mla_decode(q_latent, q_rope[:, :, 0], latent, k_rope, scale=scale)
    torch.testing.assert_close(torch.einsum("bhc,hcd->bhd", attended, w_uv), wanted[:, :, 0])
    torch.testing.assert_close(lse, wanted_lse[:, :, 0])
    pages = latent.reshape(batch * context_len, 1, latent_dim), k_rope.reshape(batch * context_len, 1, rope_dim)
    table = torch.arange(batch * context_len).view(batch, context_len)
    lengths = torch.tensor([context_len] * batch)
    paged, _ = reference.paged_mla_decode(q_latent, q_rope[:, :, 0], *pages, table, lengths, scale=scale)
    torch.testing.assert_close(paged, attended)
    with pytest.raises(TypeError, match="scale"):
        reference.mla_decode(q_latent, q_rope[:, :, 0], latent, k_rope)


def test_gradients_flow_and_a_row_without_keys_gives_zero():
    q, k, v = (randn(1, 2, 4, 3).requires_grad_() for _ in range(3))
    out, lse = reference.attention(q, k[:, :, :2], v[:, :, :2], causal=True)
    (out.sum() + lse[lse > -torch.inf].sum()).backward()
    for tensor in (q, k, v):
        assert torch.isfinite(tensor.grad).all()
    assert (q.grad[:, :, :2] == 0).all() and (k.grad[:, :, 2:] == 0).all()


def test_a_length_or_page_that_is_not_there_is_refused():
    q, k, v = randn(1, 4, 5), randn(1, 2, 9, 5), randn(1, 2, 9, 3)
    for length in (-1, 10):
        with pytest.raises(ValueError, match="between 0 and the cache's 9"):
            reference.decode(q, k, v, torch.tensor([length]))
    k_pages, v_pages = randn(4, 2, 2, 5), randn(4, 2, 2, 3)
    for page in (-1, 4):
        with pytest.raises(ValueError, match="pages 0 to 3"):
            reference.paged_decode(q, k_pages, v_pages, torch.tensor([[0, page]]), torch.tensor([3]))
        reference.paged_decode(q, k_pages, v_pages, torch.tensor([[0, page]]), torch.tensor([2]))  # not in use


def test_an_empty_batch_is_an_empty_answer():
    out, lse = reference.decode(randn(0, 4, 5), randn(0, 2, 9, 5), randn(0, 2, 9, 3))
    assert out.shape == (0, 4, 3) and lse.shape == (0, 4)
    nothing = torch.zeros(0, dtype=torch.int32)
    out, _ = reference.paged_decode(randn(0, 4, 5), randn(4, 2, 2, 5), randn(4, 2, 2, 3), nothing.view(0, 1), nothing)
    assert out.shape == (0, 4, 3)


def test_merge_ignores_a_state_without_mass():
    outs, lses = torch.tensor([[1.0], [torch.nan]]), torch.tensor([0.5, -torch.inf])
    out, lse = reference.merge(outs, lses)
    assert out.item() == 1.0 and lse.item() == 0.5
    out, lse = reference.merge(torch.full((2, 1), torch.nan), torch.full((2,), -torch.inf))
    assert out.item() == 0.0 and lse.item() == -torch.inf
