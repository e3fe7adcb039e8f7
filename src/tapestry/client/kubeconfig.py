"""The kubeconfig of whoever runs us, found and read as kubectl does.

Programs (`exec`) and files that it names are trusted: the kubeconfig is our own.  One that came from somebody else
goes through `strict_kubeconfig` instead.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import yaml

from tapestry.client.access import Access, Surroundings, access_in, usable, utc_now
from tapestry.client.credentials import Credentials, TokenFile
from tapestry.client.entries import Kubeconfig, kubeconfig_in, shown
from tapestry.client.errors import KubeconfigError, NoKubeconfig
from tapestry.client.plain_yaml import place_of
from tapestry.client.tls import Pem, Tls, Trust
from tapestry.client.urls import server_url

__all__ = ["Access", "KubeconfigError", "NoKubeconfig", "default_access", "in_cluster", "load", "paths_in"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load(
    paths: Sequence[Path],
    context: str | None = None,
    *,
    environ: Mapping[str, str],
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = utc_now,
) -> Access:
    """The access that kubeconfig files give: in their current context, or in the one named.

    The first file that has an entry, or a current context, wins.  Relative file names start at the file they stand in.
    Of several files the missing ones are skipped; a single one must exist.  `environ` is for the programs it names.
    """
    found = [read(content, path) for path in paths if (content := content_of(path)) is not None]
    if not found:
        raise KubeconfigError(f"{', '.join(map(str, paths))}: no such file; name a kubeconfig that exists")
    merged = Kubeconfig()
    for each in found:
        merged = merged.over(each)
    return access_in(merged, context, Surroundings(environ, monotonic, now))


def default_access(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str],
    home: Path,
    service_account: Path = SERVICE_ACCOUNT,
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = utc_now,
) -> Access:
    """The access of whoever runs us: the kubeconfig given, that of KUBECONFIG, ~/.kube/config, or that of our pod."""
    usual = home / ".kube" / "config"
    paths = [kubeconfig] if kubeconfig else paths_in(environ.get("KUBECONFIG", ""))
    if not paths and os.path.isfile(usual):
        paths = [usual]
    if paths:
        return load(paths, context, environ=environ, monotonic=monotonic, now=now)
    if context:
        raise KubeconfigError(f"context {shown(context)}: KUBECONFIG is not set and {usual} does not exist")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(service_account, environ=environ, monotonic=monotonic)
    raise NoKubeconfig(
        f"no kubeconfig: none was given, KUBECONFIG is not set, {usual} does not exist, and this is not a pod "
        "(KUBERNETES_SERVICE_HOST is not set); give a kubeconfig or set KUBECONFIG"
    )


def in_cluster(
    root: Path = SERVICE_ACCOUNT, *, environ: Mapping[str, str], monotonic: Callable[[], float] = time.monotonic
) -> Access:
    """The access of the pod we run in, by its service account; token and authority are followed as they rotate."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT: not set, so this is not a pod")
    token, namespace = root / "token", content_of(root / "namespace")
    if not os.path.isfile(token):
        raise KubeconfigError(f"{token}: no such file; does the pod have automountServiceAccountToken: false?")
    trust = Trust(Pem("service account", root / "ca.crt"))
    source = TokenFile(token, "service account", monotonic=monotonic)
    return usable(
        Access(
            server_url(f"https://{f'[{host}]' if ':' in host else host}:{port}", "KUBERNETES_SERVICE_HOST"),
            Credentials(source, Tls(trust, monotonic=monotonic)),
            namespace.decode().strip() if namespace else "default",
            trust,
        )
    )


def paths_in(value: str) -> list[Path]:
    """The files that a value of the variable KUBECONFIG names."""
    return [Path(path) for path in value.split(os.pathsep) if path]


def content_of(path: Path) -> bytes | None:
    """What stands in a file; None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeconfigError(f"{path}: {error.strerror}") from None


def read(content: bytes, path: Path) -> Kubeconfig:
    try:
        document = yaml.load(content, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise KubeconfigError(f"{path}: {place_of(error)}: not YAML") from None
    except (ValueError, ArithmeticError, RecursionError):  # dates and numbers that are none, nesting without end
        raise KubeconfigError(f"{path}: not YAML") from None
    return kubeconfig_in(document, origin=f"{path}: ", directory=path.absolute().parent)
