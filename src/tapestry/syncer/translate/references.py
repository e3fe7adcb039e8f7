"""Where a pod names other objects, and how these names are put in terms of the other side.

Every place of a pod's spec that can name a ConfigMap, a Secret or a claim is known here and nowhere else: what is
listed by `references` is what has to be there below, and what is renamed by `renamed_*` is the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tapestry.apis import keys
from tapestry.kube.objects import Object

Rename = Callable[[str], str]
"""The name below of an object in the pod's namespace."""

LISTS = ("initContainers", "containers", "ephemeralContainers")


class Referent(StrEnum):
    """What a pod may refer to, under the name of its resource."""

    CONFIG_MAP = "configmaps"
    SECRET = "secrets"
    CLAIM = "persistentvolumeclaims"


@dataclass(frozen=True, slots=True)
class Reference:
    kind: Referent
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A service account token that a pod mounts."""

    key: str
    """Under which the pod's Secret below has it."""
    audience: str
    seconds: int


VIRTUAL_FIELDS = {
    field: f"metadata.annotations['{key}']"
    for field, key in (
        ("metadata.name", keys.VIRTUAL_POD_NAME),
        ("metadata.namespace", keys.VIRTUAL_POD_NAMESPACE),
        ("metadata.uid", keys.VIRTUAL_POD_UID),
        ("spec.nodeName", keys.VIRTUAL_NODE_NAME),
    )
}
"""Downward API fields of a virtual pod, and where its twin has them."""

SECRET_FIELDS = {
    "azureFile": ("secretName",),
    "cephfs": ("secretRef", "name"),
    "cinder": ("secretRef", "name"),
    "csi": ("nodePublishSecretRef", "name"),
    "flexVolume": ("secretRef", "name"),
    "iscsi": ("secretRef", "name"),
    "rbd": ("secretRef", "name"),
    "scaleIO": ("secretRef", "name"),
    "secret": ("secretName",),
    "storageos": ("secretRef", "name"),
}
"""Where a volume source names a Secret."""


def references(spec: Object) -> Iterator[Reference]:
    """Everything that has to be there for the pod to run, in its own namespace; the same thing may come twice."""
    for volume in spec.get("volumes") or ():
        yield from volume_references(volume)
    for field in LISTS:
        for container in spec.get(field) or ():
            yield from container_references(container)
    for secret in spec.get("imagePullSecrets") or ():
        if secret.get("name"):
            yield Reference(Referent.SECRET, secret["name"], optional=True)


def volume_references(volume: Object) -> Iterator[Reference]:
    if source := volume.get("configMap"):
        yield Reference(Referent.CONFIG_MAP, source.get("name", ""), bool(source.get("optional")))
    if source := volume.get("persistentVolumeClaim"):
        yield Reference(Referent.CLAIM, source["claimName"])
    for each in (volume.get("projected") or {}).get("sources") or ():
        if source := each.get("configMap"):
            yield Reference(Referent.CONFIG_MAP, source.get("name", ""), bool(source.get("optional")))
        if source := each.get("secret"):
            yield Reference(Referent.SECRET, source.get("name", ""), bool(source.get("optional")))
    for kind, path in SECRET_FIELDS.items():
        if source := volume.get(kind):
            name = secret_named(source, path)
            if name:
                yield Reference(Referent.SECRET, name, bool(source.get("optional")))


def secret_named(source: Object, path: tuple[str, ...]) -> str | None:
    found: object = source
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def container_references(container: Object) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        if named := source.get("configMapRef"):
            yield Reference(Referent.CONFIG_MAP, named.get("name", ""), bool(named.get("optional")))
        if named := source.get("secretRef"):
            yield Reference(Referent.SECRET, named.get("name", ""), bool(named.get("optional")))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if named := source.get("configMapKeyRef"):
            yield Reference(Referent.CONFIG_MAP, named.get("name", ""), bool(named.get("optional")))
        if named := source.get("secretKeyRef"):
            yield Reference(Referent.SECRET, named.get("name", ""), bool(named.get("optional")))


