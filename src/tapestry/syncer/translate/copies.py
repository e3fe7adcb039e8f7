"""Desired copies of the ConfigMaps and Secrets that pods refer to, and the Secret with a pod's tokens.

We own the data, the type, the immutable flag and the identifying metadata of a copy; everything else belongs to the
owner. An annotation holds a digest of what we wrote last: if the content differs from it, the copy was edited in the
physical cluster. Data is not cached; caches keep a digest (`digest_view`).
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.errors import BadRequest, Invalid
from tapestry.kube.objects import Object, annotations_of, digest_of, key_of, labels_of, name_of, namespace_of, uid_of
from tapestry.kube.patches import exact_map_patch, owned_patch
from tapestry.kube.resources import SECRETS
from tapestry.kube.times import parse_time, timestamp
from tapestry.syncer.translate.metadata import source_metadata

OPAQUE = "Opaque"
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
"""A type that controllers in the physical cluster act on: they fill or delete such a Secret."""
BOOTSTRAP_TOKEN = "bootstrap.kubernetes.io/token"
IDENTITY_FIELDS = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
CONTENT_FIELDS = ("data", "binaryData")
RENEWAL_FRACTION = 0.8
"""Fraction of a token's lifetime after which it is renewed."""
MAX_TOKEN_AGE, MIN_TOKEN_AGE = timedelta(hours=24), timedelta(minutes=1)
"""Age at which a token is renewed at the latest and at the earliest, whatever its lifetime."""


def copied_content(obj: Object) -> Object:
    """Return the content that is copied from a source; the same for a source and its copy."""
    found = {field: obj[field] for field in CONTENT_FIELDS if obj.get(field)}
    if obj.get("immutable"):
        found["immutable"] = True
    if obj["kind"] == SECRETS.kind:
        found["type"] = OPAQUE if obj.get("type") in (None, ACCOUNT_TOKEN) else obj["type"]
    return found


def digest_view(obj: Object) -> Object:
    """Return the cached view of a source or copy, without foreign annotations: kubectl stores the data in one."""
    metadata = obj["metadata"]
    metadata_view = {field: metadata[field] for field in IDENTITY_FIELDS if field in metadata}
    for field, pairs in (("labels", labels_of(obj)), ("annotations", annotations_of(obj))):
        if ours := {key: value for key, value in pairs.items() if key.startswith(keys.PREFIX)}:
            metadata_view[field] = ours
    return {"kind": obj["kind"], "metadata": metadata_view, "digest": digest_of(copied_content(obj))}


def copy_rejection(source: Object) -> str | None:
    """Return why a source is not copied; None if it is."""
    if source.get("type") == BOOTSTRAP_TOKEN:
        return f"secrets {key_of(source)} is of type {BOOTSTRAP_TOKEN}: bootstrap tokens are not copied"
    return None


def desired_copy(source: Object, binding: Binding) -> Object:
    """Return the desired copy of a ConfigMap or Secret."""
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
    """Return our metadata of a copy: its source and the digest of what we wrote."""
    found = source_metadata(source, binding)
    return {**found, "annotations": {**found["annotations"], keys.WRITTEN_DIGEST: digest}}


def is_current(copy: Object, source: Object, binding: Binding) -> bool:
    """Return whether a copy matches its source; both are digest views."""
    return bool(copy["digest"] == source["digest"]) and has_metadata(
        copy, copy_metadata(source, source["digest"], binding)
    )


def is_edited(copy: Object, wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether our part of a copy, a digest view, was edited; `wanted` is its desired metadata."""
    recorded = annotations_of(copy).get(keys.WRITTEN_DIGEST)
    annotations = {**wanted["annotations"], keys.WRITTEN_DIGEST: recorded or ""}
    return bool(copy["digest"] != recorded) or not has_metadata(copy, {**wanted, "annotations": annotations})


def has_metadata(obj: Object, wanted: Mapping[str, Mapping[str, str]]) -> bool:
    return wanted["labels"].items() <= labels_of(obj).items() and (
        wanted["annotations"].items() <= annotations_of(obj).items()
    )


def copy_needs_recreate(existing: Object, wanted: Object) -> bool:
    """Return whether they differ in an immutable field, so that the copy has to be deleted and created again."""
    if existing.get("type") != wanted.get("type"):
        return True
    return bool(existing.get("immutable")) and copied_content(existing) != copied_content(wanted)


def copy_patch(existing: Object, wanted: Object) -> Object:
    """Return the merge patch for a copy; what others added to it stays."""
    metadata = {field: wanted["metadata"][field] for field in ("labels", "annotations")}
    content = {
        field: exact_map_patch(existing.get(field), wanted.get(field, {}))
        for field in CONTENT_FIELDS
        if existing.get(field) or wanted.get(field)
    }
    return owned_patch(existing, {"metadata": metadata, **content, "immutable": wanted.get("immutable")})


# -- tokens


def tokens_secret(pod: Object, binding: Binding, tokens: Mapping[str, str], renewal: datetime) -> Object:
    """Return the Secret with the tokens of a pod, each under its key; `renewal` is when they must be replaced."""
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
    """Return when to replace a token, like a kubelet: after 80% of its lifetime or a day."""
    return issued + max(min(RENEWAL_FRACTION * (expires - issued), MAX_TOKEN_AGE), MIN_TOKEN_AGE)


def secret_renewal(secret: Object, now: datetime) -> datetime:
    """Return when the tokens of a Secret must be replaced: now if it was edited. `secret` is a digest view."""
    annotations = annotations_of(secret)
    if annotations.get(keys.WRITTEN_DIGEST) != secret["digest"]:
        return now
    try:
        return parse_time(annotations.get(keys.TOKENS_RENEWAL, ""))
    except ValueError:
        return now


@contextmanager
def redacted_errors(wanted: Object) -> Iterator[None]:
    """Remove the API server's message from errors of a write: it may quote the content."""
    try:
        yield
    except (BadRequest, Invalid) as error:
        fields = [str(cause.get("field")) for cause in error.details.get("causes") or ()]
        rejection = f"{wanted['kind']} {key_of(wanted)} was rejected by the physical API server"
        message = f"{rejection}: {', '.join(fields)}" if fields else rejection
        raise type(error)(error.code, error.reason, message) from None
