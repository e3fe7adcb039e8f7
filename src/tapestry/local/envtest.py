"""Programs that look like kube-apiserver and etcd to controller-runtime's envtest, and start our API server.

`assets` fills a folder that KUBEBUILDER_ASSETS can name.  The one called etcd keeps nothing: it is there to be healthy,
and lends the folder that it was given to the other, which keeps its objects there.  So they outlive a kube-apiserver
that is started again, and go with the folder, as they would with etcd.
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

from tapestry.apiserver.config import ApiServerConfig, Tls

PROGRAMS = ("etcd", "kube-apiserver")
MODULE = "tapestry.cli.envtest"
"""What the programs run."""
FOLDER_PATH = "/tapestry/folder"
"""Where the etcd that is none tells its folder."""
HEALTH_PATHS = ("/health", "/livez", "/readyz")

SUPPORTED_FLAGS = (
    *("etcd-servers", "cert-dir", "bind-address", "secure-port", "client-ca-file", "token-auth-file"),
    *("authorization-mode", "service-account-issuer", "service-account-signing-key-file", "disable-admission-plugins"),
)
IGNORED_FLAGS = ("advertise-address", "allow-privileged", "service-cluster-ip-range", "service-account-key-file")
"""Flags that change nothing here; tokens are known by the key that signs them."""


def write_assets(folder: Path, kubectl: Path | None) -> list[Path]:
    """Write the programs into `folder`, and a link to `kubectl`; programs of an earlier time are replaced.

    Raises FileExistsError where there are others of these names: a real Kubernetes is not overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder / name for name in (*PROGRAMS, "kubectl")):
        if each.exists() and not is_ours(each):
            raise FileExistsError(f"{each}: there is another program of that name; choose a folder of its own")
    made = [write_program(folder, name) for name in PROGRAMS]
    if kubectl is not None:
        link = folder / "kubectl"
        link.unlink(missing_ok=True)
        link.symlink_to(kubectl)
        made.append(link)
    return made


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
    """The flags of a command line, and those among them that nobody understands."""

    values: Mapping[str, str]
    unknown: tuple[str, ...]

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name) or default


def parse_flags(arguments: Iterable[str], known: Sequence[str]) -> Flags:
    """`--name=value`, `--name value`, and `--name` alone, which is true."""
    values: dict[str, str] = {}
    waiting = ""
    for each in arguments:
        if waiting and not each.startswith("-"):
            values[waiting], waiting = each, ""
            continue
        name, equals, value = each.lstrip("-").partition("=")
        values[name] = value if equals else "true"
        waiting = "" if equals else name
    return Flags(values, tuple(name for name in values if name not in known))


def server_config(flags: Flags, folder: Path) -> ApiServerConfig:
    """What our server is to be, for a kube-apiserver with these flags; its objects and keys are in `folder`."""
    host, port = flags.get("bind-address", "127.0.0.1"), flags.get("secure-port", "6443")
    certificate = Path(flags.get("cert-dir", ".")) / "apiserver.crt"
    given = "cert-dir" in flags.values and certificate.exists()
    modes = flags.get("authorization-mode", "AlwaysAllow").split(",")
    return ApiServerConfig(
        file_rootpath=str(folder),
        secure_address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        token_auth_file=flags.get("token-auth-file"),
        authorization="RBAC" if "RBAC" in modes else "AlwaysAllow",
        pod_accounts="ServiceAccount" not in flags.get("disable-admission-plugins").split(","),
        service_account_issuer=flags.get("service-account-issuer", ApiServerConfig().service_account_issuer),
        service_account_signing_key_file=flags.get("service-account-signing-key-file"),
        # As beside a real kube-apiserver in these tests: nobody collects garbage, nobody empties namespaces.
        controllers=["none"],
        tls=Tls(
            certificate=str(certificate) if given else "",
            key=str(certificate.with_suffix(".key")) if given else "",
            client_ca=flags.get("client-ca-file"),
        ),
    )


def data_folder(etcd: str) -> Path:
    """The folder that an etcd of ours lends; a new one where it is another's, or none."""
    try:
        with urllib.request.urlopen(f"{etcd.split(',')[0].rstrip('/')}{FOLDER_PATH}", timeout=5) as answer:
            return Path(answer.read().decode()) / "tapestry"
    except (URLError, OSError, ValueError):
        return Path(tempfile.mkdtemp(prefix="tapestry-envtest-"))


# -- etcd


class HealthHandler(http.server.BaseHTTPRequestHandler):
    """Answers as a healthy etcd does."""

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
        """Health is asked for several times a second; nobody wants to read that."""


def health_server(flags: Flags) -> http.server.HTTPServer:
    """An etcd that is healthy at its client URL, and nothing else."""
    where = urlsplit(flags.get("listen-client-urls", "http://127.0.0.1:2379").split(",")[0])
    folder = Path(flags.get("data-dir", "default.etcd")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    handler = type("HealthHere", (HealthHandler,), {"folder": str(folder)})
    port = 2379 if where.port is None else where.port
    return http.server.ThreadingHTTPServer((where.hostname or "127.0.0.1", port), handler)
