"""The best latent, by a bound that no answer passes."""

import pytest
import torch

from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.judge import Wrong
from course.grading.properties import low_rank
from tests.course.grading.right_answers.c07_mla_compress import from_eigenvectors


@pytest.mark.parametrize("seed", range(5))
def test_a_hair_from_the_best_is_seen(seed):
    best = from_eigenvectors()

    def nearly(w_k, w_v, latent_dim):
        down, up_k, up_v = best(w_k, w_v, latent_dim)
        return down, 0.95 * up_k, up_v

    low_rank.compress_best(Local(best), Draw(seed))
    for prop in (low_rank.compress_best, low_rank.compress_exact):
        with pytest.raises(Wrong):
            prop(Local(nearly), Draw(seed))


def test_shapes_are_asked_for():
    with pytest.raises(Wrong, match=r"W_DKV must have shape"):
        low_rank.compress_exact(Local(lambda w_k, w_v, n: (torch.ones(2, 2), w_k, w_v)), Draw(1))
