"""Every setting, once: its name, type, default, help and check.

`loading` fills these from the file and the command line; `hub.py` hands each section to the stage it
belongs to; docs/reference/settings.md is generated from them. Relative paths count from the directory
of the settings file, or from the working directory where there is no file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from watchkeeper.kit import durations
from watchkeeper.model import actions

Check = Callable[[Any], None]
"""Raises ValueError with what is wrong with a value that has the right type."""


def setting(default: Any, help: str, *, check: Check | None = None) -> Any:
    """A dataclass field with its sentence for people and the check its type cannot express."""
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def positive_duration(text: str) -> None:
    if durations.parse_ms(text) == 0:
        raise ValueError(f"`{text}` must be longer than 0s")


def port_number(number: int) -> None:
    if not 0 <= number <= 65535:
        raise ValueError(f"{number} is not a port; ports go from 1 to 65535, and 0 takes a free one")


def at_least_one(number: int) -> None:
    if number < 1:
        raise ValueError(f"{number} is below the smallest possible value, 1")


def not_empty(text: str) -> None:
    if not text:
        raise ValueError("must not be empty")


class QueryEngine(StrEnum):
    """Where samples live and who answers PromQL."""

    EMBEDDED = "embedded"


class RuleOwner(StrEnum):
    """Who evaluates the rules."""

    WATCHKEEPER = "watchkeeper"


class NotifyVia(StrEnum):
    """Who tells people."""

    CONSOLE = "console"


class DriverName(StrEnum):
    """Which cluster a plan is meant for."""

    DRY_RUN = "dry_run"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the hub listens and keeps what it knows."""

    host: str = setting("127.0.0.1", "address to listen on; anything but loopback needs `tokens`", check=not_empty)
    port: int = setting(9480, "port of console and API; 0 takes a free one", check=port_number)
    data: str = setting("data", "directory that this hub alone uses", check=not_empty)
    tokens: str | None = setting(None, "file of access tokens with their roles; none: loopback only, no sign-in")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is watched, and how often it is read."""

    cluster: str = setting("main", "name of the cluster where discovery does not give one", check=not_empty)
    sd_files: tuple[str, ...] = setting((), "Prometheus file_sd files with the targets")
    sd_urls: tuple[str, ...] = setting((), "Prometheus http_sd addresses with the targets")
    scrape_interval: str = setting("15s", "how often each target is read", check=positive_duration)
    scrape_timeout: str = setting("10s", "how long a target may take to answer", check=positive_duration)

    @property
    def scrape_interval_seconds(self) -> float:
        return durations.parse_seconds(self.scrape_interval)

    @property
    def scrape_timeout_seconds(self) -> float:
        """Never longer than the interval: a slow target must not overlap with its own next turn."""
        return min(durations.parse_seconds(self.scrape_timeout), self.scrape_interval_seconds)


@dataclass(frozen=True, slots=True)
class Query:
    """How samples are kept and asked for."""

    engine: QueryEngine = setting(QueryEngine.EMBEDDED, "who keeps samples and answers PromQL")
    retention: str = setting("2h", "how long samples are kept", check=positive_duration)
    max_series: int = setting(1_000_000, "series kept at once; more are refused and counted", check=at_least_one)

    @property
    def retention_seconds(self) -> float:
        return durations.parse_seconds(self.retention)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules run, and who runs them."""

    owner: RuleOwner = setting(RuleOwner.WATCHKEEPER, "who evaluates the rules")
    files: tuple[str, ...] = setting((), "Prometheus rule files; empty: the rules shipped with Watchkeeper")
    interval: str = setting("15s", "how often a group without an interval of its own runs", check=positive_duration)

    @property
    def interval_seconds(self) -> float:
        return durations.parse_seconds(self.interval)


@dataclass(frozen=True, slots=True)
class Notify:
    """How people hear of an incident."""

    via: NotifyVia = setting(NotifyVia.CONSOLE, "who tells people; the console shows incidents and sends nothing")


@dataclass(frozen=True, slots=True)
class Remediate:
    """How far Watchkeeper may go on its own."""

    mode: actions.Mode = setting(actions.Mode.OBSERVE, "trust ladder; observe never touches a machine")
    driver: DriverName = setting(DriverName.DRY_RUN, "the cluster that plans are made for")


@dataclass(frozen=True, slots=True)
class Journal:
    """Where events, incidents, plans and audit are kept."""

    path: str | None = setting(None, "SQLite file of the journal; none: `journal.sqlite` in `hub.data`")


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections of the file; an absent section has its defaults."""

    hub: Hub = dataclasses.field(default_factory=Hub)
    fleet: Fleet = dataclasses.field(default_factory=Fleet)
    query: Query = dataclasses.field(default_factory=Query)
    rules: Rules = dataclasses.field(default_factory=Rules)
    notify: Notify = dataclasses.field(default_factory=Notify)
    remediate: Remediate = dataclasses.field(default_factory=Remediate)
    journal: Journal = dataclasses.field(default_factory=Journal)

    @property
    def journal_path(self) -> Path:
        return Path(self.journal.path) if self.journal.path else Path(self.hub.data) / "journal.sqlite"
