"""Drawings of latent attention: their words carry the shapes, and no letter is too small."""

from course import costs, views
from course.views import diagrams_mla

V3 = costs.model("DeepSeek-V3").latent


def test_the_record_counts_what_is_kept_and_what_is_not():
    made = views.latent_record_figure()
    assert "these 576 are framed as cached" in made.alt and f"each of {V3.n_heads} heads" in made.alt
    small = views.latent_record_figure(n_heads=4, latent_dim=16, rope_dim=4, nope_dim=8, head_dim_v=8, d_model=32)
    assert "these 20 are framed" in small.alt and small.png != made.png


def test_absorbing_shrinks_the_intermediate():
    made = views.absorb_figure()
    assert "537 million numbers" in made.alt and "65,536 in all" in made.alt


def test_the_tile_is_loaded_once_for_each_tile_of_rows():
    assert "requested 2 times" in views.latent_tile_figure().caption
    assert "requested once" in views.latent_tile_figure(rows=16, n_heads=16).caption


def test_no_letter_is_too_small_for_a_phone(monkeypatch):
    sizes = []
    finish = diagrams_mla.figure

    def spy(fig, **words):
        sizes.extend(text.get_fontsize() for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams_mla, "figure", spy)
    views.latent_record_figure()
    views.absorb_figure()
    views.latent_tile_figure()
    assert min(sizes) >= 9
