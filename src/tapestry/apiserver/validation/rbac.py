"""Validation of roles and role bindings."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    format_validator,
    invalid_value,
    item_validator,
    required_value,
    struct_validator,
    unsupported_value,
)
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.kube.objects import Object

RBAC_GROUP = "rbac.authorization.k8s.io"


def policy_rule_validator(*, is_namespaced: bool) -> Validator:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        if not value.get("verbs"):
            yield required_value(f"{path}.verbs", "verbs must contain at least one value")
        if urls := value.get("nonResourceURLs"):
            if is_namespaced:
                yield invalid_value(
                    f"{path}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs"
                )
            if any(value.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                msg = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid_value(f"{path}.nonResourceURLs", urls, msg)
            return
        if not value.get("apiGroups"):
            yield required_value(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not value.get("resources"):
            yield required_value(f"{path}.resources", "resource rules must supply at least one resource")

    return faults


def validate_aggregation_rule(value: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.clusterRoleSelectors"
    if not value.get("clusterRoleSelectors"):
        yield required_value(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    yield from item_validator(validate_label_selector)(value.get("clusterRoleSelectors") or (), at)


validate_role = struct_validator(("rules", item_validator(policy_rule_validator(is_namespaced=True))))
validate_cluster_role = struct_validator(
    ("rules", item_validator(policy_rule_validator(is_namespaced=False))),
    ("aggregationRule", validate_aggregation_rule),
)


def validate_subject(value: Any, path: str, *, is_namespaced: bool) -> Iterator[Fault]:
    kind, name, group = value.get("kind", ""), value.get("name", ""), value.get("apiGroup", "")
    if not name:
        yield required_value(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            yield from format_validator(names.dns_subdomain_errors)(name, f"{path}.name")
        if group:
            yield unsupported_value(f"{path}.apiGroup", group, ("",))
        if not is_namespaced and not value.get("namespace"):
            yield required_value(f"{path}.namespace")
    elif kind not in ("User", "Group"):
        yield unsupported_value(f"{path}.kind", kind, ("ServiceAccount", "User", "Group"))
    elif group != RBAC_GROUP:
        yield unsupported_value(f"{path}.apiGroup", group, (RBAC_GROUP,))


def binding_validator(*kinds: str) -> Validator:
    """Return a validator for bindings whose roleRef may have these kinds."""
    in_namespace = len(kinds) > 1

    def faults(obj: Any, _: str) -> Iterator[Fault]:
        reference = obj.get("roleRef") or {}
        if reference.get("apiGroup") != RBAC_GROUP:
            yield unsupported_value("roleRef.apiGroup", reference.get("apiGroup", ""), (RBAC_GROUP,))
        if reference.get("kind") not in kinds:
            yield unsupported_value("roleRef.kind", reference.get("kind", ""), kinds)
        if not reference.get("name"):
            yield required_value("roleRef.name")
        else:
            yield from format_validator(names.path_segment_errors)(reference["name"], "roleRef.name")
        for number, each in enumerate(obj.get("subjects") or ()):
            yield from validate_subject(each, f"subjects[{number}]", is_namespaced=in_namespace)

    return faults


validate_role_binding, validate_cluster_role_binding = (
    binding_validator("Role", "ClusterRole"),
    binding_validator("ClusterRole"),
)


def binding_update_validator(validator: Validator) -> Callable[[Object, Object], Iterator[Fault]]:
    def faults(old: Object, new: Object) -> Iterator[Fault]:
        yield from validator(new, "")
        if old.get("roleRef") != new.get("roleRef"):
            reference = new.get("roleRef") or {}
            reported = {
                "APIGroup": reference.get("apiGroup"),
                "Kind": reference.get("kind"),
                "Name": reference.get("name"),
            }
            yield invalid_value("roleRef", reported, "cannot change roleRef")

    return faults
