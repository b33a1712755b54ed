"""scripts/bootstrap on machines that lack something: the one line that fixes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

NOT_ROOT = "#!/bin/sh\necho 1000\n"
# Answers as Debian's Python 3.11 does without the package python3.11-venv.
PYTHON_WITHOUT_VENV = """#!/bin/sh
case "$*" in
  *ensurepip*) exit 1 ;;
  *print*) echo python3.11 ;;
esac
"""
OLD_PYTHON = '#!/bin/sh\ncase "$*" in --version) echo "Python 3.9.2" ;; *) exit 1 ;; esac\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A bare checkout with a bin folder of its own in front of everything else."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "bootstrap", tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    return tmp_path


def place(machine: Path, name: str, script: str) -> None:
    (machine / "bin" / name).write_text(script)
    (machine / "bin" / name).chmod(0o755)


def bootstrap(machine: Path, *parts: str, **environment: str) -> tuple[int, str]:
    ran = subprocess.run(
        ["/bin/sh", "scripts/bootstrap", *parts],
        cwd=machine,
        env={"PATH": f"{machine}/bin:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stderr


def test_a_python_without_venv_gets_the_line_that_fixes_it(machine: Path) -> None:
    place(machine, "id", NOT_ROOT)
    place(machine, "python3", PYTHON_WITHOUT_VENV)
    code, output = bootstrap(machine, "hub")
    assert code == 1
    assert output.strip().endswith("This fixes it: sudo apt-get install -y python3.11-venv")


def test_root_gets_what_is_missing_and_a_busy_mirror_is_asked_twice(machine: Path) -> None:
    place(machine, "id", "#!/bin/sh\necho 0\n")
    place(machine, "sleep", "#!/bin/sh\n")
    place(machine, "python3", PYTHON_WITHOUT_VENV)
    place(machine, "apt-get", '#!/bin/sh\necho "$*" >>calls\ncase "$*" in *install*) exit 100 ;; esac\n')
    code, output = bootstrap(machine, "hub")
    options = "-o DPkg::Lock::Timeout=300"
    install = f"-q -y {options} install --no-install-recommends python3.11-venv"
    assert (machine / "calls").read_text().splitlines() == [f"-q {options} update", install, install]
    assert code == 1
    assert "apt-get could not install python3.11-venv; its message is above" in output


def test_an_old_python_gets_the_line_that_fixes_it(machine: Path) -> None:
    place(machine, "id", NOT_ROOT)
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        place(machine, name, OLD_PYTHON)
    place(machine, "apt-cache", '#!/bin/sh\n[ "$2" = python3.12-venv ]\n')
    code, output = bootstrap(machine, "hub")
    assert code == 1
    assert "found Python 3.9.2, and Python 3.11 or newer is needed" in output
    assert output.strip().endswith("sudo apt-get install -y python3.12 python3.12-venv")


def test_a_distribution_without_a_new_python_is_told_which_have_one(machine: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        place(machine, name, OLD_PYTHON)
    place(machine, "id", NOT_ROOT)
    place(machine, "apt-cache", "#!/bin/sh\nexit 1\n")
    code, output = bootstrap(machine, "hub")
    assert code == 1
    assert "Debian 12, Ubuntu 24.04 and newer have it" in output


def test_a_chosen_python_that_is_too_old_is_refused_by_name(machine: Path) -> None:
    place(machine, "python3.9", OLD_PYTHON)
    code, output = bootstrap(machine, "hub", PYTHON="python3.9")
    assert code == 1
    assert "python3.9 is not Python 3.11 or newer" in output


@pytest.mark.parametrize("parts", [(), ("everything",)])
def test_an_unknown_part_is_answered_with_the_known_ones(machine: Path, parts: tuple[str, ...]) -> None:
    code, output = bootstrap(machine, *parts)
    assert code == 1
    assert "hub, dev, node, console, servers" in output


def test_the_packages_of_the_console_are_installed_once_for_each_lock(machine: Path) -> None:
    (machine / ".venv" / "bin").mkdir(parents=True)
    (machine / ".venv" / "bin" / "pip").write_text(f"#!{machine}/.venv/bin/python\n")
    (machine / "console").mkdir()
    (machine / "console" / "package.json").write_text("{}")
    (machine / "console" / "package-lock.json").write_text("{}")
    place(machine, "node", "#!/bin/sh\n")
    place(machine, "npm", '#!/bin/sh\necho "$1" >>../calls\nmkdir -p node_modules\n')
    shutil.copy(machine / "bin" / "node", machine / ".venv" / "bin" / "python")
    for _ in range(2):
        assert bootstrap(machine, "node")[0] == 0
    assert (machine / "calls").read_text() == "ci\n"
    (machine / "console" / "package-lock.json").write_text('{"packages": {}}')
    assert bootstrap(machine, "node")[0] == 0
    assert (machine / "calls").read_text() == "ci\nci\n"


def test_make_test_builds_no_server_from_source_and_ci_does() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ntest:")[2].partition("\n\n")[0]
    part = (ROOT / "scripts" / "bootstrap").read_text().partition("\npart_servers()")[2].partition("\n}")[0]
    assert "scripts/bootstrap" in recipe
    assert "scripts/render-tools" in part
    assert "kubernetes" not in recipe + part
    assert "make servers" in (ROOT / ".ci" / "run").read_text()
