"""Changes of a kubeconfig file of the user: adding, selecting and removing the contexts of virtual clusters.

Entries of others, also keys that Tapestry does not know, are unchanged. The context that was current before is an
extension of the new context.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tapestry.client.errors import KubeconfigError
from tapestry.client.kubeconfig import kubeconfig_paths, parse_file
from tapestry.kube.objects import Object

PREVIOUS = "vcluster.tapestry.io/previous-context"
LISTS = ("clusters", "users", "contexts")
EMPTY: Mapping[str, Any] = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}


def context_name(namespace: str, name: str) -> str:
    """Return the name of the context of a virtual cluster, and of its cluster and user."""
    return f"tapestry:{namespace}/{name}"


def connected(document: Mapping[str, Any], name: str, issued: Mapping[str, Any]) -> Object:
    """Return the kubeconfig with the current context of another one under a new name, as the current context."""
    current = document.get("current-context") or ""
    previous = previous_context(document, name) if current == name else current
    context = entry(issued, "contexts", issued.get("current-context", ""))["context"]
    result = without_context(document, name)
    parts = {
        "clusters": {"cluster": entry(issued, "clusters", context.get("cluster", ""))["cluster"]},
        "users": {"user": entry(issued, "users", context.get("user", ""))["user"]},
        "contexts": {
            "context": {
                **context,
                "cluster": name,
                "user": name,
                "extensions": [{"name": PREVIOUS, "extension": {"context": previous}}],
            }
        },
    }
    for kind, part in parts.items():
        result[kind] = [*result[kind], {"name": name, **part}]
    result["current-context"] = name
    return result


def disconnected(document: Mapping[str, Any]) -> Object:
    """Return the kubeconfig with the context that was current before. Raises KubeconfigError."""
    current = document.get("current-context") or ""
    if not current.startswith("tapestry:"):
        raise KubeconfigError(f"the current context {current!r} is not that of a virtual cluster")
    return {**document, "current-context": existing(document, previous_context(document, current))}


def without_context(document: Mapping[str, Any], name: str) -> Object:
    """Return the kubeconfig without a context, its cluster and its user."""
    result = {**EMPTY, **document}
    current = result.get("current-context") or ""
    if current == name:
        result["current-context"] = existing(document, previous_context(document, name))
    for kind in LISTS:
        result[kind] = [each for each in result[kind] or () if each.get("name") != name]
    return result


def previous_context(document: Mapping[str, Any], name: str) -> str:
    found = [each["context"] for each in document.get("contexts") or () if each.get("name") == name]
    extensions = [each for context in found for each in context.get("extensions") or ()]
    return next((each["extension"].get("context", "") for each in extensions if each.get("name") == PREVIOUS), "")


def existing(document: Mapping[str, Any], name: str) -> str:
    """Return the name of a context, or nothing if it does not exist any more."""
    return name if any(each.get("name") == name for each in document.get("contexts") or ()) else ""


def entry(document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for each in document.get(kind) or ():
        if each.get("name") == name:
            found: Mapping[str, Any] = each
            return found
    raise KubeconfigError(f"the kubeconfig of the virtual cluster has no {kind.removesuffix('s')} {name!r}")


# -- files


def user_kubeconfig(environ: Mapping[str, str], home: Path) -> Path:
    """Return the file that kubectl changes: the first one in KUBECONFIG, or ~/.kube/config."""
    return (kubeconfig_paths(environ.get("KUBECONFIG", "")) or [home / ".kube" / "config"])[0]


def change_file(path: Path, change: Callable[[Mapping[str, Any]], Object]) -> Object:
    """Replace a kubeconfig file by what `change` returns for it, and return that. Only its owner may read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = path.resolve()  # the file may be a link
    with kubectl_lock(path):
        before: Mapping[str, Any] = EMPTY
        if path.exists():
            content = path.read_bytes()
            parse_file(content, path)
            before = yaml.safe_load(content) or EMPTY
        after = change(before)
        if after != before:
            write_private(path, yaml.safe_dump(after, sort_keys=False).encode())
    return after


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically, readable only by its owner from the first byte."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
    temporary.replace(path)


@contextmanager
def kubectl_lock(path: Path) -> Iterator[None]:
    """Hold the lock file that kubectl uses. Raises KubeconfigError if another program has it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise KubeconfigError(f"{path} is being changed by another program; otherwise, delete {lock}") from None
    try:
        yield
    finally:
        lock.unlink()
