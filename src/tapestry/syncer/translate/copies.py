"""What stands below for a ConfigMap or Secret that a pod refers to, and the Secret with a pod's own tokens.

Ours of a copy are its data, its type, whether it may change, and the metadata that tells of what it is the copy; all
else there is the owner's.  A digest of what we wrote last is noted on it: where the copy says something else now, it
was edited below.  Data is held only while it is on its way: what caches keep of it is a digest (`seen`).
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.digests import digest_of
from tapestry.kube.errors import BadRequest, Invalid
from tapestry.kube.objects import Object, annotations_of, key_of, labels_of, name_of, namespace_of, uid_of
from tapestry.kube.patches import exact_map_patch, owned_patch
from tapestry.kube.resources import SECRETS
from tapestry.kube.times import parse_time, timestamp
from tapestry.syncer.translate.metadata import source_metadata

OPAQUE = "Opaque"
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
"""A type that controllers below would take at its word: they fill such a Secret, or delete it."""
BOOTSTRAP_TOKEN = "bootstrap.kubernetes.io/token"
IDENTITY_FIELDS = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
CONTENT_FIELDS = ("data", "binaryData")
RENEWAL_FRACTION = 0.8
"""Of a token's life."""
MAX_TOKEN_AGE, MIN_TOKEN_AGE = timedelta(hours=24), timedelta(minutes=1)
"""A token that is older is renewed however long it lives, one that is younger never."""


def copied_content(obj: Object) -> Object:
    """What a copy has of its source; the same again where `obj` is the copy."""
    found = {field: obj[field] for field in CONTENT_FIELDS if obj.get(field)}
    if obj.get("immutable"):
        found["immutable"] = True
    if obj["kind"] == SECRETS.kind:
        found["type"] = OPAQUE if obj.get("type") in (None, ACCOUNT_TOKEN) else obj["type"]
    return found


def digest_view(obj: Object) -> Object:
    """What is kept of a source or of a copy.  Others' annotations go, too: kubectl leaves all the data in one."""
    metadata = obj["metadata"]
    kept = {field: metadata[field] for field in IDENTITY_FIELDS if field in metadata}
    for field, pairs in (("labels", labels_of(obj)), ("annotations", annotations_of(obj))):
        if ours := {key: value for key, value in pairs.items() if key.startswith(keys.PREFIX)}:
            kept[field] = ours
    return {"kind": obj["kind"], "metadata": kept, "digest": digest_of(copied_content(obj))}


def copy_rejection(source: Object) -> str | None:
    """Why a source does not cross."""
    if source.get("type") == BOOTSTRAP_TOKEN:
        return f"secrets {key_of(source)} is of type {BOOTSTRAP_TOKEN}: what lets nodes join a cluster stays there"
    return None


def desired_copy(source: Object, binding: Binding) -> Object:
    """The object to have below for a ConfigMap or Secret."""
    content = copied_content(source)
    name = physical_name(binding.virtual_cluster, binding.uid, namespace_of(source) or "", name_of(source))
    return {
        "apiVersion": "v1",
        "kind": source["kind"],
        "metadata": {
            "name": name,
            "namespace": binding.spec.mount_namespace,
            **copy_metadata(source, digest_of(content), binding),
        },
        **content,
    }


def copy_metadata(source: Object, digest: str, binding: Binding) -> Object:
    """Our metadata of a copy: of what it is one, and what we wrote there."""
    found = source_metadata(source, binding)
    return {**found, "annotations": {**found["annotations"], keys.WRITTEN_DIGEST: digest}}


def is_current(copy: Object, source: Object, binding: Binding) -> bool:
    """Whether a copy is as its source, both as `seen`."""
    return bool(copy["digest"] == source["digest"]) and has_metadata(
        copy, copy_metadata(source, source["digest"], binding)
    )


def is_edited(copy: Object, wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether somebody below changed what is ours of a copy, as `seen`; `wanted` are its marks."""
    noted = annotations_of(copy).get(keys.WRITTEN_DIGEST)
    as_noted = {**wanted["annotations"], keys.WRITTEN_DIGEST: noted or ""}
    return bool(copy["digest"] != noted) or not has_metadata(copy, {**wanted, "annotations": as_noted})


def has_metadata(obj: Object, wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether an object has all of these labels and annotations."""
    return wanted["labels"].items() <= labels_of(obj).items() and (
        wanted["annotations"].items() <= annotations_of(obj).items()
    )


def copy_needs_recreate(existing: Object, wanted: Object) -> bool:
    """Whether they differ in what cannot be changed: then the one has to go before the other can come."""
    if existing.get("type") != wanted.get("type"):
        return True
    return bool(existing.get("immutable")) and copied_content(existing) != copied_content(wanted)


def copy_patch(existing: Object, wanted: Object) -> Object:
    """The merge patch that makes a copy what it should be; what others added to it stays."""
    metadata = {field: wanted["metadata"][field] for field in ("labels", "annotations")}
    content = {
        field: exact_map_patch(existing.get(field), wanted.get(field, {}))
        for field in CONTENT_FIELDS
        if existing.get(field) or wanted.get(field)
    }
    return owned_patch(existing, {"metadata": metadata, **content, "immutable": wanted.get("immutable")})


# -- tokens


def tokens_secret(pod: Object, binding: Binding, tokens: Mapping[str, str], renewal: datetime) -> Object:
    """The Secret below with the tokens of a pod, each under its key; `renewal` is when they have to be others."""
    data = {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()}
    secret: Object = {"apiVersion": "v1", "kind": SECRETS.kind, "type": OPAQUE, "data": data}
    namespace, name = namespace_of(pod) or "", name_of(pod)
    return {
        **secret,
        "metadata": {
            "name": tokens_secret_name(binding.virtual_cluster, binding.uid, namespace, name),
            "namespace": binding.spec.mount_namespace,
            "labels": source_metadata(pod, binding)["labels"],
            "annotations": {
                keys.VIRTUAL_POD_NAMESPACE: namespace,
                keys.VIRTUAL_POD_NAME: name,
                keys.VIRTUAL_POD_UID: uid_of(pod),
                keys.TOKENS_RENEWAL: timestamp(renewal),
                keys.WRITTEN_DIGEST: digest_of(copied_content(secret)),
            },
        },
    }


def token_renewal(issued: datetime, expires: datetime) -> datetime:
    """When to replace a token: as a kubelet does, at four fifths of its life or after a day."""
    return issued + max(min(RENEWAL_FRACTION * (expires - issued), MAX_TOKEN_AGE), MIN_TOKEN_AGE)


def secret_renewal(secret: Object, now: datetime) -> datetime:
    """When the tokens of a Secret, as `seen`, have to be replaced: now, where it was edited below."""
    annotations = annotations_of(secret)
    if annotations.get(keys.WRITTEN_DIGEST) != secret["digest"]:
        return now
    try:
        return parse_time(annotations.get(keys.TOKENS_RENEWAL, ""))
    except ValueError:
        return now


@contextmanager
def redacted_errors(wanted: Object) -> Iterator[None]:
    """Writing of content: a server that refuses it may quote it, and what it quotes must not get any further."""
    try:
        yield
    except (BadRequest, Invalid) as error:
        fields = [str(cause.get("field")) for cause in error.details.get("causes") or ()]
        what = f"{wanted['kind']} {key_of(wanted)} is refused below"
        message = f"{what}: {', '.join(fields)}" if fields else what
        raise type(error)(error.code, error.reason, message) from None
