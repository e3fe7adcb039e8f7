"""Labels and annotations of a virtual pod that are copied to its twin, and access to the others.

Controllers of the owner act on labels and annotations: networks, cloud roles, queues, policy engines. So only keys that
no such controller reads are copied, and those that the binding lists. The pod can still read its own values: those in
environment variables are written out; a volume that names an uncopied key is rejected, unless it is one of
`SOURCE_KEYS`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.kube.pod_references import object_at, objects_at
from tapestry.kube.pods import CONTAINER_FIELDS, DEFAULT_CONTAINER_ANNOTATION

Field = Literal["labels", "annotations"]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
NEVER_COPIED = (keys.PREFIX, "kubernetes.io/config.", LAST_APPLIED)
"""Prefixes of keys that no binding can allow. With `kubernetes.io/config.mirror` a pod would pass for a static one."""
PREFIXES: dict[Field, frozenset[str]] = {
    "labels": frozenset(
        {"app.kubernetes.io", "batch.kubernetes.io", "apps.kubernetes.io", "statefulset.kubernetes.io"}
    ),
    "annotations": frozenset({"batch.kubernetes.io"}),
}
"""Prefixes of keys that are always copied."""
FIELD_PATH = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]", re.DOTALL)
"""A downward API field path that names one key."""
MAX_LITERAL_BYTES = 128 * 1024
"""Limit of the values written out in a twin: thousands of variables may name one annotation."""
MAX_NAMED_KEYS = 10
"""Maximum number of keys in a message."""
SOURCE_KEYS = {
    key: keys.SOURCE_PREFIX + key.removeprefix(keys.PREFIX)
    for key in (keys.VIRTUAL_POD_NAMESPACE, keys.VIRTUAL_POD_NAME, keys.VIRTUAL_POD_UID, keys.VIRTUAL_NODE_NAME)
}
"""Annotations of a pod that is itself a twin, and the annotations of its own twin with their values: files of the pod
that describe it have them, for example the namespace of its service account."""


def is_copied(field: Field, key: str, binding: Binding) -> bool:
    """Return whether a label or annotation with this key is copied to twins."""
    if key.startswith(NEVER_COPIED):
        return False
    prefix, slash, _ = key.partition("/")
    if not slash or prefix in PREFIXES[field] or (field == "annotations" and key == DEFAULT_CONTAINER_ANNOTATION):
        return True
    allowed = binding.spec.allowed_metadata
    return key in allowed or f"{prefix}/*" in allowed


def copied_labels(obj: Object, binding: Binding) -> dict[str, str]:
    return {key: value for key, value in labels_of(obj).items() if is_copied("labels", key, binding)}


def copied_annotations(obj: Object, binding: Binding) -> dict[str, str]:
    return {key: value for key, value in annotations_of(obj).items() if is_copied("annotations", key, binding)}


def source_annotations(pod: Object) -> dict[str, str]:
    """Return annotations with the values that files of a pod have if it is itself a twin."""
    named = {matched[2] for _, path in item_paths(pod["spec"]) if (matched := FIELD_PATH.fullmatch(path))}
    return {own: annotations_of(pod).get(key, "") for key, own in SOURCE_KEYS.items() if key in named}


def uncopied_keys(pod: Object, binding: Binding) -> list[str]:
    """Return the keys of the pod that are not copied, sorted, except our own and kubectl's."""
    unreported = (keys.PREFIX, LAST_APPLIED)
    uncopied = [key for key in labels_of(pod) if not is_copied("labels", key, binding)]
    uncopied += [key for key in annotations_of(pod) if not is_copied("annotations", key, binding)]
    return sorted({key for key in uncopied if not key.startswith(unreported)})


def uncopied_message(uncopied: list[str]) -> str:
    """Return the message that tells a user about `uncopied_keys`."""
    more = f" and {len(uncopied) - MAX_NAMED_KEYS} more" if len(uncopied) > MAX_NAMED_KEYS else ""
    names = ", ".join(uncopied[:MAX_NAMED_KEYS])
    return f"labels and annotations not copied to the physical cluster: {names}{more}"


# -- The pod's access to its own metadata.


def literal_values(pod: Object, binding: Binding) -> dict[str, str]:
    """Return the values of uncopied keys that environment variables name, by field path.

    They are escaped: a kubelet expands `$(NAME)` in a literal value, but not in one that it reads from a field.
    """
    found: dict[str, str] = {}
    for _, path in variable_paths(pod["spec"]):
        if path not in found and (named := uncopied_key(path, binding)):
            found[path] = value_of(pod, *named).replace("$", "$$")
    return found


def self_reference_errors(pod: Object, binding: Binding) -> list[str]:
    """Return errors for uncopied keys in fields where the value cannot be written out."""
    errors = [
        f"{place}: {field[:-1]} {key} is not copied to the physical cluster; "
        "read it in an environment variable, or have the operator list it in the binding's allowedMetadata"
        for place, path in item_paths(pod["spec"])
        if (named := uncopied_key(path, binding))
        for field, key in (named,)
        if field != "annotations" or key not in SOURCE_KEYS
    ]
    literals, size = literal_values(pod, binding), 0
    for place, path in variable_paths(pod["spec"]) if literals else ():
        size += len(literals.get(path, "").encode())
        if size > MAX_LITERAL_BYTES:
            limit = f"{MAX_LITERAL_BYTES // 1024} KiB"
            return [*errors, f"{place}: values of labels and annotations that are not copied exceed {limit} in total"]
    return errors


def uncopied_key(path: str, binding: Binding) -> tuple[Field, str] | None:
    """Return the field and the key that a field path names if the key is not copied."""
    matched = FIELD_PATH.fullmatch(path)
    if matched is None:
        return None
    field: Field = "labels" if matched[1] == "labels" else "annotations"
    return None if is_copied(field, matched[2], binding) else (field, matched[2])


def value_of(pod: Object, field: Field, key: str) -> str:
    pairs: Mapping[str, str] = labels_of(pod) if field == "labels" else annotations_of(pod)
    return pairs.get(key, "")


def variable_paths(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the environment variables that name a field of the pod, and the path of that field."""
    for containers in CONTAINER_FIELDS:
        for number, container in enumerate(objects_at(spec, containers)):
            for index, variable in enumerate(objects_at(container, "env")):
                path = object_at(object_at(variable, "valueFrom"), "fieldRef").get("fieldPath")
                if isinstance(path, str):
                    yield f"spec.{containers}[{number}].env[{index}]", path


def item_paths(spec: Object) -> Iterator[tuple[str, str]]:
    """Yield the items of downward API volumes that name a field of the pod, and the path of that field."""
    for number, volume in enumerate(objects_at(spec, "volumes")):
        place = f"spec.volumes[{number}]"
        sources = [(f"{place}.downwardAPI", object_at(volume, "downwardAPI"))]
        for index, source in enumerate(objects_at(object_at(volume, "projected"), "sources")):
            sources.append((f"{place}.projected.sources[{index}].downwardAPI", object_at(source, "downwardAPI")))
        for source_path, source in sources:
            for index, item in enumerate(objects_at(source, "items")):
                path = object_at(item, "fieldRef").get("fieldPath")
                if isinstance(path, str):
                    yield f"{source_path}.items[{index}]", path
