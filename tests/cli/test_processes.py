"""Long-running commands raise their limit of open files: a hub has connections to every node."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from watchkeeper.cli import processes
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
processes.raise_open_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "(512, 512)\n"
