"""Metadata of our objects in the physical cluster: ownership, source, and copied labels and annotations.

`allowed_metadata` decides which labels and annotations of a pod are copied; other kinds copy none. An annotation
records what we set last. It distinguishes a key that we no longer want from one that was added in the physical cluster.
"""

from collections.abc import Mapping

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import Object, annotations_of, controller_of, digest_of, labels_of, name_of, namespace_of
from tapestry.syncer.translate.allowed_metadata import copied_labels
from tapestry.syncer.translate.tenant_labels import renamed_labels

CONSTANT_KEYS = frozenset(
    {
        *(keys.MANAGED_BY, keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING, keys.CLUSTER_BINDING_UID),
        *(keys.VIRTUAL_NAMESPACE, keys.VIRTUAL_NAME, keys.VIRTUAL_UID),
        *(keys.VIRTUAL_POD_NAMESPACE, keys.VIRTUAL_POD_NAME, keys.VIRTUAL_POD_UID, keys.VIRTUAL_NODE_NAME),
    }
)
"""Keys that are always set and therefore not recorded."""


class AppliedMetadata(msgspec.Struct, frozen=True):
    """Record of what we set last: the keys that may be removed again, and a digest."""

    labels: list[str] = []
    annotations: list[str] = []
    digest: str = ""
    """Digest of everything that may change, before the owner's webhooks."""


def twin_labels(pod: Object, binding: Binding) -> dict[str, str]:
    """Return the labels of a twin: the copied ones and ours."""
    renamed = renamed_labels(pod, binding) if binding.spec.is_tenant else {}
    return {**copied_labels(pod, binding), **renamed, **identity_labels(pod, binding)}


def identity_labels(obj: Object, binding: Binding) -> dict[str, str]:
    """Return our labels of the copy or twin of `obj`."""
    return {
        **binding.owner_labels(),
        keys.CLUSTER_BINDING: safe_label_value(binding.name),
        keys.VIRTUAL_NAMESPACE: safe_label_value(namespace_of(obj) or ""),
    }


def workload_metadata(pod: Object) -> dict[str, str]:
    """Return the workload of a pod under our keys. A ReplicaSet of a Deployment counts as the Deployment."""
    owner = controller_of(pod)
    if owner is None:
        return {}
    kind, name = owner["kind"], owner["name"]
    revision = "-" + labels_of(pod).get("pod-template-hash", "")
    if kind == "ReplicaSet" and len(revision) > 1 and name.endswith(revision):
        kind, name = "Deployment", name.removesuffix(revision)
    return {keys.WORKLOAD_TYPE: kind, keys.WORKLOAD_NAME: name}


def truncated_labels(values: Mapping[str, str]) -> dict[str, str]:
    return {key: safe_label_value(value) for key, value in values.items()}


def full_annotations(values: Mapping[str, str]) -> dict[str, str]:
    """Return annotations with the full values of those that do not fit into a label."""
    return {key: value for key, value in values.items() if safe_label_value(value) != value}


def with_applied_metadata(wanted: Object, mutable: object) -> Object:
    """Return `wanted` with the record of what it sets; `mutable` is the part of its content that may change later."""
    labels, annotations = labels_of(wanted), annotations_of(wanted)
    applied = AppliedMetadata(
        sorted(labels.keys() - CONSTANT_KEYS),
        sorted(annotations.keys() - CONSTANT_KEYS),
        digest_of([labels, annotations, mutable]),
    )
    recorded = {**annotations, keys.EXPECTED_METADATA: msgspec.json.encode(applied).decode()}
    return {**wanted, "metadata": {**wanted["metadata"], "annotations": recorded}}


def applied_metadata(obj: Object) -> AppliedMetadata:
    """Return the record that `with_applied_metadata` wrote; an unreadable one counts as empty."""
    try:
        return msgspec.json.decode(annotations_of(obj).get(keys.EXPECTED_METADATA, "{}"), type=AppliedMetadata)
    except msgspec.DecodeError:
        return AppliedMetadata()


def is_applied(existing: Object, wanted: Object) -> bool:
    """Return whether what we set last is what we want now."""
    return applied_metadata(existing).digest == applied_metadata(wanted).digest


def metadata_patch(existing: Object, wanted: Object) -> Object:
    """Return the metadata of a patch: all our keys, and None for those that we no longer want."""
    before = applied_metadata(existing)
    labels, annotations = labels_of(wanted), annotations_of(wanted)
    return {
        "labels": {**dict.fromkeys(set(before.labels) - labels.keys()), **labels},
        "annotations": {**dict.fromkeys(set(before.annotations) - annotations.keys()), **annotations},
    }


def source_metadata(source: Object, binding: Binding) -> Object:
    """Return labels and annotations of the copy of a `source` that is not a pod; none of its own are copied."""
    return {
        "labels": identity_labels(source, binding),
        "annotations": {keys.VIRTUAL_NAME: name_of(source)},
    }


def source_key(copy: Object) -> list[str]:
    """Return the key of the virtual object that a copy names as its source."""
    namespace, name = labels_of(copy).get(keys.VIRTUAL_NAMESPACE), annotations_of(copy).get(keys.VIRTUAL_NAME)
    return [f"{namespace}/{name}"] if namespace and name and "/" not in namespace + name else []


def virtual_node_name_of(twin: Object) -> str:
    """Return the name of the virtual node of a twin; empty if the host cluster has not chosen a node yet."""
    name: str = annotations_of(twin).get(keys.VIRTUAL_NODE_NAME) or twin["spec"].get("nodeName", "")
    return name


def virtual_uid(twin: Object) -> str:
    """Return the UID of the virtual pod that a twin was created for."""
    return annotations_of(twin).get(keys.VIRTUAL_POD_UID, "")


def virtual_key(twin: Object) -> list[str]:
    """Return the key of the virtual pod that a twin names. A forged name has no matching pod."""
    annotations = annotations_of(twin)
    namespace, name = annotations.get(keys.VIRTUAL_POD_NAMESPACE), annotations.get(keys.VIRTUAL_POD_NAME)
    return [f"{namespace}/{name}"] if namespace and name and "/" not in namespace + name else []
