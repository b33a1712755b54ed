"""Run the modules of Watchkeeper at their first use instead of at their import.

Running the hub's 400 modules first would delay its start: `watchkeeper hub` calls `enable` before it imports the hub,
`run_pending` while it waits anyway, and `finish` after its first answers, so that no module can fail later. Packages
and third-party modules run at import as usual.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PREFIX = "watchkeeper."
# One lock for each module that has not run, as in Python's import system: without import circles, no two threads wait
# for each other. A single lock would be acquired sometimes before and sometimes after Python's own locks.
_locks: dict[str, threading.RLock] = {}
_running: set[str] = set()


def enable() -> None:
    """Import modules of Watchkeeper lazily from now on."""
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())


def run_pending(*prefixes: str) -> Iterator[None]:
    """Run the imported modules with these prefixes that have not run; each step runs one module."""
    while pending := [
        module
        for name, module in list(sys.modules.items())
        if type(module) is _LazyModule and name.startswith(prefixes)
    ]:
        for module in pending:
            vars(module)
            yield


def finish() -> None:
    """Run all pending modules, and run modules at import from now on."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LazyFinder)]
    for _ in run_pending(PREFIX):
        pass


class _LazyFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


class _LazyLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        _locks[module.__spec__.name] = threading.RLock()
        module.__class__ = _LazyModule


class _LazyModule(ModuleType):
    """A module that has not run yet, or is running."""

    def __getattribute__(self, name: str) -> object:
        # An import statement reads `__spec__`; that alone is not a use of the module.
        if name != "__spec__":
            _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    lock = _locks.get(spec.name)
    if lock is None:
        return
    with lock:
        # Not pending: it has run meanwhile, or it is running and uses its own attributes.
        is_pending = type(module) is _LazyModule and spec.name not in _running
        if not is_pending:
            return
        _running.add(spec.name)
        try:
            spec.loader.exec_module(module)
            module.__class__ = ModuleType
            del _locks[spec.name]
        finally:
            _running.discard(spec.name)
