"""Pod selectors of twins: they always include the tenant and the namespace of the virtual object."""

from collections.abc import Callable

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, namespace_of, value_at
from tapestry.kube.patches import exact_map_patch
from tapestry.syncer.translate.tenant_labels import twin_label_selector


def own_selector(selector: Object, obj: Object, binding: Binding) -> Object:
    """Return the selector of the twins of the pods that `selector` matches in the namespace of `obj`."""
    return twin_label_selector(selector, binding, [namespace_of(obj) or ""])


def with_exact_selector(field: str) -> Callable[[Object, Object], Object]:
    """Return a function that removes what the selector in a spec field of an existing twin has beyond the desired."""

    def with_exact(desired: Object, existing: Object) -> Object:
        selector, former = desired["spec"][field], value_at(existing, "spec", field, default={})
        exact = {
            "matchLabels": exact_map_patch(former.get("matchLabels"), selector["matchLabels"]),
            "matchExpressions": selector.get("matchExpressions"),
        }
        return {**desired, "spec": {**desired["spec"], field: exact}}

    return with_exact
