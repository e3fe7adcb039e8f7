"""Labels of the twins of a tenant's pods, and selectors of these labels.

A label that `allowed_metadata` does not copy has another key on the twin, which no controller of the host cluster
reads. Selectors are renamed in the same way, and always include the tenant and its namespaces, so that they never
match a pod of another tenant.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.names import LABEL_LIMIT, hashed_name, safe_label_value
from tapestry.kube.objects import Object, labels_of
from tapestry.syncer.translate.allowed_metadata import is_copied


def twin_label_key(key: str, binding: Binding) -> str:
    """Return the key that a label of a virtual pod has on its twin."""
    if is_copied("labels", key, binding):
        return key
    prefix, _, name = key.partition("/")
    readable = f"{prefix}_{name}"
    return keys.TENANT_LABEL_PREFIX + (readable if len(readable) <= LABEL_LIMIT else hashed_name(name, prefix, name))


def renamed_labels(pod: Object, binding: Binding) -> dict[str, str]:
    """Return the labels of a virtual pod that have other keys on its twin."""
    return {
        twin_label_key(key, binding): value
        for key, value in labels_of(pod).items()
        if not is_copied("labels", key, binding)
    }


def twin_match_labels(labels: Mapping[str, str], binding: Binding, namespace: str) -> dict[str, str]:
    """Return the labels that twins of the tenant's pods in a namespace have if the pods have `labels`."""
    renamed = {twin_label_key(key, binding): value for key, value in labels.items()}
    return {**renamed, **binding.owner_labels(), keys.VIRTUAL_NAMESPACE: safe_label_value(namespace)}


def twin_label_selector(selector: Object, binding: Binding, namespaces: Iterable[str] | None) -> Object:
    """Return the label selector of the twins of the pods that `selector` matches in these namespaces of the tenant.

    None stands for all namespaces. With no namespace at all, the selector matches nothing.
    """
    expressions: list[Any] = [
        {**each, "key": twin_label_key(each["key"], binding)} for each in selector.get("matchExpressions") or ()
    ]
    if namespaces is not None:
        values = sorted(map(safe_label_value, namespaces))
        # No namespace has the empty name.
        expressions.append({"key": keys.VIRTUAL_NAMESPACE, "operator": "In", "values": values or [""]})
    renamed = {twin_label_key(key, binding): value for key, value in (selector.get("matchLabels") or {}).items()}
    result: Object = {"matchLabels": {**renamed, **binding.owner_labels()}}
    return {**result, "matchExpressions": expressions} if expressions else result
