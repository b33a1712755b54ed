"""Imports optional packages by name: frameworks, trackers, OpenTelemetry.

They are imported inside functions, so that importing Watchkeeper never imports one of them.
"""

from __future__ import annotations

import importlib
from typing import Any


class PackageMissing(RuntimeError):
    """A required package is not installed; the message says how to install it."""


def require(*names: str, package: str) -> Any:
    """Import the first of these modules that is installed."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problem = error
    raise PackageMissing(f"{package} is not installed (pip install {package}): {problem}") from problem


def find_module(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
