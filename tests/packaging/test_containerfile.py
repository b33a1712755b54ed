"""The Containerfile: it passes its linter, runs as the user of the manifests, and holds nothing secret."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import watchkeeper
from tests.support import render_tools
from tests.support.paths import ROOT
from watchkeeper.config import settings as config
from watchkeeper.render import kubernetes

TEXT = (ROOT / "Containerfile").read_text()
STAGES: dict[str, str] = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", TEXT, re.M | re.S))


def test_it_passes_the_linter() -> None:
    render_tools.run([render_tools.program("hadolint"), ROOT / "Containerfile"])


def test_both_images_run_as_the_user_that_the_manifests_name() -> None:
    user = re.findall(r"^USER (\S+)$", STAGES["agent"] + STAGES["hub"], re.M)
    hub = next(file.text for file in kubernetes.files(config.Settings()) if file.path == "base/hub.yaml")
    number = re.search(r"runAsUser: (\d+)", hub)[1]  # type: ignore[index]
    assert user == [f"{number}:{number}"] * 2
    assert f"--uid {number}" in STAGES["base"]


def test_images_are_pinned_and_nothing_is_fetched_from_an_address() -> None:
    assert not re.search(r"^ADD |https?://|:latest", TEXT, re.M)
    assert all(":" in image or image in STAGES for image in re.findall(r"^FROM (\S+) AS", TEXT, re.M))


def test_no_secret_can_be_in_an_image() -> None:
    assert not re.search(r"(?i)(token|password|secret|key)\s*=", re.sub(r"^#.*$", "", TEXT, flags=re.M))
    ignored = (ROOT / ".containerignore").read_text().split("\n")
    # Everything is left out first, and only what is named comes back in.
    assert next(line for line in ignored if line and not line.startswith("#")) == "*"


def test_everything_that_is_copied_comes_through_the_list_of_what_may() -> None:
    lines = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]
    allowed = [line.removeprefix("!") for line in lines]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.M) for word in line.split()]
    for path in copied:
        assert any(fnmatchcase(path.rstrip("/").split("/")[0], pattern) for pattern in allowed), path
        assert (ROOT / path).exists(), path


def test_its_version_is_the_one_of_the_package() -> None:
    assert f"ARG VERSION={watchkeeper.__version__}\n" in STAGES["base"]


def test_every_locked_version_is_a_constraint_of_the_build() -> None:
    command = re.search(r"^RUN (sed .+) > constraints.txt$", STAGES["build"], re.M)[1]  # type: ignore[index]
    found = render_tools.run(["sh", "-c", command], cwd=ROOT).splitlines()
    lock = (ROOT / "requirements.lock").read_text()
    assert [line.partition("==")[0] for line in found] == re.findall(r"^([a-z0-9._-]+)==", lock, re.M)
    # Two versions of one package differ by their markers, which must stay.
    assert all(
        " ; " in line for line in found if sum(one.startswith(line.partition("==")[0] + "==") for one in found) > 1
    )
