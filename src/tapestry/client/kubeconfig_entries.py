"""Data model of kubeconfigs: clusters, users, and the contexts that pair them.

A document is decoded as in kubectl: unknown keys and nulls are ignored, and the first of several documents with an
entry wins.  Every entry records its origin, for errors and for relative paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tapestry.client.errors import KubeconfigError
from tapestry.client.exec_plugin import ExecSpec


class KubeconfigPart(msgspec.Struct, frozen=True, rename="kebab"):
    """Base of all parts.  Unknown keys are ignored.  A repr shows no values, because they may be secrets."""

    def __repr__(self) -> str:
        return type(self).__name__


class Extension(KubeconfigPart, frozen=True):
    name: str = ""
    extension: Any = None


class Cluster(KubeconfigPart, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[Extension] = []


class User(KubeconfigPart, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: ExecSpec | None = None
    auth_provider: Any = None
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}


class Context(KubeconfigPart, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(KubeconfigPart, frozen=True):
    name: str = ""
    cluster: Cluster = Cluster()


class NamedUser(KubeconfigPart, frozen=True):
    name: str = ""
    user: User = User()


class NamedContext(KubeconfigPart, frozen=True):
    name: str = ""
    context: Context = Context()


class KubeconfigDocument(KubeconfigPart, frozen=True):
    api_version: str = msgspec.field(default="v1", name="apiVersion")
    kind: str = "Config"
    current_context: str = ""
    clusters: list[NamedCluster] = []
    users: list[NamedUser] = []
    contexts: list[NamedContext] = []


P = TypeVar("P", bound=KubeconfigPart)


@dataclass(frozen=True, slots=True)
class Entry(Generic[P]):
    """A part of a kubeconfig, its name in errors, and the directory of relative paths in it."""

    value: P
    origin: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One kubeconfig, or several merged, with entries by name."""

    current_context: str = ""
    clusters: Mapping[str, Entry[Cluster]] = field(default_factory=dict)
    users: Mapping[str, Entry[User]] = field(default_factory=dict)
    contexts: Mapping[str, Entry[Context]] = field(default_factory=dict)

    def merged_over(self, other: "Kubeconfig") -> "Kubeconfig":
        """Return both merged.  Entries of this one win."""
        return Kubeconfig(
            self.current_context or other.current_context,
            {**other.clusters, **self.clusters},
            {**other.users, **self.users},
            {**other.contexts, **self.contexts},
        )


def parse_kubeconfig(document: Any, *, origin: str, directory: Path) -> Kubeconfig:
    """Return the kubeconfig in a parsed document.  `origin` is the prefix of field names in errors."""
    try:
        config = msgspec.convert(without_nulls({} if document is None else document), KubeconfigDocument)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.rpartition("`$")[2].strip("`.") or "document"  # `$.users[0].name`, or `key` in `$.users[0]`
        advice = "" if place else "; this is not a kubeconfig"
        raise KubeconfigError(f"{origin}{path}: {message}{advice}") from None
    if (config.api_version, config.kind) != ("v1", "Config"):
        raise KubeconfigError(f"{origin}kind: not a kubeconfig, which has kind: Config and apiVersion: v1")

    def named(listed: str, parts: Sequence[tuple[str, P]]) -> dict[str, Entry[P]]:
        entries: dict[str, Entry[P]] = {}
        for index, (name, part) in enumerate(parts):
            if name in entries:
                raise KubeconfigError(
                    f"{origin}{listed}s[{index}].name: {quoted_name(name)} is already used by an earlier entry"
                )
            entries[name] = Entry(part, f"{origin}{listed}s[{index}].{listed}", directory)
        return entries

    return Kubeconfig(
        config.current_context,
        named("cluster", [(each.name, each.cluster) for each in config.clusters]),
        named("user", [(each.name, each.user) for each in config.users]),
        named("context", [(each.name, each.context) for each in config.contexts]),
    )


def without_nulls(value: Any) -> Any:
    """Return `value` without null fields, which count as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def find_entry(entries: Mapping[str, Entry[P]], name: str, origin: str) -> Entry[P]:
    if name not in entries:
        raise KubeconfigError(f"{origin}: {quoted_name(name)} does not exist; choose one of {known_names(entries)}")
    return entries[name]


def known_names(entries: Mapping[str, Any]) -> str:
    return ", ".join(quoted_name(name) for name in list(entries)[:10]) or "none, there are no entries"


def quoted_name(name: str) -> str:
    """Return a truncated repr of `name` for an error."""
    return repr(name if len(name) <= 100 else f"{name[:100]}...")


def kubeconfig_document(
    name: str, cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str | None = None
) -> dict[str, Any]:
    """Return a kubeconfig with one context, whose cluster and user have the same name."""
    place = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **place}}],
    }