def tokens(spec: Object) -> list[Token]:
    """The service account tokens that the pod's projected volumes ask for."""
    return [
        Token(token_key(volume, number), source.get("audience", ""), source.get("expirationSeconds") or 3600)
        for volume in spec.get("volumes") or ()
        for number, each in enumerate((volume.get("projected") or {}).get("sources") or ())
        if (source := each.get("serviceAccountToken")) is not None
    ]


def token_key(volume: Object, number: int) -> str:
    return f"{volume['name']}.{number}"


def renamed_volume(volume: Object, rename: Rename, tokens_secret: str) -> Object:
    """A volume as the twin has it: everything it names is named as below, tokens come out of `tokens_secret`."""
    found = dict(volume)
    if source := volume.get("configMap"):
        found["configMap"] = {**source, "name": rename(source.get("name", ""))}
    if source := volume.get("persistentVolumeClaim"):
        found["persistentVolumeClaim"] = {**source, "claimName": rename(source["claimName"])}
    if source := volume.get("projected"):
        sources = [
            renamed_source(each, rename, tokens_secret, token_key(volume, number))
            for number, each in enumerate(source.get("sources") or ())
        ]
        found["projected"] = {**source, "sources": sources}
    if source := volume.get("downwardAPI"):
        found["downwardAPI"] = with_virtual_fields(source)
    for kind, path in SECRET_FIELDS.items():
        if (source := volume.get(kind)) and (name := secret_named(source, path)):
            found[kind] = with_name(source, path, rename(name))
    return found


def with_name(source: Object, path: tuple[str, ...], name: str) -> Object:
    head, *rest = path
    return {**source, head: with_name(source[head], tuple(rest), name) if rest else name}


def renamed_source(each: Object, rename: Rename, tokens_secret: str, key: str) -> Object:
    """One source of a projected volume."""
    if source := each.get("configMap"):
        return {"configMap": {**source, "name": rename(source.get("name", ""))}}
    if source := each.get("secret"):
        return {"secret": {**source, "name": rename(source.get("name", ""))}}
    if source := each.get("downwardAPI"):
        return {"downwardAPI": with_virtual_fields(source)}
    if (source := each.get("serviceAccountToken")) is not None:
        return {"secret": {"name": tokens_secret, "items": [{"key": key, "path": source["path"]}]}}
    return each


def renamed_container(container: Object, rename: Rename, literals: Object) -> Object:
    """A container as the twin has it; `literals` are the downward API fields whose values are written out."""
    found = dict(container)
    if container.get("envFrom"):
        found["envFrom"] = [renamed_env_from(each, rename) for each in container["envFrom"]]
    if container.get("env"):
        found["env"] = [renamed_variable(each, rename, literals) for each in container["env"]]
    return found


def renamed_env_from(each: Object, rename: Rename) -> Object:
    return {
        **each,
        **{
            field: {**each[field], "name": rename(each[field].get("name", ""))}
            for field in ("configMapRef", "secretRef")
            if each.get(field)
        },
    }


def renamed_variable(variable: Object, rename: Rename, literals: Object) -> Object:
    source = variable.get("valueFrom")
    if not source:
        return variable
    for field in ("configMapKeyRef", "secretKeyRef"):
        if named := source.get(field):
            return {**variable, "valueFrom": {field: {**named, "name": rename(named.get("name", ""))}}}
    if field_ref := source.get("fieldRef"):
        if field_ref.get("fieldPath") in literals:
            return {"name": variable["name"], "value": literals[field_ref["fieldPath"]]}
        return {**variable, "valueFrom": {"fieldRef": virtual_field(field_ref)}}
    return variable


def with_virtual_fields(source: Object) -> Object:
    """A downward API volume whose files tell of the virtual pod."""
    items: Iterable[Object] = source.get("items") or ()
    return {
        **source,
        "items": [
            {**item, "fieldRef": virtual_field(item["fieldRef"])} if item.get("fieldRef") else item for item in items
        ],
    }


def virtual_field(field_ref: Object) -> Object:
    path = VIRTUAL_FIELDS.get(field_ref.get("fieldPath", ""))
    return {**field_ref, "fieldPath": path} if path else field_ref
