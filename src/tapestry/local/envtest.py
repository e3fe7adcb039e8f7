"""Programs named kube-apiserver and etcd that start our API server for controller-runtime's envtest.

`write_assets` fills a folder for KUBEBUILDER_ASSETS.  The etcd program stores nothing: it reports health and gives its
data folder to the other program.  So objects survive a restart of kube-apiserver and are deleted with the folder, as
with a real etcd.
"""

import http.server
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from tapestry.apiserver.core.config import ApiServerConfig, Tls

PROGRAMS = ("etcd", "kube-apiserver")
MODULE = "tapestry.cli.envtest"
"""Module that the programs run."""
FOLDER_PATH = "/tapestry/folder"
"""Path where the etcd program serves its data folder."""
HEALTH_PATHS = ("/health", "/livez", "/readyz")

SUPPORTED_FLAGS = (
    *("etcd-servers", "cert-dir", "bind-address", "secure-port", "client-ca-file", "token-auth-file"),
    *("authorization-mode", "service-account-issuer", "service-account-signing-key-file", "disable-admission-plugins"),
)
IGNORED_FLAGS = ("advertise-address", "allow-privileged", "service-cluster-ip-range", "service-account-key-file")
"""Flags without effect; tokens are verified with the signing key."""


def write_assets(folder: Path, kubectl: Path | None) -> list[Path]:
    """Write the programs and a link to `kubectl` into `folder`, replacing earlier ones.

    Raise FileExistsError instead of overwriting other programs of these names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder / name for name in (*PROGRAMS, "kubectl")):
        if each.exists() and not is_ours(each):
            raise FileExistsError(f"{each}: another program of this name exists; choose an empty folder")
    written = [write_program(folder, name) for name in PROGRAMS]
    if kubectl is not None:
        link = folder / "kubectl"
        link.unlink(missing_ok=True)
        link.symlink_to(kubectl)
        written.append(link)
    return written


def is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return path.is_symlink() or MODULE.encode() in file.read(4096)


def write_program(folder: Path, name: str) -> Path:
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {MODULE} {name} "$@"\n')
    path.chmod(0o755)
    return path


# -- kube-apiserver


@dataclass(frozen=True)
class Flags:
    """Parsed command line flags, with the names of unknown ones."""

    values: Mapping[str, str]
    unknown: tuple[str, ...]

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name) or default


def parse_flags(arguments: Iterable[str], known: Sequence[str]) -> Flags:
    """Parse `--name=value`, `--name value` and `--name`, which is true."""
    values: dict[str, str] = {}
    pending = ""
    for each in arguments:
        if pending and not each.startswith("-"):
            values[pending], pending = each, ""
            continue
        name, equals, value = each.lstrip("-").partition("=")
        values[name] = value if equals else "true"
        pending = "" if equals else name
    return Flags(values, tuple(name for name in values if name not in known))


def server_config(flags: Flags, folder: Path) -> ApiServerConfig:
    """Return our server's configuration for kube-apiserver flags; objects and keys are in `folder`."""
    host, port = flags.get("bind-address", "127.0.0.1"), flags.get("secure-port", "6443")
    certificate = Path(flags.get("cert-dir", ".")) / "apiserver.crt"
    has_certificate = "cert-dir" in flags.values and certificate.exists()
    modes = flags.get("authorization-mode", "AlwaysAllow").split(",")
    return ApiServerConfig(
        file_rootpath=str(folder),
        secure_address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        token_auth_file=flags.get("token-auth-file"),
        authorization="RBAC" if "RBAC" in modes else "AlwaysAllow",
        pod_accounts="ServiceAccount" not in flags.get("disable-admission-plugins").split(","),
        service_account_issuer=flags.get("service-account-issuer", ApiServerConfig().service_account_issuer),
        service_account_signing_key_file=flags.get("service-account-signing-key-file"),
        # As in envtest with a real kube-apiserver: no garbage collection, no namespace deletion.
        controllers=["none"],
        tls=Tls(
            certificate=str(certificate) if has_certificate else "",
            key=str(certificate.with_suffix(".key")) if has_certificate else "",
            client_ca=flags.get("client-ca-file"),
        ),
    )


def data_folder(etcd: str) -> Path:
    """Return the folder of our etcd program; a new one for any other etcd."""
    try:
        with urllib.request.urlopen(f"{etcd.split(',')[0].rstrip('/')}{FOLDER_PATH}", timeout=5) as response:
            return Path(response.read().decode()) / "tapestry"
    except (URLError, OSError, ValueError):
        return Path(tempfile.mkdtemp(prefix="tapestry-envtest-"))


# -- etcd


class HealthHandler(http.server.BaseHTTPRequestHandler):
    """Respond like a healthy etcd."""

    protocol_version = "HTTP/1.1"
    folder = ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in HEALTH_PATHS:
            self._answer(HTTPStatus.OK, b'{"health":"true","reason":""}')
        elif path == FOLDER_PATH:
            self._answer(HTTPStatus.OK, self.folder.encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"404 page not found\n")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Discard the log line; health is polled several times a second."""


def health_server(flags: Flags) -> http.server.HTTPServer:
    """Return an HTTP server that only reports health at etcd's client URL."""
    url = urlsplit(flags.get("listen-client-urls", "http://127.0.0.1:2379").split(",")[0])
    folder = Path(flags.get("data-dir", "default.etcd")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    handler = type("HealthHere", (HealthHandler,), {"folder": str(folder)})
    port = 2379 if url.port is None else url.port
    return http.server.ThreadingHTTPServer((url.hostname or "127.0.0.1", port), handler)
