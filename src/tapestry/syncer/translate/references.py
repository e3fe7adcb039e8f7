"""Renaming of the references of a pod for its twin.

The `renamed_*` functions rename exactly the references that `pod_references` lists, and `unknown_sources` finds every
other field that may name an object.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from tapestry.apis import keys
from tapestry.kube.objects import Object
from tapestry.kube.pod_references import (
    ENV_FROM_SOURCES,
    ENV_SOURCES,
    PROJECTIONS,
    SECRET_FIELDS,
    ReferenceKind,
    claim_name,
    is_ephemeral,
    object_at,
    objects_at,
    secret_name_at,
    token_key,
)
from tapestry.kube.pods import CONTAINER_FIELDS
from tapestry.syncer.translate.allowed_metadata import SOURCE_KEYS

Rename = Callable[[str], str]
"""Map the name of an object in the pod's namespace to its physical name."""

VIRTUAL_FIELDS = {
    field: f"metadata.annotations['{key}']"
    for field, key in (
        ("metadata.name", keys.VIRTUAL_POD_NAME),
        ("metadata.namespace", keys.VIRTUAL_POD_NAMESPACE),
        ("metadata.uid", keys.VIRTUAL_POD_UID),
        ("spec.nodeName", keys.VIRTUAL_NODE_NAME),
    )
}
"""Downward API fields of a virtual pod, and the field of its twin that holds the value."""
FILE_FIELDS = {
    **VIRTUAL_FIELDS,
    **{f"metadata.annotations['{key}']": f"metadata.annotations['{own}']" for key, own in SOURCE_KEYS.items()},
}
"""Those in volumes, where values cannot be written out."""

POD_LOCAL_FIELDS = frozenset(
    {"fieldRef", "resourceFieldRef", "fileKeyRef", "prefix", "downwardAPI", "serviceAccountToken"}
)
"""Source fields that name no other object, or only one that is created for the pod."""
UNSUPPORTED_SOURCES = ("glusterfs",)
"""Volume sources that name an object of a kind that is not synced."""
ALLOWED_FIELDS = ("key", "optional", "items", "defaultMode", "readOnly")
"""Fields of a reference that are copied beside the name; any other field could name a namespace."""


def unknown_sources(spec: Object) -> Iterator[str]:
    """Yield the paths of fields that may name an object and that cannot be renamed."""
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


def renamed_volume(volume: Object, pod: Object, rename: Rename, tokens_secret: str) -> Object:
    """Return the twin's volume: all references are renamed, and tokens are read from `tokens_secret`.

    An ephemeral volume becomes the claim that has been created for it.
    """
    renamed = {**volume, **renamed_references(volume, ("configMap",), rename)}
    renamed.pop("ephemeral", None)
    if claim_of(volume) or is_ephemeral(volume):
        claim = rename(claim_name(volume, pod) or "")
        renamed["persistentVolumeClaim"] = {**allowed_fields(claim_of(volume)), "claimName": claim}
    if source := volume.get("secret"):
        renamed["secret"] = {**allowed_fields(source), "secretName": rename(source.get("secretName", ""))}
    if source := volume.get("projected"):
        sources = [
            renamed_source(each, rename, tokens_secret, token_key(volume, number))
            for number, each in enumerate(source.get("sources") or ())
        ]
        renamed["projected"] = {**source, "sources": sources}
    if source := volume.get("downwardAPI"):
        renamed["downwardAPI"] = with_virtual_fields(source)
    for kind, path in SECRET_FIELDS.items():
        if (source := volume.get(kind)) and (name := secret_name_at(source, path)):
            renamed[kind] = with_name(source, path, rename(name))
    return renamed


def with_claim_names(twin: Object, pod: Object, rename: Rename) -> Object:
    """Return the twin of a pod with other names of the claims that the pod mounts."""
    claims = {each["name"]: name for each in pod["spec"].get("volumes") or () if (name := claim_name(each, pod))}
    if not claims:
        return twin
    volumes = [
        {**each, "persistentVolumeClaim": {**claim_of(each), "claimName": rename(claims[each["name"]])}}
        if each["name"] in claims
        else each
        for each in twin["spec"]["volumes"]
    ]
    return {**twin, "spec": {**twin["spec"], "volumes": volumes}}


def claim_of(volume: Object) -> Object:
    return volume.get("persistentVolumeClaim") or {}


def with_name(source: Object, path: tuple[str, ...], name: str) -> Object:
    head, *rest = path
    return {**source, head: with_name(source[head], tuple(rest), name) if rest else name}


def renamed_source(each: Object, rename: Rename, tokens_secret: str, key: str) -> Object:
    """Return the twin's form of one source of a projected volume."""
    if renamed := renamed_references(each, PROJECTIONS, rename):
        return renamed
    if source := each.get("downwardAPI"):
        return {"downwardAPI": with_virtual_fields(source)}
    if (source := each.get("serviceAccountToken")) is not None:
        return {"secret": {"name": tokens_secret, "items": [{"key": key, "path": source["path"]}]}}
    return each


def renamed_container(
    container: Object, rename: Rename, literals: Object, virtual_fields: Mapping[str, str] = VIRTUAL_FIELDS
) -> Object:
    """Return the twin's container; `literals` are the downward API fields whose values are written out."""
    renamed = dict(container)
    if container.get("envFrom"):
        renamed["envFrom"] = [
            {**each, **renamed_references(each, ENV_FROM_SOURCES, rename)} for each in container["envFrom"]
        ]
    if container.get("env"):
        renamed["env"] = [renamed_variable(each, rename, literals, virtual_fields) for each in container["env"]]
    return renamed


def renamed_references(source: Object, fields: Iterable[str], rename: Rename) -> Object:
    """Return those of `fields` that name an object, with its physical name."""
    return {
        field: {"name": rename(source[field].get("name", "")), **allowed_fields(source[field])}
        for field in fields
        if source.get(field)
    }


def allowed_fields(source: Object) -> Object:
    return {field: source[field] for field in ALLOWED_FIELDS if field in source}


def renamed_variable(variable: Object, rename: Rename, literals: Object, virtual_fields: Mapping[str, str]) -> Object:
    source = variable.get("valueFrom")
    if not source:
        return variable
    field_ref = source.get("fieldRef") or {}
    if field_ref.get("fieldPath") in literals:
        return {"name": variable["name"], "value": literals[field_ref["fieldPath"]]}
    changed = renamed_references(source, ENV_SOURCES, rename)
    if field_ref:
        changed["fieldRef"] = virtual_field(field_ref, virtual_fields)
    return {**variable, "valueFrom": {**source, **changed}}


def with_virtual_fields(source: Object) -> Object:
    """Return a downward API volume whose files describe the virtual pod."""
    items = [
        {**item, "fieldRef": virtual_field(item["fieldRef"], FILE_FIELDS)} if item.get("fieldRef") else item
        for item in source.get("items") or ()
    ]
    return {**source, "items": items}


def virtual_field(field_ref: Object, virtual_fields: Mapping[str, str]) -> Object:
    path = virtual_fields.get(field_ref.get("fieldPath", ""))
    return {**field_ref, "fieldPath": path} if path else field_ref
