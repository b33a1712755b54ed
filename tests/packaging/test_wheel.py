"""What people install: a wheel that works with nothing but the agent's dependencies, and says what else it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from bench import wheel as sizes
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
# The base install (pyproject.toml `dependencies`), by the names under which it lies in site-packages.
BASE = ("click", "h2", "hpack", "hyperframe", "pynvml.py")
# Watched, so that a font or a data set does not slip in: the wheel of November 2026 has 1.6 MB.
MOST_WHEEL_BYTES = 4_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "watchkeeper" / "web" / "static" / "index.html").is_file():
        pytest.skip("the console is not built, and building it needs the network; `make install` builds it")
    return sizes.build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `watchkeeper` of a fresh environment with the base dependencies alone, as `pipx install` makes one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*map(str, pip), str(built)], check=True, capture_output=True)
    there = next((folder / "lib").glob("python*")) / "site-packages"
    for name in BASE:
        (there / name).symlink_to(Path(sysconfig.get_paths()["purelib"]) / name)
    return folder / "bin" / "watchkeeper"


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env=clean)


def test_the_wheel_has_the_console_the_packs_and_no_test(built: Path) -> None:
    with zipfile.ZipFile(built) as wheel:
        names = wheel.namelist()
    for wanted in (
        "web/static/index.html",
        "packs/xid.csv",
        "packs/dashboards/fleet.yaml",
        "packs/operator/install.sh",
    ):
        assert f"watchkeeper/{wanted}" in names
    assert not [name for name in names if not name.startswith(("watchkeeper/", "watchkeeper-"))]
    assert built.stat().st_size < MOST_WHEEL_BYTES


def test_the_sdist_has_what_a_build_needs_and_nothing_of_this_machine(tmp_path: Path) -> None:
    with tarfile.open(sizes.build("sdist", tmp_path)) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "console/package-lock.json",
        "watchkeeper/agent/agent.py",
    } <= inside
    assert not [name for name in inside if name.startswith((".venv", "console/node_modules", ".git/"))]


def test_help_and_the_agent_need_no_extra(installed: Path) -> None:
    for words in (("--help",), ("agent", "--help"), ("--version",), ("scan", "--help"), ("gpus", "--help")):
        done = run(installed, *words)
        assert done.returncode == 0, done.stderr
        assert "watchkeeper" in done.stdout


@pytest.mark.parametrize(
    "words", [("hub",), ("up",), ("rules", "check", str(ROOT / "pyproject.toml")), ("render", "kubernetes", "x")]
)
def test_a_command_of_the_hub_says_which_extra_is_missing(installed: Path, words: tuple[str, ...]) -> None:
    done = run(installed, *words)
    assert done.returncode == 2
    assert "pip install 'watchkeeper[hub]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_runs_as_a_module_too(installed: Path) -> None:
    done = run(installed.with_name("python"), "-m", "watchkeeper", "--version")
    assert (done.returncode, done.stdout) == (0, run(installed, "--version").stdout)


def test_a_module_that_no_extra_brings_is_not_blamed_on_one(installed: Path) -> None:
    missing = "import sys; sys.modules['watchkeeper.agent.agent'] = None"
    code = f"{missing}; from watchkeeper.cli.main import main; main(['agent'])"
    done = run(installed.with_name("python"), "-c", code)
    assert "watchkeeper[hub]" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion(installed: Path, shell: str) -> None:
    script = run(installed, _WATCHKEEPER_COMPLETE=f"{shell}_source")
    assert script.returncode == 0
    assert f"_WATCHKEEPER_COMPLETE={shell}_complete" in script.stdout
    words = {"COMP_WORDS": "watchkeeper agent --host-r", "COMP_CWORD": "--host-r" if shell == "fish" else "2"}
    assert "--host-root" in run(installed, _WATCHKEEPER_COMPLETE=f"{shell}_complete", **words).stdout


def test_bash_completes_a_command_at_the_tab_key(installed: Path) -> None:
    """Sourced as docs/howto/install.md says, with the words as bash hands them to the function."""
    script = (
        f'eval "$(_WATCHKEEPER_COMPLETE=bash_source {installed})"\n'
        f"COMP_WORDS=({installed} sc) COMP_CWORD=1; _watchkeeper_completion {installed}\n"
        'printf "%s " "${COMPREPLY[@]}"\n'
    )
    assert run("bash", "-c", script).stdout.split() == ["scan"]


def test_completing_a_command_imports_none_of_them() -> None:
    code = (
        "import sys, click; from watchkeeper.cli import main\n"
        "found = main.watchkeeper.shell_complete(click.Context(main.watchkeeper), 'ag')\n"
        "print([item.value for item in found], 'watchkeeper.cli.node.agent' in sys.modules)"
    )
    assert run(sys.executable, "-c", code, PYTHONPATH=str(ROOT)).stdout == "['agent'] False\n"
