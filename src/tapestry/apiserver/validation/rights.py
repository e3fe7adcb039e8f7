"""Roles, and to whom they are bound."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import Rule, every, invalid, matching, required, struct, unsupported
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.kube.objects import Object

GROUP = "rbac.authorization.k8s.io"


def policy_rule(*, in_namespace: bool) -> Rule:
    def faults(value: Any, path: str) -> Iterator[Fault]:
        if not value.get("verbs"):
            yield required(f"{path}.verbs", "verbs must contain at least one value")
        if urls := value.get("nonResourceURLs"):
            if in_namespace:
                yield invalid(f"{path}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
            if any(value.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                why = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid(f"{path}.nonResourceURLs", urls, why)
            return
        if not value.get("apiGroups"):
            yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not value.get("resources"):
            yield required(f"{path}.resources", "resource rules must supply at least one resource")

    return faults


def aggregation(value: Any, path: str) -> Iterator[Fault]:
    at = f"{path}.clusterRoleSelectors"
    if not value.get("clusterRoleSelectors"):
        yield required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    yield from every(label_selector)(value.get("clusterRoleSelectors") or (), at)


role = struct(("rules", every(policy_rule(in_namespace=True))))
cluster_role = struct(("rules", every(policy_rule(in_namespace=False))), ("aggregationRule", aggregation))


def subject(value: Any, path: str, *, in_namespace: bool) -> Iterator[Fault]:
    kind, name, group = value.get("kind", ""), value.get("name", ""), value.get("apiGroup", "")
    if not name:
        yield required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            yield from matching(names.subdomain)(name, f"{path}.name")
        if group:
            yield unsupported(f"{path}.apiGroup", group, ("",))
        if not in_namespace and not value.get("namespace"):
            yield required(f"{path}.namespace")
    elif kind not in ("User", "Group"):
        yield unsupported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group"))
    elif group != GROUP:
        yield unsupported(f"{path}.apiGroup", group, (GROUP,))


def binding(*kinds: str) -> Rule:
    """A rule for bindings that may refer to roles of these kinds."""
    in_namespace = len(kinds) > 1

    def faults(obj: Any, _: str) -> Iterator[Fault]:
        reference = obj.get("roleRef") or {}
        if reference.get("apiGroup") != GROUP:
            yield unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), (GROUP,))
        if reference.get("kind") not in kinds:
            yield unsupported("roleRef.kind", reference.get("kind", ""), kinds)
        if not reference.get("name"):
            yield required("roleRef.name")
        else:
            yield from matching(names.path_segment)(reference["name"], "roleRef.name")
        for number, each in enumerate(obj.get("subjects") or ()):
            yield from subject(each, f"subjects[{number}]", in_namespace=in_namespace)

    return faults


role_binding, cluster_role_binding = binding("Role", "ClusterRole"), binding("ClusterRole")


def changed_binding(rule: Rule) -> Callable[[Object, Object], Iterator[Fault]]:
    def faults(old: Object, new: Object) -> Iterator[Fault]:
        yield from rule(new, "")
        if old.get("roleRef") != new.get("roleRef"):
            reference = new.get("roleRef") or {}
            shown = {
                "APIGroup": reference.get("apiGroup"),
                "Kind": reference.get("kind"),
                "Name": reference.get("name"),
            }
            yield invalid("roleRef", shown, "cannot change roleRef")

    return faults
