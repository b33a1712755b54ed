"""Checks of setting values beyond their type: each raises ValueError with the problem and an example of a valid value.

`settings` lists the check of each field; `loading` puts the file and the key before the message.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from watchkeeper.kit import durations


def positive_duration(text: str) -> None:
    if durations.parse_ms(text) == 0:
        raise ValueError(f"`{text}` must be longer than 0s")


def at_least_one_minute(text: str) -> None:
    if durations.parse_ms(text) < 60_000:
        raise ValueError(f"`{text}` is below the minimum, 1m")


def port_number(number: int) -> None:
    if not 0 <= number <= 65535:
        raise ValueError(f"{number} is not a port; use 1 to 65535, or 0 for any free port")


def at_least_one(number: int) -> None:
    if number < 1:
        raise ValueError(f"{number} is below the minimum, 1")


def percentage(number: int) -> None:
    if not 0 <= number <= 100:
        raise ValueError(f"{number} is not a percentage from 0 to 100")


def not_empty(text: str) -> None:
    if not text:
        raise ValueError("must not be empty")


def network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"`{text}` is not an address or network such as 10.0.0.5 or 10.1.0.0/16") from error


def valid_headers(lines: tuple[str, ...]) -> None:
    for line in lines:
        name, colon, _ = line.partition(":")
        if not colon or not name.strip() or not line.isprintable() or not line.isascii():
            raise ValueError("an item of `headers` is not `Name: value`")
        if name.strip().lower() in ("authorization", "cookie"):
            raise ValueError(f"{name.strip()} in `headers` is a secret; put it in `headers_file`")


def http_address(key: str, url: str | None) -> None:
    """Refuse a text that is not an HTTP URL, and credentials, which every message about the URL would show."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError(f"`{key}` is not an http or https URL such as http://prometheus:9090")
    if parts.username or parts.password:
        raise ValueError(f"`{key}` contains credentials; use `username` and `password_file`")


def not_negative(number: float) -> None:
    if number < 0:
        raise ValueError(f"{number:g} is below the minimum, 0")
