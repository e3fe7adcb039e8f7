"""Where a pod names other objects, and how these names are put in terms of the other side.

Every place of a pod's spec that can name a ConfigMap, a Secret or a claim is known here and nowhere else: what is
listed by `references` is what has to be there below, what is renamed by `renamed_*` is the same, and whatever else may
name an object is found by `unknown_sources`.  Specs are read as they come: what is not of its type names nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.pods import CONTAINER_FIELDS

Rename = Callable[[str], str]
"""The name below of an object in the pod's namespace."""


class ReferenceKind(StrEnum):
    """What a pod may refer to, under the name of its resource."""

    CONFIG_MAP = "configmaps"
    SECRET = "secrets"
    CLAIM = "persistentvolumeclaims"


@dataclass(frozen=True, slots=True)
class Reference:
    kind: ReferenceKind
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ProjectedToken:
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
    "storageos": ("secretRef", "name"),
}
"""Where a volume source names a Secret, beside that kind itself; all of them for privileged pods alone."""

ENV_SOURCES = {"configMapKeyRef": ReferenceKind.CONFIG_MAP, "secretKeyRef": ReferenceKind.SECRET}
ENV_FROM_SOURCES = {"configMapRef": ReferenceKind.CONFIG_MAP, "secretRef": ReferenceKind.SECRET}
PROJECTIONS = {"configMap": ReferenceKind.CONFIG_MAP, "secret": ReferenceKind.SECRET}
POD_LOCAL_FIELDS = frozenset(
    {"fieldRef", "resourceFieldRef", "fileKeyRef", "prefix", "downwardAPI", "serviceAccountToken"}
)
"""Fields of a source that name no other object, or none that is not made for the pod."""
UNSUPPORTED_SOURCES = ("ephemeral", "glusterfs")
"""Sources of volumes that name an object of a kind that does not cross."""
ALLOWED_FIELDS = ("key", "optional", "items", "defaultMode", "readOnly")
"""Fields of what names an object, beside its name: where another one could name a namespace, it does not travel."""


def objects_at(whole: Object, field: str) -> list[Object]:
    """The objects in a list."""
    found = whole.get(field)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def object_at(whole: Object, field: str) -> Object:
    """The object in a field, empty where there is none."""
    found = whole.get(field)
    return found if isinstance(found, dict) else {}


def references(spec: Object) -> Iterator[Reference]:
    """Everything that has to be there for the pod to run, in its own namespace; the same thing may come twice."""
    for volume in objects_at(spec, "volumes"):
        yield from volume_references(volume)
    for field in CONTAINER_FIELDS:
        for container in objects_at(spec, field):
            for each in objects_at(container, "envFrom"):
                yield from named_references(each, ENV_FROM_SOURCES)
            for each in objects_at(container, "env"):
                yield from named_references(object_at(each, "valueFrom"), ENV_SOURCES)
    for secret in objects_at(spec, "imagePullSecrets"):
        if secret.get("name"):
            yield Reference(ReferenceKind.SECRET, secret["name"], optional=True)


def volume_references(volume: Object) -> Iterator[Reference]:
    yield from named_references(volume, {"configMap": ReferenceKind.CONFIG_MAP})
    if claim := object_at(volume, "persistentVolumeClaim").get("claimName"):
        yield Reference(ReferenceKind.CLAIM, claim)
    for each in objects_at(object_at(volume, "projected"), "sources"):
        yield from named_references(each, PROJECTIONS)
    if source := object_at(volume, "secret"):
        yield Reference(ReferenceKind.SECRET, source.get("secretName") or "", bool(source.get("optional")))
    for kind, path in SECRET_FIELDS.items():
        if name := secret_name_at(object_at(volume, kind), path):
            yield Reference(ReferenceKind.SECRET, name)


def named_references(source: Object, kinds: dict[str, ReferenceKind]) -> Iterator[Reference]:
    for field, kind in kinds.items():
        if named := object_at(source, field):
            yield Reference(kind, named.get("name") or "", bool(named.get("optional")))


def secret_name_at(source: Object, path: tuple[str, ...]) -> str | None:
    found: object = source
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def unknown_sources(spec: Object) -> Iterator[str]:
    """The paths of what may name an object that we know nothing of, and so cannot put in terms of the other side."""
    for number, volume in enumerate(objects_at(spec, "volumes")):
        path = f"spec.volumes[{number}]"
        yield from (f"{path}.{kind}" for kind in UNSUPPORTED_SOURCES if volume.get(kind))
        for index, each in enumerate(objects_at(object_at(volume, "projected"), "sources")):
            yield from unknown_fields(PROJECTIONS, each, f"{path}.projected.sources[{index}]")
    for field in CONTAINER_FIELDS:
        for number, container in enumerate(objects_at(spec, field)):
            path = f"spec.{field}[{number}]"
            for index, each in enumerate(objects_at(container, "envFrom")):
                yield from unknown_fields(ENV_FROM_SOURCES, each, f"{path}.envFrom[{index}]")
            for index, each in enumerate(objects_at(container, "env")):
                yield from unknown_fields(ENV_SOURCES, object_at(each, "valueFrom"), f"{path}.env[{index}].valueFrom")


