"""course.measure.tensors: copies are counted and views are not."""

import pytest
import torch
import torch.nn.functional as F

from course.measure import Made, tensors_made


@pytest.fixture
def cache():
    return torch.randn(2, 3, 50, 8)


def test_a_view_is_not_made(cache):
    assert tensors_made(lambda x: x.transpose(1, 2)[..., :4].unsqueeze(0).expand(5, -1, -1, -1, -1), cache) == []


def test_a_copy_is_made_where_the_code_shows_none(cache):
    n_bytes = 4 * 2 * 12 * 50 * 8
    assert tensors_made(lambda x: x.repeat_interleave(4, dim=1), cache) == [Made("clone", (2, 3, 4, 50, 8), n_bytes)]
    (made,) = tensors_made(lambda x: x.unsqueeze(2).expand(-1, -1, 4, -1, -1).reshape(2, 12, 50, 8), cache)
    assert made.n_bytes == n_bytes


def test_in_place_work_makes_nothing(cache):
    assert tensors_made(lambda x: x[:, :, :3].mul_(2), cache) == []


def test_every_result_of_an_operation_counts(cache):
    values, indices = tensors_made(lambda x: x.max(-1), cache)
    assert (values.shape, indices.shape) == ((2, 3, 50), (2, 3, 50))
    assert indices.n_bytes == 2 * values.n_bytes


def test_a_broadcast_product_copies_its_keys_and_a_folded_one_does_not():
    q, k = torch.randn(1, 8, 16), torch.randn(1, 2, 300, 16)
    size = 4 * k.numel()
    broadcast = tensors_made(lambda: q.view(1, 2, 4, 1, 16) @ k.unsqueeze(2).transpose(-1, -2))
    folded = tensors_made(lambda: q.view(1, 2, 4, 16) @ k.transpose(-1, -2))
    assert max(made.n_bytes for made in broadcast) == 4 * size
    assert max(made.n_bytes for made in folded) < size


def test_arguments_are_passed_on_and_errors_too(cache):
    made = tensors_made(F.scaled_dot_product_attention, cache, cache, cache, is_causal=True)
    assert made[0].shape == cache.shape
    with pytest.raises(RuntimeError):
        tensors_made(torch.matmul, cache, torch.ones(3))


def test_nothing_is_watched_afterwards(cache):
    watched = tensors_made(torch.clone, cache)
    cache.clone()
    assert len(watched) == 1
