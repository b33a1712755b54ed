"""Who Watchkeeper depends on: `python -m tests.house.dependencies` prints version, licence and who wants it.

Read from requirements.lock and from the metadata of what is installed; nothing is asked of any network.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

from tests.support.paths import ROOT

# What the lock is for: it names packages of other systems and of later versions of Python as well.
SYSTEMS: tuple[dict[str, str], ...] = (
    {},
    {"sys_platform": "win32", "platform_system": "Windows"},
    {"sys_platform": "emscripten", "python_version": "3.14"},
)
# What only other systems get is not installed here, unless something else wants it: as told by its own metadata.
ELSEWHERE = {"tzdata": "Apache-2.0"}
LICENCE = re.compile(r"License :: (?:OSI Approved :: )?(.+)")


def project() -> dict[str, list[str]]:
    """Requirements by who needs them: agent, hub, dev and the rest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"agent": project["dependencies"], **project["optional-dependencies"]}


def locked() -> dict[str, str]:
    """The version of each package in the lock."""
    pins = re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return dict(pins)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_versions(requirements: Iterable[str]) -> dict[str, str]:
    """All packages that these need, directly or not, each with who wants it first."""
    versions: dict[str, str] = {}
    todo = [(Requirement(requirement), "pyproject.toml") for requirement in requirements]
    visited: set[tuple[str, frozenset[str]]] = set()
    for requirement, by in todo:
        name, extras = normal(requirement.name), frozenset(requirement.extras)
        versions.setdefault(name, by)
        if (name, extras) not in visited:
            visited.add((name, extras))
            todo += [(requirement, name) for requirement in _needs(name, extras)]
    return versions


def _needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, requirements):
        cases = [{**system, "extra": extra} for system in SYSTEMS for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(case) for case in cases):
            yield requirement


def licence(name: str) -> str:
    """As the package says it; empty if it does not."""
    try:
        licences = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ELSEWHERE.get(name, "")
    if expression := licences.get("License-Expression"):
        return str(expression)
    classes = [match[1] for classifier in licences.get_all("Classifier", []) if (match := LICENCE.match(classifier))]
    return ", ".join(classes) or (licences.get("License") or "").partition("\n")[0]


def main() -> None:
    shipped, lock = required_versions([*project()["agent"], *project()["hub"]]), locked()
    for name, by in sorted(shipped.items()):
        sys.stdout.write(f"{name:24} {lock.get(name, '-'):12} {licence(name):48} {by}\n")
    sys.stdout.write(f"{len(shipped)} packages are shipped; {len(lock)} are locked, tests included\n")


if __name__ == "__main__":
    main()
