"""The map of the course: only pages that exist, and every arrow in words."""

import re

import pytest

from course import views
from course.views.contents import PAGES, minutes, title, written_pages


def test_only_written_pages_are_drawn():
    made = views.course_map()
    written = written_pages()
    assert {"0", "1", "4"} <= set(written)
    for number, page in PAGES.items():
        assert (f"{number} {page.words}" in made.alt) == (number in written)


def test_every_need_is_told_and_points_backwards():
    everything = views.course_map(PAGES)
    assert "8 MLA: absorb needs 5 and 7" in everything.alt and "3b Backward needs 3" in everything.alt
    order = list(PAGES)
    for number, page in PAGES.items():
        assert set(page.needs) <= set(order[: order.index(number)])
        assert all(PAGES[need].place[1] <= page.place[1] for need in page.needs)
    places = [page.place for page in PAGES.values()]
    assert len(set(places)) == len(places)


def test_an_unknown_page_is_refused():
    with pytest.raises(ValueError, match="pages must be among"):
        views.course_map(["0", "99"])


def test_every_page_says_its_minutes_and_carries_its_number():
    for page in written_pages():
        assert 10 <= minutes(page) <= 90
        assert title(page).startswith(f"{page} ")


def test_lists_hold_the_pages_that_exist_and_no_other():
    table, paths = views.page_table("notebooks/"), views.path_list()
    assert table.count("](notebooks/") == len(written_pages())
    for number in set(PAGES) - set(written_pages()):
        assert f"[{number} " not in table and not re.search(rf"[:,] {number}[,.]", paths)
