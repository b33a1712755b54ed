"""Limits of DCGM's policies that a person set on this node, as with `dcgmi policy --set`.

`watchkeeper agent policy` writes them to a small file in the agent's directory; the agent applies them within seconds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.agent.gpus import policies
from watchkeeper.errors import CollectError
from watchkeeper.kit import files, logs

log = logging.getLogger(__name__)

FILE = "policy_limits.json"
MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """The file; the permissions of the agent's directory decide who may write it."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / FILE

    def read(self) -> Mapping[str, float | None]:
        """The limits by policy, None: the policy is off; CollectError if the file is invalid."""
        try:
            with self.path.open("rb") as file:
                limits = json.loads(file.read(MAX_FILE_BYTES))
            limits = {name: None if limit is None else float(limit) for name, limit in limits.items()}
            _apply(limits)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        except (ValueError, TypeError, AttributeError) as error:
            remedy = "Run `watchkeeper agent policy reset`"
            raise CollectError(f"has no valid limits: {error}", where=str(self.path), remedy=remedy) from error
        return limits

    def write(self, limits: Mapping[str, float | None]) -> None:
        """Replace all limits; ValueError if one is unknown or impossible."""
        _apply(limits)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            files.write_atomically(self.path, json.dumps(limits, sort_keys=True).encode())
            # Root's umask must not hide the limits from an agent that runs as another user.
            self.path.chmod(0o644)
        except OSError as error:
            remedy = "Run as root or as the agent's user, and set --spool to the agent's directory"
            raise CollectError(f"cannot be written: {error.strerror}", where=str(self.path), remedy=remedy) from error

    def policies(self) -> tuple[policies.DcgmPolicy, ...]:
        return _apply(self.read())


class PolicyLimitsWatch:
    """Reads the file again when it changed; an invalid file changes no limit."""

    def __init__(self, limits: PolicyLimits) -> None:
        self._limits = limits
        self._version: tuple[int, ...] | None = ()

    def read_changes(self) -> tuple[policies.DcgmPolicy, ...] | None:
        """The policies if their limits changed since the last call, else None."""
        try:
            status = self._limits.path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            version = None
        if version == self._version:
            return None
        self._version = version
        try:
            changed = self._limits.policies()
        except CollectError as error:
            log.warning("policy limits unreadable", extra=logs.fields(error=error))
            return None
        if limits := self._limits.read():
            log.info("policy limits set", extra=logs.fields(limits=json.dumps(limits)))
        return changed


def _apply(limits: Mapping[str, float | None]) -> tuple[policies.DcgmPolicy, ...]:
    """The shipped policies with these limits, without those that are off."""
    shipped = {policy.name: policy for policy in policies.load_policies()}
    if unknown := sorted(limits.keys() - shipped.keys()):
        raise ValueError(f"no policy {', '.join(unknown)[:80]}; use one of {', '.join(shipped)}")
    for name, limit in limits.items():
        if limit is None and shipped[name].settable is None:
            raise ValueError(f"{name} cannot be off: the kernel log and NVML report each event anyway")
        shipped[name] = shipped[name] if limit is None else shipped[name].with_limit(limit)
    return tuple(policy for name, policy in shipped.items() if name not in limits or limits[name] is not None)
