"""The course folder lies outside the repository, and its seed is made once, for the instructor alone."""

import json
import stat

import pytest

from course.grading.folder import Folder, Refusal, write
from course.session import ROOT


@pytest.mark.parametrize("path", [ROOT, ROOT / "course", ROOT / "new", ROOT.parent, "/"])
def test_a_folder_in_or_around_the_repository_is_refused(path):
    with pytest.raises(Refusal, match="may not lie in each other"):
        Folder(path)


def test_the_folder_is_named_by_the_environment_or_lies_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE", str(tmp_path / "mine"))
    assert Folder().root == tmp_path / "mine"
    monkeypatch.delenv("COURSE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Folder().root == tmp_path / "from-mha-to-mla-course"


def test_the_seed_is_made_once(tmp_path):
    folder = Folder(tmp_path)
    seeds = [folder.hidden_seed, folder.release_seed(1), folder.release_seed(2)]
    path = tmp_path / "seeds.json"
    assert len({*seeds, json.loads(path.read_text())["secret"]}) == 4 and folder.release_seed("public") == "public"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder.set_released("x", variant=2)
    again = Folder(tmp_path)
    assert [again.hidden_seed, again.release_seed(1), again.release_seed(2)] == seeds
    assert again.released("x") == {"variant": 2} and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Folder(tmp_path / "other").hidden_seed != folder.hidden_seed


def test_a_seed_that_others_can_read_or_that_is_damaged_is_not_used(tmp_path):
    Folder(tmp_path).hidden_seed  # noqa: B018
    path = tmp_path / "seeds.json"
    path.chmod(0o644)
    with pytest.raises(Refusal, match="chmod 600"):
        Folder(tmp_path).hidden_seed  # noqa: B018
    path.chmod(0o600)
    path.write_text("{}")
    with pytest.raises(Refusal, match="restore it"):
        Folder(tmp_path).hidden_seed  # noqa: B018
    assert path.read_text() == "{}"


def test_settings_of_ones_own_stay(tmp_path):
    Folder(tmp_path).create()
    config = tmp_path / "nbgrader_config.py"
    config.write_text(config.read_text() + "\n# mine\n")
    Folder(tmp_path).create()
    assert config.read_text().endswith("# mine\n")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write(tmp_path / "a" / "b", "old")
    with pytest.raises(TypeError):
        write(tmp_path / "a" / "b", 3)
    assert (tmp_path / "a" / "b").read_text() == "old" and len(list((tmp_path / "a").iterdir())) == 1


def test_a_submission_is_its_notebook_and_what_lies_beside(tmp_path):
    folder = Folder(tmp_path)
    place = tmp_path / "submitted" / "ada" / "n"
    write(place / "other.ipynb", "only one")
    write(place / "data" / "x.txt", "x")
    (place / "link.ipynb").symlink_to("/etc/passwd")
    submission = folder.submission("ada", "n")
    assert submission.data == b"only one" and submission.beside == {"data/x.txt": b"x"}
    write(place / "n.ipynb", "the one")
    assert folder.submission("ada", "n").data == b"the one"
    assert folder.submission("bob", "n").data == b""
