"""What a pod's volumes and variables are made of: ConfigMaps, Secrets, tokens and the pod itself.  Pure.

asked_by     what has to be fetched for a pod
Sources      what was
files_of     the files that a volume consists of
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tapestry.kube.objects import Object
from tapestry.kube.pods import containers_of

VOLUME_KINDS = ("configMap", "secret", "projected", "downwardAPI", "emptyDir")
"""Of volumes."""
TOKEN_SECONDS = 3600

VolumeFiles = dict[str, bytes]
"""Path below the volume's folder to content."""


class MissingSource(Exception):
    """Something that a pod cannot start without is not there; the message says what."""


class TokenRequest(NamedTuple):
    """A token of the pod's account that it asks for."""

    audience: str
    seconds: int


class SourceReferences(NamedTuple):
    configmaps: frozenset[str]
    secrets: frozenset[str]
    tokens: frozenset[TokenRequest]


@dataclass(frozen=True, slots=True)
class Sources:
    """What was found; an object that does not exist is None."""

    configmaps: Mapping[str, Object | None]
    secrets: Mapping[str, Object | None]
    tokens: Mapping[TokenRequest, str]

    def entries(self, source: Object) -> Mapping[str, bytes]:
        """All entries of what `configMapRef` or `secretRef`, `configMap` or `secret` names; raises Missing."""
        for kind in ("configMapRef", "configMap"):
            if reference := source.get(kind):
                return self._content("ConfigMap", self.configmaps, reference)
        for kind in ("secretRef", "secret"):
            if reference := source.get(kind):
                return self._content("Secret", self.secrets, reference)
        return {}

    def entry(self, source: Object) -> bytes | None:
        """The entry that `configMapKeyRef` or `secretKeyRef` names; None where it need not exist and does not."""
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


# -- what is asked for


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
    """A volume as the sources that it is projected from."""
    projected = volume.get("projected")
    return list(projected.get("sources") or ()) if projected is not None else [volume]


def variable_references(pod: Object) -> Iterator[tuple[str, Object]]:
    for container in containers_of(pod):
        for source in container.get("envFrom") or ():
            yield from ((kind, value) for kind, value in source.items() if isinstance(value, dict))
        for variable in container.get("env") or ():
            yield from (variable.get("valueFrom") or {}).items()


# -- what they come to


def volume_files(volume: Object, sources: Sources, downward: Callable[[Object], str]) -> VolumeFiles:
    """The files of a volume; `downward` is the text of an item of the downward API.  Raises Missing."""
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
    if not (chosen := reference.get("items")):
        return dict(entries)
    missing = [each["key"] for each in chosen if each["key"] not in entries]
    if missing and not reference.get("optional"):
        raise MissingSource(f'"{reference_name(reference)}" has no entry "{missing[0]}"')
    return {each["path"]: entries[each["key"]] for each in chosen if each["key"] in entries}
