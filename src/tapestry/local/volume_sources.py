"""Sources of a pod's volumes and variables: ConfigMaps, Secrets, tokens and the pod. Pure.

`source_references` lists what to fetch for a pod, `Sources` holds it, and `volume_files` returns the files of a volume.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tapestry.kube.objects import Object
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of

VOLUME_KINDS = ("configMap", "secret", "projected", "downwardAPI", "emptyDir")
"""Supported volume types."""
TOKEN_SECONDS = 3600

VolumeFiles = dict[str, bytes]
"""Content by path below the volume's folder."""


class MissingSource(Exception):
    """A source that a pod needs is missing; the message names it."""


class TokenRequest(NamedTuple):
    """A requested token of the pod's service account."""

    audience: str
    seconds: int


class SourceReferences(NamedTuple):
    configmaps: frozenset[str]
    secrets: frozenset[str]
    tokens: frozenset[TokenRequest]


@dataclass(frozen=True, slots=True)
class Sources:
    """Fetched objects and tokens; a missing object is None."""

    configmaps: Mapping[str, Object | None]
    secrets: Mapping[str, Object | None]
    tokens: Mapping[TokenRequest, str]

    def entries(self, source: Object) -> Mapping[str, bytes]:
        """Return all entries of a `configMapRef`, `secretRef`, `configMap` or `secret`; raise MissingSource."""
        for kind in ("configMapRef", "configMap"):
            if reference := source.get(kind):
                return self._content("ConfigMap", self.configmaps, reference)
        for kind in ("secretRef", "secret"):
            if reference := source.get(kind):
                return self._content("Secret", self.secrets, reference)
        return {}

    def entry(self, source: Object) -> bytes | None:
        """Return the entry of a `configMapKeyRef` or `secretKeyRef`; None if it is optional and missing."""
        configmap = source.get("configMapKeyRef")
        reference = configmap or source["secretKeyRef"]
        kind, objects = ("ConfigMap", self.configmaps) if configmap else ("Secret", self.secrets)
        found = self._content(kind, objects, reference).get(reference["key"])
        if found is None and not reference.get("optional"):
            raise MissingSource(f'{kind} "{reference["name"]}" has no entry "{reference["key"]}"')
        return found

    def _content(self, kind: str, objects: Mapping[str, Object | None], reference: Object) -> Mapping[str, bytes]:
        name = reference_name(reference)
        found = objects.get(name)
        if found is not None:
            return data_entries(kind, found)
        if reference.get("optional"):
            return {}
        raise MissingSource(f'{kind} "{name}" not found')


def reference_name(reference: Object) -> str:
    name: str = reference.get("name") or reference.get("secretName") or ""
    return name


def data_entries(kind: str, obj: Object) -> dict[str, bytes]:
    data: Mapping[str, str] = obj.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary: Mapping[str, str] = obj.get("binaryData") or {}
    texts = {key: value.encode() for key, value in data.items()}
    return texts | {key: base64.b64decode(value) for key, value in binary.items()}


def decode_text(value: bytes) -> str:
    return value.decode(errors="replace")


# -- references


def source_references(pod: Object) -> SourceReferences:
    parts = [*volume_references(pod), *variable_references(pod)]
    configmaps = {reference_name(each) for kind, each in parts if kind.startswith("configMap")}
    secrets = {reference_name(each) for kind, each in parts if kind.startswith("secret")}
    tokens = {token_request(each) for kind, each in parts if kind == "serviceAccountToken"}
    return SourceReferences(frozenset(configmaps), frozenset(secrets), frozenset(tokens))


def token_request(source: Object) -> TokenRequest:
    return TokenRequest(source.get("audience") or "", source.get("expirationSeconds") or TOKEN_SECONDS)


def volume_references(pod: Object) -> Iterator[tuple[str, Object]]:
    for volume in pod["spec"].get("volumes") or ():
        for part in projected_sources(volume):
            yield from ((kind, value) for kind, value in part.items() if isinstance(value, dict))


def projected_sources(volume: Object) -> list[Object]:
    projected = volume.get("projected")
    return list(projected.get("sources") or ()) if projected is not None else [volume]


def variable_references(pod: Object) -> Iterator[tuple[str, Object]]:
    for container in containers_of(pod, CONTAINER_FIELDS):
        for source in container.get("envFrom") or ():
            yield from ((kind, value) for kind, value in source.items() if isinstance(value, dict))
        for variable in container.get("env") or ():
            yield from (variable.get("valueFrom") or {}).items()


# -- contents


def volume_files(volume: Object, sources: Sources, downward: Callable[[Object], str]) -> VolumeFiles:
    """Return the files of a volume; `downward` returns the text of a downward API item.  Raise MissingSource."""
    found: VolumeFiles = {}
    for part in projected_sources(volume):
        found |= source_files(part, sources, downward)
    return found


def source_files(part: Object, sources: Sources, downward: Callable[[Object], str]) -> VolumeFiles:
    if token := part.get("serviceAccountToken"):
        return {token["path"]: sources.tokens[token_request(token)].encode()}
    if (items := part.get("downwardAPI")) is not None:
        return {each["path"]: downward(each).encode() for each in items.get("items") or ()}
    reference: Any = part.get("configMap") or part.get("secret")
    if not reference:
        return {}
    entries = sources.entries(part)
    if not (selected := reference.get("items")):
        return dict(entries)
    missing = [each["key"] for each in selected if each["key"] not in entries]
    if missing and not reference.get("optional"):
        raise MissingSource(f'"{reference_name(reference)}" has no entry "{missing[0]}"')
    return {each["path"]: entries[each["key"]] for each in selected if each["key"] in entries}
