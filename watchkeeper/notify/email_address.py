"""Read an Apprise address of e-mail: the server, the sender and the recipients that Apprise would use.

`render alertmanager` writes these as an `email_configs` entry. The password stays in the address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import formataddr
from typing import Any

SCHEME = re.compile(r"mailtos?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EmailAddress:
    """`mode` is Apprise's: `insecure`, `starttls`, or `ssl` for TLS from the first byte."""

    host: str
    port: int
    mode: str
    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    reply_to: tuple[str, ...] = ()
    user: str | None = None
    has_password: bool = False
    verifies_certificate: bool = True


def read_email_address(address: str) -> EmailAddress | None:
    """None if the address is not e-mail, is invalid, or encrypts its messages; Apprise reads all its notations."""
    if not SCHEME.match(address):
        return None
    try:
        import apprise
    except ImportError:
        return None
    service: Any = apprise.Apprise.instantiate(address)
    if service is None or getattr(service, "use_pgp", False) or not service.targets:
        return None
    name, sender = service.from_addr
    return EmailAddress(
        host=service.smtp_host,
        port=service.port,
        mode=str(service.secure_mode),
        sender=formataddr((name or "", sender)),
        to=tuple(formataddr((name or "", target)) for name, target in service.targets),
        cc=tuple(sorted(service.cc)),
        bcc=tuple(sorted(service.bcc)),
        reply_to=tuple(sorted(service.reply_to)),
        user=service.user or None,
        has_password=bool(service.password),
        verifies_certificate=bool(service.verify_certificate),
    )
