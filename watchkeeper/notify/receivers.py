"""Handing one message to one receiver: a plain webhook, or any service that Apprise knows.

Both block and are called in a thread of their own by `delivery`; both have time limits. ReceiverError says whether
another try may help. Addresses with secrets in them come from files and appear in no message.
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

# The request was wrong and will be wrong again; anything else may be a bad hour of the receiver.
FINAL = frozenset({400, 404, 405, 410, 413, 415, 422})


class Sender(Protocol):
    def send(self, message: Message) -> str:
        """Hand it over and return what the receiver answered; ReceiverError if it did not take it."""
        ...


class WebhookSender:
    """POST of the message as JSON. A repetition after a crash carries the same `Idempotency-Key`."""

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
        # A redirect is not followed: the message would go where nobody configured it to go.
        if not 200 <= status < 300:
            raise ReceiverError(
                f"answered {status}: {answer}", where=self._receiver.name, may_retry=status not in FINAL
            )
        return f"answered {status}"


class AppriseSender:
    """Slack, PagerDuty, Opsgenie, Teams, e-mail and the rest, through Apprise."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        # Of the message that is being tried: the addresses that have taken it are not asked again.
        self._key = ""
        self._done: set[str] = set()

    def send(self, message: Message) -> str:
        addresses = _read(self._receiver.apprise_file or "").split()
        if not addresses:
            raise ReceiverError("names no address", where=self._receiver.name, may_retry=True)
        if message.key != self._key:
            self._key, self._done = message.key, set()
        problems = []
        for address in addresses:
            if address not in self._done:
                problem = self._tell(address, message)
                problems += [problem] if problem else []
                self._done |= set() if problem else {address}
        if problems:
            raise ReceiverError(problems[0], where=self._receiver.name, may_retry=True)
        return "taken" if len(addresses) == 1 else f"taken by {len(addresses)} addresses"

    def _tell(self, address: str, message: Message) -> str:
        """What went wrong, or an empty text. An address that is wrong today may be mended in its file tomorrow."""
        import apprise

        service = apprise.Apprise()
        with apprise.LogCapture(level=logging.WARNING) as said:  # type: ignore[no-untyped-call]
            if not service.add(address):
                return "holds an address that Apprise does not know"
            is_taken = service.notify(title=message.title, body=message.body)
            problem = said.getvalue().strip().splitlines()
        return "" if is_taken else (problem[-1][:ANSWER_BYTES] if problem else "the service did not take it")


# The key of a receiver that says how messages reach it, and what sends them there.
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
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ReceiverError(f"its secret cannot be read: {what}", where=path, may_retry=True) from error
