"""The tree works on any machine: no paths of one desk, no hosts of one network, no package without its hash."""

from __future__ import annotations

import contextlib
import re
import tomllib

from tests.house.tree import files
from tests.support.paths import ROOT

# Written in two halves, so that this file does not find itself.
MACHINE_PATHS = tuple("/" + path for path in ("work/", "root/", "home/", "Users/", "opt/wheels", "opt/pypi"))
REGISTRIES = tuple(
    name + end for name, end in [("pypi", ".org"), ("pythonhosted", ".org"), ("npmjs", ".org"), ("npmjs", ".com")]
)
DEPENDENCY = re.compile(r"^[A-Za-z0-9_.-]+")


def test_no_file_names_a_machine_or_a_registry() -> None:
    problems = []
    for path in files():
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text()
            problems += [f"{path}: {word}" for word in (*MACHINE_PATHS, *REGISTRIES) if word in text]
    assert not problems


def locked() -> dict[str, str]:
    """Each package of the lock with its block of hashes."""
    blocks = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    return {block.partition("==")[0]: block for block in blocks if block}


def test_every_dependency_is_locked_with_its_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = {
        match[0].lower().replace("_", "-")
        for text in [*project["dependencies"], *extras["hub"], *extras["dev"]]
        if (match := DEPENDENCY.match(text))
    }
    assert requirements <= set(locked()), "run `make lock`"
    assert not [name for name, block in locked().items() if "--hash=sha256:" not in block]
