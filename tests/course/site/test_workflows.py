"""The files that hosted machines read (GitHub's workflows, dev containers, Binder) parse and call commands that exist."""

import json
import re
from pathlib import Path

import pytest
import yaml

from course.site import ROOT
from course.site.__main__ import COMMANDS
from course.site.environment import SUPPORTED

WORKFLOWS = sorted(Path(ROOT, ".github", "workflows").glob("*"))
SUPPORTED_PYTHONS = {"{}.{}".format(*version) for version in SUPPORTED}


def read(path: Path) -> dict:
    """The workflow with every scalar as text: YAML 1.1 takes the key ``on`` for true and the version 3.10 for 3.1."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request) -> dict:
    return read(request.param)


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def calls_what_exists(command: str) -> None:
    """Every make target, course command and script that a line of shell names is there."""
    for target in re.findall(r"\bmake ([\w-]+)", command) + re.findall(r"course\.site ([a-z-]+)", command):
        assert target in COMMANDS
    for script in re.findall(r"\bbash (\S+)", command) + re.findall(r"\bpytest (\S+)", command):
        assert Path(ROOT, script).is_file()


def test_each_occasion_has_its_workflow():
    found = {path.stem: read(path) for path in WORKFLOWS}
    assert {name: set(workflow["on"]) for name, workflow in found.items()} == {
        "ci": {"push", "pull_request", "schedule"},
        "pages": {"push", "workflow_dispatch"},
        "weekly": {"schedule", "workflow_dispatch"},
        "gpu": {"workflow_dispatch"},
    }
    assert found["pages"]["on"]["push"] == {"tags": ["v*"]}
    assert found["gpu"]["jobs"]["gpu-test"]["runs-on"] == ["self-hosted", "gpu"]


def test_it_has_the_keys_of_a_workflow(workflow):
    assert {"name", "on", "permissions", "jobs"} <= set(workflow) <= {"name", "on", "permissions", "concurrency", "jobs"}
    known = {"runs-on", "timeout-minutes", "strategy", "steps", "needs", "permissions", "environment"}
    for job in workflow["jobs"].values():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job) <= known
        assert set(job.get("strategy", {})) <= {"fail-fast", "matrix"}
        assert job.get("needs", next(iter(workflow["jobs"]))) in workflow["jobs"]
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"uses", "with", "run", "env", "id", "if"}


def test_it_may_only_read_but_for_what_publishes(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        publishes = any("deploy-pages" in step.get("uses", "") for step in job["steps"])
        assert job.get("permissions") == ({"pages": "write", "id-token": "write"} if publishes else None)


def test_schedules_are_five_fields(workflow):
    for entry in workflow["on"].get("schedule", []) if isinstance(workflow["on"], dict) else []:
        assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", entry["cron"])


def test_actions_are_github_s_own_and_held_to_a_major_version(workflow):
    for step in steps(workflow):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1"))


def test_pythons_are_supported(workflow):
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            asked = step.get("with", {}).get("python-version")
            if asked is not None:
                versions = job["strategy"]["matrix"]["python"] if "matrix.python" in asked else [asked]
                assert set(versions) <= SUPPORTED_PYTHONS


def test_what_it_fills_in_is_defined(workflow):
    for job in workflow["jobs"].values():
        for expression in re.findall(r"\${{(.*?)}}", json.dumps(job)):
            if name := re.fullmatch(r" matrix\.(\w+) ", expression):
                assert name[1] in job["strategy"]["matrix"]
            elif name := re.fullmatch(r" steps\.(\w+)\.outputs\.page_url ", expression):
                assert name[1] in {step.get("id") for step in job["steps"]}
            else:
                assert expression == " !cancelled() "


def test_it_calls_what_exists(workflow):
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands or any("deploy-pages" in step.get("uses", "") for step in steps(workflow))
    for command in commands:
        calls_what_exists(command)


@pytest.mark.parametrize("name", ["run", "colab"])
def test_scripts_call_what_exists(name):
    text = Path(ROOT, ".ci", name).read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    calls_what_exists(re.sub(r"--as-is ", "", text))


def test_weekly_run_finds_its_versions():
    images = read(Path(ROOT, ".github/workflows/weekly.yml"))["jobs"]["colab"]["strategy"]["matrix"]["image"]
    for image in images:
        assert len(list(Path(ROOT, "tests", "data").glob(f"colab-{image}-*.txt"))) == 1


def test_dev_container_makes_our_environment():
    container = json.loads(Path(ROOT, ".devcontainer", "devcontainer.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"python:(\d\.\d+)-\w+", container["image"])[1] in SUPPORTED_PYTHONS
    calls_what_exists(container["postCreateCommand"])
    interpreter = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter == "${containerWorkspaceFolder}/.venv/bin/python"


def test_binder_installs_our_lists():
    lines = Path(ROOT, ".binder", "requirements.txt").read_text(encoding="utf-8").splitlines()
    options = [line.split() for line in lines if not line.startswith("#")]
    assert [option for option, _ in options] == ["--requirement", "--constraint"]
    assert all(Path(ROOT, ".binder", path).is_file() for _, path in options)
    assert Path(ROOT, ".binder", "runtime.txt").read_text().strip().removeprefix("python-") in SUPPORTED_PYTHONS
