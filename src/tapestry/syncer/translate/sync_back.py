"""Changes to the copy of a ConfigMap or Secret below that go up to its source.

Both sides have to agree: the binding lists the namespace (`spec.syncBack.namespaces`), and the tenant annotates the
object (`tapestry.io/sync-back: "true"`).  Only the values of keys that the source has go up.  Keys that were added or
removed below do not, and where the source changed as well, the tenant wins.
"""

import base64
import binascii
from collections.abc import Mapping

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.digests import digest_of
from tapestry.kube.objects import Object, annotations_of, namespace_of
from tapestry.kube.resources import SECRETS
from tapestry.syncer.translate.copies import CONTENT_FIELDS, copied_content

MAX_BYTES = 1 << 20
"""Size of the data of a ConfigMap or Secret, as Kubernetes limits it."""


class SyncBackRejected(ValueError):
    """What was changed below cannot go up; the message says why and quotes no value."""


def is_allowed(source: Object, binding: Binding) -> bool:
    """Whether the binding and the tenant let changes of this object's copy go up."""
    if namespace_of(source) not in binding.spec.sync_back.namespaces or source.get("immutable"):
        return False
    return annotations_of(source).get(keys.SYNC_BACK) == "true"


def is_changed_below_only(source: Object, copy: Object) -> bool:
    """Whether the copy differs from what was written there last, and its source does not."""
    written = annotations_of(copy).get(keys.WRITTEN_DIGEST)
    return digest_of(copied_content(source)) == written != digest_of(copied_content(copy))


def sync_back_patch(source: Object, copy: Object) -> Object:
    """The merge patch for the source that takes over the values of its keys from the copy; empty where none differs.

    Raises NotReturnable.
    """
    patch = {field: found for field in CONTENT_FIELDS if (found := changed_values(source.get(field), copy.get(field)))}
    if not patch:
        return {}
    for field, values in patch.items():
        check_values(source["kind"], field, values)
    merged = {field: {**(source.get(field) or {}), **patch.get(field, {})} for field in CONTENT_FIELDS}
    if sum(len(value) for values in merged.values() for value in values.values()) > encoded_limit(source["kind"]):
        raise SyncBackRejected(f"the data would be over {MAX_BYTES} bytes")
    return patch


def changed_values(source: object, copy: object) -> dict[str, str]:
    """The values of the copy that differ, of keys that the source has."""
    mine = source if isinstance(source, dict) else {}
    theirs = copy if isinstance(copy, dict) else {}
    return {key: theirs[key] for key, value in mine.items() if key in theirs and theirs[key] != value}


def check_values(kind: str, field: str, values: Mapping[str, object]) -> None:
    """Raise NotReturnable unless an API server would take these values: they come from another cluster."""
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
    """The most characters that the data of a kind may take: of a Secret it is base64."""
    return MAX_BYTES * 4 // 3 if kind == SECRETS.kind else MAX_BYTES
