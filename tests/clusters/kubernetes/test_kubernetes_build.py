"""scripts/kubernetes on a machine that cannot build, and on one that has built already."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.clusters import kubernetes_server
from tests.support.paths import ROOT


def run(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """In an empty cache, with no program but `id`, which says that nobody is root."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "bin" / "id").chmod(0o755)
    environment = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["/bin/sh", str(ROOT / "scripts" / "kubernetes")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_go_the_line_that_gets_it_is_said(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith("sudo apt-get install -y golang-go dpkg-dev make rsync")


def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    built = tmp_path / "cache" / "watchkeeper" / "kubernetes" / "bin"
    built.mkdir(parents=True)
    for name in kubernetes_server.PROGRAMS:
        (built / name).touch(0o755)
    assert run(tmp_path).stdout.strip() == str(built)
