"""Refuse requests that a page of another site makes a browser send to a server on loopback or behind a login."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from urllib.parse import urlsplit

from watchkeeper.net.addresses import is_loopback

# A browser sends these content types to another site only after a CORS preflight, which no server here grants.
PREFLIGHTED_TYPES = frozenset({"application/json", "application/x-protobuf"})


@functools.lru_cache(maxsize=16)
def is_loopback_host(host_header: str) -> bool:
    """Whether a Host header is a loopback name or address, with or without a port."""
    try:
        return is_loopback(urlsplit(f"//{host_header}").hostname or "")
    except ValueError:
        return False


def is_same_origin(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another site cannot have sent this request.

    A browser sends Sec-Fetch-Site or Origin. A program sends neither; it is accepted if it uses a JSON or protobuf body
    or a method other than POST, which a page of another site cannot send without a CORS preflight.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is not None:
        return origin != "null" and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return method != "POST" or headers.get("content-type", "").split(";")[0].strip() in PREFLIGHTED_TYPES


def is_from_foreign_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent this for a page of another site; programs send none of these headers."""
    return ("origin" in headers or "sec-fetch-site" in headers) and not is_same_origin("GET", headers)


def is_foreign_read(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another site sent this read; a person may type its address or follow a link to it."""
    is_link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    if headers.get("sec-fetch-site") == "none" or (is_link and method == "GET"):
        return False
    return is_from_foreign_page(headers)
