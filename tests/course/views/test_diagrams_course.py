"""The map of the course: only pages that exist, and every arrow in words."""

import pytest

from course import views
from course.views import diagrams_course


def test_only_written_pages_are_drawn():
    made = views.course_map()
    written = diagrams_course.written_pages()
    assert {"0", "1", "4"} <= set(written)
    for page, (words, *_) in diagrams_course.PAGES.items():
        assert (f"{page} {words}" in made.alt) == (page in written)


def test_every_need_is_told_and_points_backwards():
    everything = views.course_map(diagrams_course.PAGES)
    assert "8 MLA: absorb needs 5 and 7" in everything.alt and "3b Backward needs 3" in everything.alt
    order = list(diagrams_course.PAGES)
    for page, (_, _, _, needs) in diagrams_course.PAGES.items():
        assert set(needs) <= set(order) - {page}
        assert all(diagrams_course.PAGES[need][2][1] <= diagrams_course.PAGES[page][2][1] for need in needs)
    places = [place for _, _, place, _ in diagrams_course.PAGES.values()]
    assert len(set(places)) == len(places)


def test_an_unknown_page_is_refused():
    with pytest.raises(ValueError, match="pages must be among"):
        views.course_map(["0", "99"])
