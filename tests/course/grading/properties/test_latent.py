"""What the properties of latent attention say, and that their shapes hide nothing."""

import pytest
import torch

import kernels
from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.judge import Wrong
from course.grading.properties import latent
from tests.course.grading.grade import course
from tests.course.grading.wrong_answers.c07_mla_compress import _layer

DRAW = Draw("latent")


def says(prop, answer):
    with pytest.raises(Wrong) as wrong:
        prop(Local(answer), DRAW)
    return str(wrong.value)


def test_no_two_widths_are_equal():
    for i in range(30):
        shape = latent.draw_shape(Draw("widths", i))
        widths = [shape.nope_dim, shape.rope_dim, shape.head_dim_v, shape.latent_dim]
        widths += [shape.head_dim_qk, shape.elements_per_token, shape.d_model, shape.d_model / shape.n_heads]
        assert len(set(widths)) == len(widths)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (lambda w: w["w_uk"].shape[2], "content part alone"),
        (lambda w: w["w_uk"].shape[1] + w["w_kr"].shape[1], "record in the cache"),
        (lambda w: w["w_o"].shape[1] / len(w["w_uk"]), "model over its heads"),
        (lambda w: 3.3, "no scale alone"),
    ],
)
def test_a_wrong_scale_is_told_by_its_width(width, words):
    assert words in says(latent.layer_scale, _layer(scale_width=width)())


@pytest.mark.parametrize(
    ("keep", "words"), [("heads", "no head axis"), ("latent", "will a later query see"), ("value beside it", "numbers a token")]
)
def test_a_cache_is_told_by_its_size(keep, words):
    assert words in says(latent.layer_cache_bytes, _layer(keep)())


def test_the_layer_of_the_course_is_the_definition():
    weights = latent.draw_weights(DRAW, latent.draw_shape(DRAW))
    x = torch.randn(2, 5, weights["w_dkv"].shape[0], dtype=torch.float64)
    out, cache = latent.as_function(course)(x, weights)
    torch.testing.assert_close(out, latent.definition(x, weights))
    assert [tuple(t.shape[:2]) for t in cache] == [(2, 5)] * 2


def test_a_cache_that_is_no_tensors_is_said():
    assert "tuple of tensors" in says(latent.layer_definition, lambda x, weights, cache: (x, {"latent": x}))
    assert "tuple of tensors" in says(latent.layer_definition, lambda x, weights, cache: (x, object()))


def test_a_broadcast_product_is_told_from_scores():
    def step(q_nope, q_rope, c, k_rope, w_uk, w_uv, scale):
        q = torch.einsum("bhn,hcn->bhc", q_nope, w_uk).unsqueeze(2)
        x = (q @ c.unsqueeze(1).mT).squeeze(2) + q_rope @ k_rope.mT
        return torch.einsum("bhc,hcv->bhv", (x * scale).softmax(-1) @ c, w_uv)

    latent.step_definition(Local(step), DRAW)
    latent.step_flops(Local(step), DRAW)
    assert "broadcasting" in says(latent.step_tensors, step)


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="loads are counted in the interpreter")
def test_loads_are_told_by_their_number():
    def apart(q_latent, q_rope, c, k_rope, **options):
        key = torch.cat([c, k_rope], -1)[:, None]
        return kernels.decode(torch.cat([q_latent, q_rope], -1), key, c[:, None], **options)

    assert "never read" in says(latent.kernel_reads, apart)  # it reads a copy
    assert "never read" in says(latent.kernel_reads, kernels.reference.mla_decode)