def unknown_fields(known: dict[str, ReferenceKind], source: Object, path: str) -> Iterator[str]:
    for field, value in source.items():
        if value is not None and field not in known and field not in POD_LOCAL_FIELDS:
            yield f"{path}.{field}"


def projected_tokens(spec: Object) -> list[ProjectedToken]:
    """The service account tokens that the pod's projected volumes ask for."""
    return [
        ProjectedToken(token_key(volume, number), source.get("audience") or "", source.get("expirationSeconds") or 3600)
        for volume in objects_at(spec, "volumes")
        for number, each in enumerate(objects_at(object_at(volume, "projected"), "sources"))
        if (source := each.get("serviceAccountToken")) is not None
    ]


def token_key(volume: Object, number: int) -> str:
    return f"{volume['name']}.{number}"


def renamed_volume(volume: Object, rename: Rename, tokens_secret: str) -> Object:
    """A volume as the twin has it: everything it names is named as below, tokens come out of `tokens_secret`."""
    found = {**volume, **renamed_references(volume, ("configMap",), rename)}
    if source := volume.get("persistentVolumeClaim"):
        found["persistentVolumeClaim"] = {**allowed_fields(source), "claimName": rename(source["claimName"])}
    if source := volume.get("secret"):
        found["secret"] = {**allowed_fields(source), "secretName": rename(source.get("secretName", ""))}
    if source := volume.get("projected"):
        sources = [
            renamed_source(each, rename, tokens_secret, token_key(volume, number))
            for number, each in enumerate(source.get("sources") or ())
        ]
        found["projected"] = {**source, "sources": sources}
    if source := volume.get("downwardAPI"):
        found["downwardAPI"] = with_virtual_fields(source)
    for kind, path in SECRET_FIELDS.items():
        if (source := volume.get(kind)) and (name := secret_name_at(source, path)):
            found[kind] = with_name(source, path, rename(name))
    return found


def with_name(source: Object, path: tuple[str, ...], name: str) -> Object:
    head, *rest = path
    return {**source, head: with_name(source[head], tuple(rest), name) if rest else name}


def renamed_source(each: Object, rename: Rename, tokens_secret: str, key: str) -> Object:
    """One source of a projected volume."""
    if named := renamed_references(each, PROJECTIONS, rename):
        return named
    if source := each.get("downwardAPI"):
        return {"downwardAPI": with_virtual_fields(source)}
    if (source := each.get("serviceAccountToken")) is not None:
        return {"secret": {"name": tokens_secret, "items": [{"key": key, "path": source["path"]}]}}
    return each


def renamed_container(container: Object, rename: Rename, literals: Object) -> Object:
    """A container as the twin has it; `literals` are the downward API fields whose values are written out."""
    found = dict(container)
    if container.get("envFrom"):
        found["envFrom"] = [
            {**each, **renamed_references(each, ENV_FROM_SOURCES, rename)} for each in container["envFrom"]
        ]
    if container.get("env"):
        found["env"] = [renamed_variable(each, rename, literals) for each in container["env"]]
    return found


def renamed_references(source: Object, fields: Iterable[str], rename: Rename) -> Object:
    """Those of `fields` that name something, naming it as below."""
    return {
        field: {"name": rename(source[field].get("name", "")), **allowed_fields(source[field])}
        for field in fields
        if source.get(field)
    }


def allowed_fields(source: Object) -> Object:
    return {field: source[field] for field in ALLOWED_FIELDS if field in source}


def renamed_variable(variable: Object, rename: Rename, literals: Object) -> Object:
    source = variable.get("valueFrom")
    if not source:
        return variable
    field_ref = source.get("fieldRef") or {}
    if field_ref.get("fieldPath") in literals:
        return {"name": variable["name"], "value": literals[field_ref["fieldPath"]]}
    changed = renamed_references(source, ENV_SOURCES, rename)
    if field_ref:
        changed["fieldRef"] = virtual_field(field_ref)
    return {**variable, "valueFrom": {**source, **changed}}


def with_virtual_fields(source: Object) -> Object:
    """A downward API volume whose files tell of the virtual pod."""
    items = [
        {**item, "fieldRef": virtual_field(item["fieldRef"])} if item.get("fieldRef") else item
        for item in source.get("items") or ()
    ]
    return {**source, "items": items}


def virtual_field(field_ref: Object) -> Object:
    path = VIRTUAL_FIELDS.get(field_ref.get("fieldPath", ""))
    return {**field_ref, "fieldPath": path} if path else field_ref
