"""Messages through Apprise to services that are really there: a mail server, and a web server that reads JSON."""

from __future__ import annotations

import socketserver
from pathlib import Path

import pytest

from tests.support.webhooks import Web, running
from watchkeeper.errors import ReceiverError
from watchkeeper.notify.message import Message
from watchkeeper.notify.receivers import AppriseSender, WebhookSender
from watchkeeper.notify.routing import Receiver

# Apprise imports modules that Python 3.13 will no longer have.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MESSAGE = Message("k1", "[CRITICAL] GPU 3 on n1 fell off the bus (INC-1)", "Why: Xid 79\nNext: Drain n1", {})


class Post(socketserver.StreamRequestHandler):
    """As much of RFC 5321 as a client needs to hand over one letter."""

    def handle(self) -> None:
        self.wfile.write(b"220 mail.example\r\n")
        letters, letter = self.server.letters, None  # type: ignore[attr-defined]
        for line in self.rfile:
            if letter is not None:
                letter.append(line.decode())
                if line == b".\r\n":
                    letters.append("".join(letter))
                    letter = None
                    self.wfile.write(b"250 kept\r\n")
            elif line.upper().startswith(b"DATA"):
                letter = []
                self.wfile.write(b"354 send the text\r\n")
            elif line.upper().startswith(b"QUIT"):
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 mail.example\r\n")


def service(folder: Path, *addresses: str) -> AppriseSender:
    (folder / "secret").write_text("\n".join(addresses))
    return AppriseSender(Receiver("oncall", apprise_file=str(folder / "secret")))


@pytest.mark.slow
def test_a_mail_server_gets_the_message_as_a_mail(tmp_path: Path) -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post)
    server.letters = []  # type: ignore[attr-defined]
    with running(server) as port:
        address = f"mailto://127.0.0.1:{port}?from=watch@example.com&to=ada@example.com&mode=insecure&format=text"
        assert service(tmp_path, address).send(MESSAGE) == "accepted"
    (letter,) = server.letters  # type: ignore[attr-defined]
    assert "Subject: [CRITICAL] GPU 3 on n1 fell off the bus (INC-1)" in letter
    assert "To: ada@example.com" in letter


@pytest.mark.slow
def test_a_web_service_gets_title_and_text(tmp_path: Path) -> None:
    web = Web()
    with running(web) as port:
        assert service(tmp_path, f"json://127.0.0.1:{port}/").send(MESSAGE) == "accepted"
    (request,) = web.got
    assert (request["title"], request["message"]) == (MESSAGE.title, MESSAGE.body)


@pytest.mark.slow
def test_of_two_addresses_only_the_failed_one_is_retried(tmp_path: Path) -> None:
    good, bad = Web(), Web(500)
    with running(good) as good_port, running(bad) as bad_port:
        both = service(tmp_path, f"json://127.0.0.1:{good_port}/", f"json://127.0.0.1:{bad_port}/")
        with pytest.raises(ReceiverError) as refused:
            both.send(MESSAGE)
        assert refused.value.may_retry
        assert both.send(MESSAGE) == "accepted by 2 addresses"
    assert (len(good.got), len(bad.got)) == (1, 1)


def test_an_unsupported_address_is_reported_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ReceiverError, match="an address that Apprise does not support") as refused:
        service(tmp_path, "nonsense://token-that-is-secret").send(MESSAGE)
    assert "token-that-is-secret" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(("status", "may_retry"), [(500, True), (429, True), (301, True), (404, False), (422, False)])
def test_a_webhook_error_says_whether_a_retry_may_help(status: int, may_retry: bool) -> None:
    with running(Web(status)) as port, pytest.raises(ReceiverError) as refused:
        WebhookSender(Receiver("hook", webhook=f"http://127.0.0.1:{port}/")).send(MESSAGE)
    assert refused.value.may_retry is may_retry
