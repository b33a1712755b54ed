"""Modules that run when something of them is first used, not when they are named.

A hub has 400 modules, and its first answers need a part of them: the rest, most of it classes to be made, would keep
everybody waiting. `watchkeeper hub` says `begin` before it imports a hub, takes `steps` when it would wait, and says
`finish` when it has answered for a while, so that nothing is left to fail later. Packages, and what others wrote, run
at once as always.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PREFIX = "watchkeeper."
# One for each module that did not run yet, as Python has for imports: layers have no rings, so no two threads wait for
# one another. One lock for all would be taken now before, now after those of Python itself.
_locks: dict[str, threading.RLock] = {}
_begun: set[str] = set()


def begin() -> None:
    """From now on our modules are late."""
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())


def steps(*prefixes: str) -> Iterator[None]:
    """Run the modules with such names that were named and did not run yet, and what they name of these in turn.

    One at a time, each with what it needs at once: whoever has something else to do can do it in between.
    """
    while left := [
        one for name, one in list(sys.modules.items()) if type(one) is _LazyModule and name.startswith(prefixes)
    ]:
        for module in left:
            vars(module)
            yield


def finish() -> None:
    """Run all that did not run yet, and let modules that are imported from now on run at once."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _LazyFinder)]
    for _ in steps(PREFIX):
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
    """Makes the module, and leaves it to its first user to run it."""

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
    """A module that did not run yet, or that is running."""

    def __getattribute__(self, name: str) -> object:
        # An import statement asks for it, also where nothing else is asked for.
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
        # It has run meanwhile, or it runs and asks for something of itself.
        is_late = type(module) is _LazyModule and spec.name not in _begun
        if not is_late:
            return
        _begun.add(spec.name)
        try:
            spec.loader.exec_module(module)
            module.__class__ = ModuleType
            del _locks[spec.name]
        finally:
            _begun.discard(spec.name)
