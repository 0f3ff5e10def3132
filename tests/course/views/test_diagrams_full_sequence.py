"""Drawings of whole-sequence kernels: their numbers are those of costs and plan, their letters readable on a phone."""

import pytest

from course import costs, views
from course.views import diagrams_full_sequence


def test_the_query_tile_counts_as_costs_does():
    made = views.query_tile_figure(n_q_heads=8, q_len=256, kv_len=512)
    tiles = costs.tile_map(256, 512, 128, 128)
    assert f"Of {tiles.total} tiles a head computes {tiles.computed}" in made.caption
    assert "16 programs in all" in made.alt and "walks over 4 tiles" in made.alt and "skips 0" in made.alt


@pytest.mark.parametrize("wrong", [{"q_len": 100}, {"q_len": 1024, "kv_len": 512}, {"kv_len": 4096}, {"rows": 64}])
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match="q_len"):
        views.query_tile_figure(**wrong)


def test_the_two_walks():
    made = views.backward_walks_figure(group_size=3)
    assert "3 such triangles" in made.alt and "from head to head" in made.alt
    alone = views.backward_walks_figure(group_size=1)
    assert "1 such triangle one" in alone.alt and "from head to head" not in alone.alt
    with pytest.raises(ValueError, match="group_size"):
        views.backward_walks_figure(group_size=9)


def test_letters_fit_a_phone_and_stay_on_the_sheet(monkeypatch):
    sizes, beyond = [], []
    finish = diagrams_full_sequence.figure

    def spy(fig, **words):
        fig.canvas.draw()
        edge = fig.get_figwidth() * fig.dpi
        for ax in fig.axes:
            for text in ax.texts:
                sizes.append(text.get_fontsize())
                beyond.append(text.get_window_extent().x1 - edge)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams_full_sequence, "figure", spy)
    views.query_tile_figure()
    views.backward_walks_figure()
    assert min(sizes) >= 9 and max(beyond) <= 0
