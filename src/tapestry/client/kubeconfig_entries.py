"""The entries of a kubeconfig: clusters, users, and the contexts that pair them.

A document is decoded as kubectl does it: unknown keys and nulls are ignored, and of several documents the first that
has an entry wins.  Every entry remembers where it stood, for errors and for the file names in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tapestry.client.errors import KubeconfigError
from tapestry.client.exec_plugin import ExecSpec


class KubeconfigPart(msgspec.Struct, frozen=True, rename="kebab"):
    """Unknown keys are ignored.  The values may be secrets, so none of them shows in a repr."""

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
    """A part of a kubeconfig, what errors call it, and where relative file names in it start."""

    value: P
    origin: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One kubeconfig, or several merged, by the names of the entries."""

    current_context: str = ""
    clusters: Mapping[str, Entry[Cluster]] = field(default_factory=dict)
    users: Mapping[str, Entry[User]] = field(default_factory=dict)
    contexts: Mapping[str, Entry[Context]] = field(default_factory=dict)

    def merged_over(self, other: "Kubeconfig") -> "Kubeconfig":
        """Both merged; what stands here wins, entry by entry."""
        return Kubeconfig(
            self.current_context or other.current_context,
            {**other.clusters, **self.clusters},
            {**other.users, **self.users},
            {**other.contexts, **self.contexts},
        )


def parse_kubeconfig(document: Any, *, origin: str, directory: Path) -> Kubeconfig:
    """The kubeconfig in a parsed document; `origin` goes before the fields that errors name."""
    try:
        found = msgspec.convert(without_nulls({} if document is None else document), KubeconfigDocument)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.rpartition("`$")[2].strip("`.") or "document"  # `$.users[0].name`, or `key` in `$.users[0]`
        advice = "" if place else "; this is no kubeconfig"
        raise KubeconfigError(f"{origin}{path}: {message}{advice}") from None
    if (found.api_version, found.kind) != ("v1", "Config"):
        raise KubeconfigError(f"{origin}kind: not a kubeconfig, which has kind: Config and apiVersion: v1")

    def named(listed: str, parts: Sequence[tuple[str, P]]) -> dict[str, Entry[P]]:
        entries: dict[str, Entry[P]] = {}
        for index, (name, part) in enumerate(parts):
            if name in entries:
                raise KubeconfigError(
                    f"{origin}{listed}s[{index}].name: {quoted_name(name)} is taken by an entry before"
                )
            entries[name] = Entry(part, f"{origin}{listed}s[{index}].{listed}", directory)
        return entries

    return Kubeconfig(
        found.current_context,
        named("cluster", [(each.name, each.cluster) for each in found.clusters]),
        named("user", [(each.name, each.user) for each in found.users]),
        named("context", [(each.name, each.context) for each in found.contexts]),
    )


def without_nulls(value: Any) -> Any:
    """A null field is one that is not there."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def find_entry(entries: Mapping[str, Entry[P]], name: str, origin: str) -> Entry[P]:
    if name not in entries:
        raise KubeconfigError(f"{origin}: {quoted_name(name)} is not there; choose one of {known_names(entries)}")
    return entries[name]


def known_names(entries: Mapping[str, Any]) -> str:
    return ", ".join(quoted_name(name) for name in list(entries)[:10]) or "none, for there are none"


def quoted_name(name: str) -> str:
    """`name` for an error, of bearable length."""
    return repr(name if len(name) <= 100 else f"{name[:100]}...")
