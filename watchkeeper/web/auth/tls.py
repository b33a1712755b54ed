"""TLS for the hub: its certificate, whose clients it speaks to, and both anew when their files change.

`server.serve` takes the context and calls `refresh` every few seconds. Each handshake gets the newest files that could
be used; connections that are open stay as they are. Files that cannot be used are said in the log once, and the
earlier ones hold.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from watchkeeper.config import settings
from watchkeeper.errors import StartRefused
from watchkeeper.kit import files, logs

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0


class Certificates:
    """`client_ca` is who vouches for clients; with it, nobody without a certificate gets as far as a request."""

    def __init__(self, certificate: Path, key: Path | None = None, *, client_ca: Path | None = None) -> None:
        self._files = (certificate, key, client_ca)
        self._seen = self._state()
        self._newest = self._made()
        self.context = self._made()
        # OpenSSL takes the certificate and the trusted authorities from the context that is set here.
        self.context.sni_callback = self._choose

    def _choose(self, wire: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002
        wire.context = self._newest

    def refresh(self) -> bool:
        """Read the files again if they have changed; True if what they hold is in use now."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self._newest = self._made()
        except StartRefused as error:
            log.error("A changed certificate cannot be used; the earlier one holds", extra=logs.fields(error=error))
            return False
        log.info("The certificate was read again")
        return True

    def _state(self) -> tuple[files.FileStamp | None, ...]:
        return tuple(files.read_stamp(path) for path in self._files if path is not None)

    def _made(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certificate, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            problem = getattr(error, "reason", None) or error.strerror or str(error)
            raise StartRefused(
                f"the certificate, its key or the clients' authority cannot be used: {problem}",
                where=", ".join(str(path) for path in self._files if path is not None),
                remedy="Each is a PEM file that this user may read, and the key belongs to the certificate",
            ) from error
        return context


def from_settings(chosen: settings.HubSettings) -> Certificates | None:
    if chosen.tls_cert_file is None:
        return None
    key = Path(chosen.tls_key_file) if chosen.tls_key_file else None
    client_ca = Path(chosen.tls_client_ca_file) if chosen.tls_client_ca_file else None
    return Certificates(Path(chosen.tls_cert_file), key, client_ca=client_ca)
