"""Load the hub's TLS certificate and the CA of its clients, and reload them when their files change.

Each handshake uses the newest valid files; open connections do not change. Invalid files are logged once, and the
previous certificate stays in use.
"""

from __future__ import annotations

import logging
import ssl
import stat
from pathlib import Path

from watchkeeper.config import settings
from watchkeeper.errors import StartRefused
from watchkeeper.kit import files, logs

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0


class Certificates:
    """The hub's TLS context; with `client_ca`, only clients with a certificate of this CA can connect."""

    def __init__(self, certificate: Path, key: Path | None = None, *, client_ca: Path | None = None) -> None:
        self._files = (certificate, key, client_ca)
        self._loaded_stamps = self._read_stamps()
        self._current = self._build_context()
        self.context = self._build_context()
        # OpenSSL uses the certificate and the trusted CAs of the context that the callback sets.
        self.context.sni_callback = self._use_current

    def _use_current(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002
        connection.context = self._current

    def refresh(self) -> bool:
        """Reload the files if they changed; True if a new certificate is in use now."""
        stamps = self._read_stamps()
        if stamps == self._loaded_stamps:
            return False
        self._loaded_stamps = stamps
        try:
            self._current = self._build_context()
        except StartRefused as error:
            log.error("certificate reload failed, the previous one stays in use", extra=logs.fields(error=error))
            return False
        log.info("certificate reloaded")
        return True

    def _read_stamps(self) -> tuple[files.FileStamp | None, ...]:
        return tuple(files.read_stamp(path) for path in self._files if path is not None)

    def _build_context(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        _refuse_exposed_key(certificate if key is None else key)
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
                f"loading the certificate, its key or the client CA failed: {problem}",
                where=", ".join(str(path) for path in self._files if path is not None),
                remedy="Check that each is a readable PEM file and that the key belongs to the certificate",
            ) from error
        return context


def _refuse_exposed_key(path: Path) -> None:
    """Refuse a private key that every user of this machine can read or replace."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # Loading it names the error.
        return
    if mode & stat.S_IRWXO:
        raise StartRefused(
            f"every user of this machine can access the private key (mode {stat.S_IMODE(mode):04o})",
            where=str(path),
            remedy=f"Run `chmod o= {path}`; for a Secret in Kubernetes, set `defaultMode: 0440`",
        )


def from_settings(hub_settings: settings.HubSettings) -> Certificates | None:
    if hub_settings.tls_cert_file is None:
        return None
    key = Path(hub_settings.tls_key_file) if hub_settings.tls_key_file else None
    client_ca = Path(hub_settings.tls_client_ca_file) if hub_settings.tls_client_ca_file else None
    return Certificates(Path(hub_settings.tls_cert_file), key, client_ca=client_ca)
