"""Metadata of what is ours below: whose it is, what it stands for, and what a tenant may say there.

Which labels and annotations of a pod are copied, `allowed_metadata` says; of all other kinds none is.  What we set last
is noted on the object: with it a key that we want no more is told from one that was added below.
"""

from collections.abc import Mapping

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.digests import digest_of
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import Object, annotations_of, controller_of, labels_of, name_of, namespace_of
from tapestry.syncer.translate.allowed_metadata import copied_labels

CONSTANT_KEYS = frozenset(
    {
        *(keys.MANAGED_BY, keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING, keys.CLUSTER_BINDING_UID),
        *(keys.VIRTUAL_NAMESPACE, keys.VIRTUAL_NAME, keys.VIRTUAL_UID),
        *(keys.VIRTUAL_POD_NAMESPACE, keys.VIRTUAL_POD_NAME, keys.VIRTUAL_POD_UID, keys.VIRTUAL_NODE_NAME),
    }
)
"""Keys that are never wanted no more: there is no need to note them."""


class AppliedMetadata(msgspec.Struct, frozen=True):
    """What we set last, as the object itself tells: the keys that may go again, and a digest."""

    labels: list[str] = []
    annotations: list[str] = []
    digest: str = ""
    """Of everything that may change; what the owner's webhooks made of it is theirs."""


def twin_labels(pod: Object, binding: Binding) -> dict[str, str]:
    """The labels of a pod that are copied, and ours."""
    return {**copied_labels(pod, binding), **identity_labels(pod, binding)}


def identity_labels(obj: Object, binding: Binding) -> dict[str, str]:
    """Our labels of what stands below for `obj`."""
    return {
        **binding.owner_labels(),
        keys.CLUSTER_BINDING: safe_label_value(binding.name),
        keys.VIRTUAL_NAMESPACE: safe_label_value(namespace_of(obj) or ""),
    }


def workload_metadata(pod: Object) -> dict[str, str]:
    """Which workload a pod belongs to, by our keys: a ReplicaSet that a Deployment made counts as the Deployment."""
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
    """The annotations that give in full what does not fit into a label."""
    return {key: value for key, value in values.items() if safe_label_value(value) != value}


def with_applied_metadata(wanted: Object, mutable: object) -> Object:
    """`wanted` with a note of what is set by it; `changeable` is what of its content may change later."""
    labels, annotations = labels_of(wanted), annotations_of(wanted)
    applied = AppliedMetadata(
        sorted(labels.keys() - CONSTANT_KEYS),
        sorted(annotations.keys() - CONSTANT_KEYS),
        digest_of([labels, annotations, mutable]),
    )
    note = {**annotations, keys.EXPECTED_METADATA: msgspec.json.encode(applied).decode()}
    return {**wanted, "metadata": {**wanted["metadata"], "annotations": note}}


def applied_metadata(obj: Object) -> AppliedMetadata:
    """The note that `with_note` left; a broken one counts as none, and everything is set again."""
    try:
        return msgspec.json.decode(annotations_of(obj).get(keys.EXPECTED_METADATA, "{}"), type=AppliedMetadata)
    except msgspec.DecodeError:
        return AppliedMetadata()


def is_applied(existing: Object, wanted: Object) -> bool:
    """Whether what we set last is what we want now."""
    return applied_metadata(existing).digest == applied_metadata(wanted).digest


def metadata_patch(existing: Object, wanted: Object) -> Object:
    """The metadata part of a patch: all of ours, and None for the keys that were ours and are wanted no more."""
    before = applied_metadata(existing)
    labels, annotations = labels_of(wanted), annotations_of(wanted)
    return {
        "labels": {**dict.fromkeys(set(before.labels) - labels.keys()), **labels},
        "annotations": {**dict.fromkeys(set(before.annotations) - annotations.keys()), **annotations},
    }


def source_metadata(source: Object, binding: Binding) -> Object:
    """Metadata, but for a name, of what stands below for a `source` that is no pod: none of its own is copied."""
    return {
        "labels": identity_labels(source, binding),
        "annotations": {keys.VIRTUAL_NAME: name_of(source)},
    }


def source_key(copy: Object) -> list[str]:
    """The key of the virtual object that something below says it stands for."""
    namespace, name = labels_of(copy).get(keys.VIRTUAL_NAMESPACE), annotations_of(copy).get(keys.VIRTUAL_NAME)
    return [f"{namespace}/{name}"] if namespace and name and "/" not in namespace + name else []


def virtual_uid(twin: Object) -> str:
    """The UID of the virtual pod that a twin was made for."""
    return annotations_of(twin).get(keys.VIRTUAL_POD_UID, "")


def virtual_key(twin: Object) -> list[str]:
    """The key of the virtual pod that a pod below says it was made for; one that says so falsely finds no match."""
    annotations = annotations_of(twin)
    namespace, name = annotations.get(keys.VIRTUAL_POD_NAMESPACE), annotations.get(keys.VIRTUAL_POD_NAME)
    return [f"{namespace}/{name}"] if namespace and name and "/" not in namespace + name else []
