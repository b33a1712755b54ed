"""Sends one message to one receiver: a plain webhook, or any service that Apprise supports.

Both block, have time limits, and are called in a thread of their own by `delivery`. ReceiverError says whether a retry
may help. Addresses with secrets come from files and appear in no message.
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

# The request is wrong and stays wrong; any other status may be temporary.
FINAL = frozenset({400, 404, 405, 410, 413, 415, 422})


class Sender(Protocol):
    def send(self, message: Message) -> str:
        """Send it and return the receiver's answer; raise ReceiverError if it failed."""
        ...


class WebhookSender:
    """POST of the message as JSON. A retry has the same `Idempotency-Key`."""

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
            headers["Authorization"] = f"Bearer {_read(self._receiver.token_file)}"
        status, answer = http_post(self._receiver.webhook or "", body, headers)
        # Deliberately no redirects: the message would go to an address that is not configured.
        if not 200 <= status < 300:
            raise ReceiverError(
                f"answered {status}: {answer}", where=self._receiver.name, may_retry=status not in FINAL
            )
        return f"answered {status}"


class AppriseSender:
    """Slack, PagerDuty, Opsgenie, Teams, e-mail and the rest, through Apprise."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        # Of the current message: addresses that accepted it are not called again.
        self._key = ""
        self._done: set[str] = set()

    def send(self, message: Message) -> str:
        addresses = _read(self._receiver.apprise_file or "").split()
        if not addresses:
            raise ReceiverError("its apprise_file contains no address", where=self._receiver.name, may_retry=True)
        if message.key != self._key:
            self._key, self._done = message.key, set()
        problems = []
        for address in addresses:
            if address not in self._done:
                problem = self._notify(address, message)
                problems += [problem] if problem else []
                self._done |= set() if problem else {address}
        if problems:
            raise ReceiverError(problems[0], where=self._receiver.name, may_retry=True)
        return "accepted" if len(addresses) == 1 else f"accepted by {len(addresses)} addresses"

    def _notify(self, address: str, message: Message) -> str:
        """The error text, or an empty text. An invalid address may be fixed in its file later, so it is retried."""
        import apprise

        service = apprise.Apprise()
        with apprise.LogCapture(level=logging.WARNING) as logged:  # type: ignore[no-untyped-call]
            if not service.add(address):
                return "its apprise_file contains an address that Apprise does not support"
            is_taken = service.notify(title=message.title, body=message.body)
            problem = logged.getvalue().strip().splitlines()
        return "" if is_taken else (problem[-1][:ANSWER_BYTES] if problem else "the service rejected the message")


# The transport keys of a receiver, and their senders.
SENDERS: dict[str, Callable[[Receiver], Sender]] = {
    "apprise_file": AppriseSender,
    "webhook": WebhookSender,
}


def make_sender(receiver: Receiver) -> Sender:
    return SENDERS[receiver.transports[0]](receiver)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ReceiverError(f"cannot read its secret: {what}", where=path, may_retry=True) from error
