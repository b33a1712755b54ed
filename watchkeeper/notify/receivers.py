"""Send a message to a receiver: a plain webhook, or any service that Apprise supports.

Senders block, have time limits, and run in a separate thread of `delivery`. ReceiverError says whether a retry may
help. Addresses with secrets come from files and are never shown.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from watchkeeper import __version__
from watchkeeper.errors import ReceiverError
from watchkeeper.notify.message import Message
from watchkeeper.notify.receiver_http import ANSWER_BYTES, http_post
from watchkeeper.notify.routing import Receiver

# A retry cannot help with these; any other status may be temporary.
PERMANENT_STATUSES = frozenset({400, 404, 405, 410, 413, 415, 422})


class Sender(Protocol):
    def send(self, message: Message) -> str:
        """Send a message and return the receiver's answer; raise ReceiverError if it failed."""
        ...


class WebhookSender:
    """Posts messages as JSON; a retry has the same `Idempotency-Key`."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, message: Message) -> str:
        body = json.dumps(message.payload, ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"watchkeeper/{__version__}",
            "Idempotency-Key": hashlib.sha256(message.key.encode()).hexdigest()[:32],
        }
        if self._receiver.token_file is not None:
            headers["Authorization"] = f"Bearer {_read_secret(self._receiver.token_file)}"
        status, answer = http_post(self._receiver.webhook or "", body, headers)
        # Deliberately no redirects: the message would go to an address that is not configured.
        if not 200 <= status < 300:
            raise ReceiverError(
                f"answered {status}: {answer}", where=self._receiver.name, may_retry=status not in PERMANENT_STATUSES
            )
        return f"answered {status}"


class AppriseSender:
    """Sends messages through Apprise: Slack, PagerDuty, Opsgenie, Teams, e-mail and others."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        # Addresses that accepted the current message are not called again.
        self._key = ""
        self._accepted_addresses: set[str] = set()

    def send(self, message: Message) -> str:
        addresses = _read_secret(self._receiver.apprise_file or "").split()
        if not addresses:
            raise ReceiverError("the apprise_file contains no address", where=self._receiver.name, may_retry=True)
        if message.key != self._key:
            self._key, self._accepted_addresses = message.key, set()
        problems = []
        for address in addresses:
            if address not in self._accepted_addresses:
                if problem := self._notify(address, message):
                    problems.append(problem)
                else:
                    self._accepted_addresses.add(address)
        if problems:
            raise ReceiverError(problems[0], where=self._receiver.name, may_retry=True)
        return "accepted" if len(addresses) == 1 else f"accepted by {len(addresses)} addresses"

    def _notify(self, address: str, message: Message) -> str:
        """Return the error text, or an empty text; an invalid address is retried, because its file may be fixed."""
        import apprise

        service = apprise.Apprise()
        with apprise.LogCapture(level=logging.WARNING) as logged:  # type: ignore[no-untyped-call]
            if not service.add(address):
                return "the apprise_file contains an address that Apprise does not support"
            is_accepted = service.notify(title=message.title, body=message.body)
            problem = logged.getvalue().strip().splitlines()
        return "" if is_accepted else (problem[-1][:ANSWER_BYTES] if problem else "the service rejected the message")


# The transport keys of a receiver, and their senders.
SENDERS: dict[str, Callable[[Receiver], Sender]] = {
    "apprise_file": AppriseSender,
    "webhook": WebhookSender,
}


def make_sender(receiver: Receiver) -> Sender:
    return SENDERS[receiver.transports[0]](receiver)


def _read_secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ReceiverError(f"reading the secret failed: {problem}", where=path, may_retry=True) from error
