"""Packages that are used where they are and asked for nowhere else: frameworks, trackers, OpenTelemetry.

They are imported by name inside functions, so that importing Watchkeeper never imports one of them.
"""

from __future__ import annotations

import importlib
from typing import Any


class PackageMissing(RuntimeError):
    """Something was asked for whose package is not installed; the text says how to get it."""


def need(*names: str, package: str) -> Any:
    """The first of these modules that can be imported."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problem = error
    raise PackageMissing(f"{package} is not installed here (pip install {package}): {problem}") from problem


def find(name: str) -> Any | None:
    """The module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
