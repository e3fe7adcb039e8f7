"""The default RBAC roles of Kubernetes, from published data (tools/role_tables.py).

Each start adds missing rules, subjects and labels. Additions by users are kept, and objects with the annotation
`rbac.authorization.kubernetes.io/autoupdate: "false"` are not changed.
"""

import gzip
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from tapestry.apiserver.access.rbac import GROUP, ParsedObjects, PolicyRule, rules_of, uncovered_rules
from tapestry.apiserver.access.role_aggregation import aggregated_rules
from tapestry.apiserver.core.store import Key, Store
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of

DATA_FILE = "roles.json.gz"
CLUSTER_ROLES = f"clusterroles.{GROUP}"
BOOTSTRAP_CHECK = "poststarthook/rbac/bootstrap-roles"
"""Name of the health check, as in Kubernetes."""
AUTOUPDATE_ANNOTATION = "rbac.authorization.kubernetes.io/autoupdate"


@cache
def bootstrap_objects() -> Mapping[Key, Object]:
    """Return all bootstrap objects, which the servers of a process share.

    Aggregated roles have no rules.
    """
    raw = gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", DATA_FILE).read_bytes())
    data = msgspec.json.decode(raw)
    common, result = data["common"], {}
    for plural, objects in data["objects"].items():
        for obj in objects:
            metadata = obj["metadata"]
            added = {field: {**values, **metadata.get(field, {})} for field, values in common.items()}
            key = Key(f"{plural}.{GROUP}", metadata.get("namespace", ""), metadata["name"])
            result[key] = {**obj, "metadata": {**metadata, **added}}
    return result


@cache
def initial_objects() -> Mapping[Key, Object]:
    """Return the bootstrap objects as they are created: aggregated roles have their rules."""
    result = dict(bootstrap_objects())
    is_complete = False
    while not is_complete:  # an aggregated role may be part of another one
        is_complete = True
        roles = [each for key, each in result.items() if key.resource == CLUSTER_ROLES]
        for role in roles:
            if "aggregationRule" in role and (rules := aggregated_rules(role, roles)) != role.get("rules"):
                result[Key(CLUSTER_ROLES, "", name_of(role))] = {**role, "rules": rules}
                is_complete = False
    return result


@cache
def parsed_bootstrap_objects() -> ParsedObjects:
    """Return the rules and grants of all bootstrap objects as they are created."""
    parsed = ParsedObjects()
    for key, obj in initial_objects().items():
        parsed.add(key, msgspec.json.encode(obj))
    return parsed


def reconciled_object(existing: Object, desired: Object) -> Object | None:
    """Return `existing` with missing parts of `desired` added: itself if unchanged, None if it must be recreated."""
    if annotations_of(existing).get(AUTOUPDATE_ANNOTATION) == "false":
        return existing
    if existing.get("roleRef") != desired.get("roleRef"):
        return None
    metadata = {
        **existing["metadata"],
        "annotations": {**annotations_of(desired), **annotations_of(existing)},
        "labels": {**labels_of(desired), **labels_of(existing)},
    }
    result = {**existing, "metadata": metadata}
    if missing := [each for each in desired.get("subjects", ()) if each not in (existing.get("subjects") or ())]:
        result["subjects"] = [*(existing.get("subjects") or ()), *missing]
    if existing.get("rules") != desired.get("rules"):
        rules = [rule_object(each) for each in uncovered_rules(rules_of(desired), rules_of(existing))]
        result |= {"rules": [*(existing.get("rules") or ()), *rules]} if rules else {}
    if selectors := merged_selectors(existing, desired):
        result["aggregationRule"] = {"clusterRoleSelectors": selectors}
    if "aggregationRule" in existing and "aggregationRule" not in desired:
        result = {key: value for key, value in result.items() if key != "aggregationRule"}
    return existing if result == existing else result


def merged_selectors(existing: Object, desired: Object) -> list[Any]:
    """Return the selectors of both, or nothing if `existing` lacks none."""
    current, required = selectors_of(existing), selectors_of(desired)
    missing = [each for each in required if each not in current]
    return [*current, *missing] if missing else []


def selectors_of(role: Object) -> list[Any]:
    return (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []


def rule_object(rule: PolicyRule) -> Object:
    fields = {
        "apiGroups": rule.groups,
        "resources": rule.resources,
        "resourceNames": rule.names,
        "nonResourceURLs": rule.paths,
        "verbs": rule.verbs,
    }
    return {name: list(values) for name, values in fields.items() if values}


async def check_bootstrap_roles(store: Store) -> str | None:
    """Return an error message for the health check until the roles are installed."""
    return None if store.count(CLUSTER_ROLES) else "the roles are not installed yet"
