"""Loading of the current user's kubeconfig, with the same search order as kubectl.

Programs (`exec`) and files that it names are trusted.  Use `strict_kubeconfig` for others.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import yaml

from tapestry.client.access import (
    Access,
    CredentialEnvironment,
    access_from_kubeconfig,
    utc_now,
    with_loaded_certificates,
)
from tapestry.client.credentials import Credentials, TokenFile
from tapestry.client.errors import KubeconfigError, NoKubeconfig
from tapestry.client.kubeconfig_entries import Kubeconfig, parse_kubeconfig, quoted_name
from tapestry.client.strict_yaml import error_location
from tapestry.client.tls import Pem, ServerVerification, TlsContextSource
from tapestry.client.urls import server_url

__all__ = [
    "Access",
    "KubeconfigError",
    "NoKubeconfig",
    "default_access",
    "in_cluster_access",
    "kubeconfig_paths",
    "load_access",
]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_access(
    paths: Sequence[Path],
    context: str | None = None,
    *,
    environ: Mapping[str, str],
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = utc_now,
) -> Access:
    """Return the access that kubeconfig files give, in their current context or the named one.

    The first file with an entry, or with a current context, wins.  Relative paths start at the directory of their file.
    Missing files are skipped, but a single file must exist.  `environ` is passed to exec plugins.
    """
    documents = [parse_file(content, path) for path in paths if (content := read_if_exists(path)) is not None]
    if not documents:
        raise KubeconfigError(f"{', '.join(map(str, paths))}: no such file; name a kubeconfig that exists")
    merged = Kubeconfig()
    for document in documents:
        merged = merged.merged_over(document)
    return access_from_kubeconfig(merged, context, CredentialEnvironment(environ, monotonic, now))


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
    """Return the access from `kubeconfig`, KUBECONFIG, ~/.kube/config or the pod's service account, in this order."""
    config_file = home / ".kube" / "config"
    paths = [kubeconfig] if kubeconfig else kubeconfig_paths(environ.get("KUBECONFIG", ""))
    if not paths and os.path.isfile(config_file):
        paths = [config_file]
    if paths:
        return load_access(paths, context, environ=environ, monotonic=monotonic, now=now)
    if context:
        raise KubeconfigError(f"context {quoted_name(context)}: KUBECONFIG is not set and {config_file} does not exist")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster_access(service_account, environ=environ, monotonic=monotonic)
    raise NoKubeconfig(
        f"no kubeconfig: none was given, KUBECONFIG is not set, {config_file} does not exist, and this is not a pod "
        "(KUBERNETES_SERVICE_HOST is not set); give a kubeconfig or set KUBECONFIG"
    )


def in_cluster_access(
    root: Path = SERVICE_ACCOUNT, *, environ: Mapping[str, str], monotonic: Callable[[], float] = time.monotonic
) -> Access:
    """Return the access of the pod's service account.  Token and authority are reread when they rotate."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT: not set, so this is not a pod")
    token, namespace = root / "token", read_if_exists(root / "namespace")
    if not os.path.isfile(token):
        raise KubeconfigError(f"{token}: no such file; does the pod have automountServiceAccountToken: false?")
    trust = ServerVerification(Pem("service account", root / "ca.crt"))
    source = TokenFile(token, "service account", monotonic=monotonic)
    return with_loaded_certificates(
        Access(
            server_url(f"https://{f'[{host}]' if ':' in host else host}:{port}", "KUBERNETES_SERVICE_HOST"),
            Credentials(source, TlsContextSource(trust, monotonic=monotonic)),
            namespace.decode().strip() if namespace else "default",
            trust,
        )
    )


def kubeconfig_paths(value: str) -> list[Path]:
    return [Path(path) for path in value.split(os.pathsep) if path]


def read_if_exists(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeconfigError(f"{path}: {error.strerror}") from None


def parse_file(content: bytes, path: Path) -> Kubeconfig:
    try:
        document = yaml.load(content, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise KubeconfigError(f"{path}: {error_location(error)}: not YAML") from None
    except (ValueError, ArithmeticError, RecursionError):  # invalid dates and numbers, unbounded nesting
        raise KubeconfigError(f"{path}: not YAML") from None
    return parse_kubeconfig(document, origin=f"{path}: ", directory=path.absolute().parent)
