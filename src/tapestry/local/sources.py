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

KINDS = ("configMap", "secret", "projected", "downwardAPI", "emptyDir")
"""Of volumes."""
TOKEN_SECONDS = 3600

Files = dict[str, bytes]
"""Path below the volume's folder to content."""


class Missing(Exception):
    """Something that a pod cannot start without is not there; the message says what."""


class Token(NamedTuple):
    """A token of the pod's account that it asks for."""

    audience: str
    seconds: int


class Asked(NamedTuple):
    configmaps: frozenset[str]
    secrets: frozenset[str]
    tokens: frozenset[Token]


@dataclass(frozen=True, slots=True)
class Sources:
    """What was found; an object that does not exist is None."""

    configmaps: Mapping[str, Object | None]
    secrets: Mapping[str, Object | None]
    tokens: Mapping[Token, str]

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
            raise Missing(f'{kind} "{reference["name"]}" has no entry "{reference["key"]}"')
        return found

    def _content(self, kind: str, objects: Mapping[str, Object | None], reference: Object) -> Mapping[str, bytes]:
        name = name_in(reference)
        found = objects.get(name)
        if found is not None:
            return content(kind, found)
        if reference.get("optional"):
            return {}
        raise Missing(f'{kind} "{name}" not found')


def name_in(reference: Object) -> str:
    name: str = reference.get("name") or reference.get("secretName") or ""
    return name


def content(kind: str, obj: Object) -> dict[str, bytes]:
    data: Mapping[str, str] = obj.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary: Mapping[str, str] = obj.get("binaryData") or {}
    texts = {key: value.encode() for key, value in data.items()}
    return texts | {key: base64.b64decode(value) for key, value in binary.items()}


def decoded(value: bytes) -> str:
    return value.decode(errors="replace")


# -- what is asked for


def asked_by(pod: Object) -> Asked:
    parts = [*volume_parts(pod), *variable_parts(pod)]
    configmaps = {name_in(each) for kind, each in parts if kind.startswith("configMap")}
    secrets = {name_in(each) for kind, each in parts if kind.startswith("secret")}
    tokens = {token_in(each) for kind, each in parts if kind == "serviceAccountToken"}
    return Asked(frozenset(configmaps), frozenset(secrets), frozenset(tokens))


def token_in(source: Object) -> Token:
    return Token(source.get("audience") or "", source.get("expirationSeconds") or TOKEN_SECONDS)


def volume_parts(pod: Object) -> Iterator[tuple[str, Object]]:
    for volume in pod["spec"].get("volumes") or ():
        for part in parts_of(volume):
            yield from ((kind, value) for kind, value in part.items() if isinstance(value, dict))


def parts_of(volume: Object) -> list[Object]:
    """A volume as the sources that it is projected from."""
    projected = volume.get("projected")
    return list(projected.get("sources") or ()) if projected is not None else [volume]


def variable_parts(pod: Object) -> Iterator[tuple[str, Object]]:
    for container in containers_of(pod):
        for source in container.get("envFrom") or ():
            yield from ((kind, value) for kind, value in source.items() if isinstance(value, dict))
        for variable in container.get("env") or ():
            yield from (variable.get("valueFrom") or {}).items()


# -- what they come to


def files_of(volume: Object, sources: Sources, downward: Callable[[Object], str]) -> Files:
    """The files of a volume; `downward` is the text of an item of the downward API.  Raises Missing."""
    found: Files = {}
    for part in parts_of(volume):
        found |= part_files(part, sources, downward)
    return found


def part_files(part: Object, sources: Sources, downward: Callable[[Object], str]) -> Files:
    if token := part.get("serviceAccountToken"):
        return {token["path"]: sources.tokens[token_in(token)].encode()}
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
        raise Missing(f'"{name_in(reference)}" has no entry "{missing[0]}"')
    return {each["path"]: entries[each["key"]] for each in chosen if each["key"] in entries}
