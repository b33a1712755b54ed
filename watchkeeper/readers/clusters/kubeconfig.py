"""How to reach a Kubernetes API server: from inside a pod, or by a kubeconfig file.

The hub asks once, at its start; `collect/kubernetes_watch` and `remediate/drivers/kubernetes` use the answer for every
request. Token files are read at each use, because the kubelet renews them every hour. Programs that a kubeconfig wants
to run for a token are refused: the hub starts no program of somebody else's choice.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import CollectError, SettingsError, quote
from watchkeeper.kit import yaml_text
from watchkeeper.net import access

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFUSED_REMEDY = "Use a service account as docs/howto/kubernetes.md shows, with its token in the kubeconfig"


@dataclass(frozen=True, slots=True)
class InlineAccess(access.Access):
    """Access with certificates that stand in the kubeconfig itself."""

    ca_pem: str = ""
    cert_pem: str = field(default="", repr=False)
    key_pem: str = field(default="", repr=False)

    def tls_context(self) -> ssl.SSLContext:
        try:
            # super() without arguments does not know a class that slots=True has made anew.
            context = ssl.create_default_context(cadata=self.ca_pem) if self.ca_pem else access.Access.tls_context(self)
            if self.ca_pem and self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file or None)
            if self.cert_pem:
                _load_pair(context, self.cert_pem, self.key_pem)
        except (OSError, ssl.SSLError) as error:
            raise CollectError(f"a certificate of the kubeconfig cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is and how to be let in. `origin` is the file or place that said so."""

    url: str
    access: access.Access
    origin: str


def load_in_cluster(account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> ApiServer:
    """The API server of the cluster that this process runs in; SettingsError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = account / "token"
    if not host or not token.is_file():
        raise SettingsError(
            "this process runs in no pod with a service account",
            where="fleet.kubernetes",
            remedy="Set fleet.kubeconfig to a file, or let the pod mount its token",
        )
    shown = f"[{host}]" if ":" in host else host
    ca = account / "ca.crt"
    let_in = access.Access(credentials_file=str(token), ca_file=str(ca) if ca.is_file() else "")
    return ApiServer(f"https://{shown}:{port}", let_in, "in-cluster")


def load_kubeconfig(path: Path, context: str | None = None) -> ApiServer:
    """The API server that a kubeconfig's context names; SettingsError says what is missing in the file."""
    try:
        found = yaml_text.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the kubeconfig cannot be read: {error.strerror}", where=str(path)) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"not YAML: {error}", where=str(path)) from error
    file = _Kubeconfig(path, found if isinstance(found, dict) else {})
    chosen = context or file.text(file.content, "current-context")
    if not chosen:
        raise file.wrong("has no current-context", "Name one with fleet.kubernetes_context")
    return file.server(chosen)


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    path: Path
    content: Mapping[str, Any]

    def server(self, context: str) -> ApiServer:
        names = self._named("contexts", context, "context")
        cluster = self._named("clusters", self.text(names, "cluster"), "cluster")
        user_name = self.text(names, "user")
        user = self._named("users", user_name, "user") if user_name else {}
        url = self.text(cluster, "server")
        if not url.startswith(("https://", "http://")):
            raise self.wrong(f"context {quote(context)} has no server address", "Write `server: https://…` there")
        return ApiServer(url.rstrip("/"), self._access(cluster, user), f"{self.path}, context {context}")

    def _access(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> InlineAccess:
        for unknown in ("exec", "auth-provider"):
            if unknown in user:
                raise self.wrong(
                    f"wants a program to be run for a token (`{unknown}`), which the hub does not", REFUSED_REMEDY
                )
        return InlineAccess(
            username=self.text(user, "username"),
            password=self.text(user, "password"),
            credentials=self.text(user, "token"),
            credentials_file=self._file(user, "tokenFile"),
            ca_file=self._file(cluster, "certificate-authority"),
            cert_file=self._file(user, "client-certificate"),
            key_file=self._file(user, "client-key"),
            server_name=self.text(cluster, "tls-server-name"),
            insecure_skip_verify=cluster.get("insecure-skip-tls-verify") is True,
            ca_pem=self._inline(cluster, "certificate-authority-data"),
            cert_pem=self._inline(user, "client-certificate-data"),
            key_pem=self._inline(user, "client-key-data"),
        )

    def _named(self, group: str, name: str, inner: str) -> Mapping[str, Any]:
        entries = self.content.get(group)
        listed = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
        for one in listed:
            if one.get("name") == name:
                found = one.get(inner)
                return found if isinstance(found, dict) else {}
        known = ", ".join(str(one.get("name")) for one in listed) or "none"
        raise self.wrong(f"has no {inner} {quote(name)}", f"It has: {known}")

    def _file(self, found: Mapping[str, Any], key: str) -> str:
        """Paths of a kubeconfig count from its own directory."""
        named = self.text(found, key)
        return str(self.path.parent / named) if named else ""

    def _inline(self, found: Mapping[str, Any], key: str) -> str:
        text = self.text(found, key)
        try:
            return base64.b64decode(text, validate=True).decode("ascii")
        except ValueError as error:
            raise self.wrong(f"`{key}` is not base64 of a certificate", "Write it anew") from error

    def text(self, found: Mapping[str, Any], key: str) -> str:
        value = found.get(key)
        return value if isinstance(value, str) else ""

    def wrong(self, problem: str, remedy: str) -> SettingsError:
        return SettingsError(problem, where=str(self.path), remedy=remedy)


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """OpenSSL reads a client's certificate from files only; these are ours alone and live for the moment."""
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as kept:
        kept.write(f"{certificate}\n{key}\n")
        kept.flush()
        context.load_cert_chain(kept.name)
