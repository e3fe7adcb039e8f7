"""Patches that write changes of the copy of a ConfigMap or Secret back to its source.

Both sides have to agree: the binding lists the namespace (`spec.syncBack.namespaces`), and the tenant annotates the
object (`tapestry.io/sync-back: "true"`). Only the values of keys that the source has are written back. Keys that were
added to or removed from the copy are not, and if the source changed as well, the tenant wins.
"""

import base64
import binascii
from collections.abc import Mapping

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, digest_of, namespace_of
from tapestry.kube.resources import SECRETS
from tapestry.syncer.translate.copies import CONTENT_FIELDS, copied_content

MAX_BYTES = 1 << 20
"""Size limit of the data of a ConfigMap or Secret in Kubernetes."""


class SyncBackRejected(ValueError):
    """A change of the copy cannot be written back; the message gives the reason and quotes no value."""


def is_allowed(source: Object, binding: Binding) -> bool:
    """Return whether the binding and the tenant allow changes of this object's copy to be written back."""
    if namespace_of(source) not in binding.spec.sync_back.namespaces or source.get("immutable"):
        return False
    return annotations_of(source).get(keys.SYNC_BACK) == "true"


def is_changed_below_only(source: Object, copy: Object) -> bool:
    """Return whether the copy differs from what we wrote last, and its source does not."""
    written = annotations_of(copy).get(keys.WRITTEN_DIGEST)
    return digest_of(copied_content(source)) == written != digest_of(copied_content(copy))


def sync_back_patch(source: Object, copy: Object) -> Object:
    """Return the merge patch for the source with the changed values of the copy; empty if none differs.

    Raises SyncBackRejected.
    """
    patch = {field: new for field in CONTENT_FIELDS if (new := changed_values(source.get(field), copy.get(field)))}
    if not patch:
        return {}
    for field, values in patch.items():
        check_values(source["kind"], field, values)
    merged = {field: {**(source.get(field) or {}), **patch.get(field, {})} for field in CONTENT_FIELDS}
    if sum(len(value) for values in merged.values() for value in values.values()) > encoded_limit(source["kind"]):
        raise SyncBackRejected(f"the data would be over {MAX_BYTES} bytes")
    return patch


def changed_values(source: object, copy: object) -> dict[str, str]:
    """Return the values of the copy that differ, for keys that the source has."""
    mine = source if isinstance(source, dict) else {}
    theirs = copy if isinstance(copy, dict) else {}
    return {key: theirs[key] for key, value in mine.items() if key in theirs and theirs[key] != value}


def check_values(kind: str, field: str, values: Mapping[str, object]) -> None:
    """Raise SyncBackRejected unless an API server would accept these values: they are untrusted."""
    is_encoded = kind == SECRETS.kind or field == "binaryData"
    for key, value in values.items():
        if not isinstance(value, str):
            raise SyncBackRejected(f"{field}[{key}] is not a string")
        if is_encoded:
            try:
                base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise SyncBackRejected(f"{field}[{key}] is not base64") from None


def encoded_limit(kind: str) -> int:
    """Return the maximum length of the data of a kind; the data of a Secret is base64."""
    return MAX_BYTES * 4 // 3 if kind == SECRETS.kind else MAX_BYTES
