"""The roles that a server is born with: Kubernetes' own, out of published data (tools/role_tables.py).

At every start they are put right where they lack something: rules, subjects, labels.  What somebody added stays, and an
object whose annotation `rbac.authorization.kubernetes.io/autoupdate` says "false" is left alone altogether.
"""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from typing import Any

import msgspec

from tapestry.apiserver import writes
from tapestry.apiserver.access.rbac import GROUP, PolicyRule, rules_of, uncovered_rules
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Store, VersionConflict
from tapestry.apiserver.verbs import Verbs, encode_for_storage
from tapestry.kube.objects import Object, annotations_of, labels_of

DATA_FILE = "roles.json.gz"
BOOTSTRAP_CHECK = "poststarthook/rbac/bootstrap-roles"
"""What Kubernetes calls the check whether they are there."""
AUTOUPDATE_ANNOTATION = "rbac.authorization.kubernetes.io/autoupdate"


def bootstrap_objects() -> Iterator[tuple[str, Object]]:
    """Every object there should be, under the plural of its kind."""
    raw = gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", DATA_FILE).read_bytes())
    data = msgspec.json.decode(raw)
    common = data["common"]
    for plural, objects in data["objects"].items():
        for obj in objects:
            metadata = obj["metadata"]
            added = {field: {**values, **metadata.get(field, {})} for field, values in common.items()}
            yield plural, {**obj, "metadata": {**metadata, **added}}


def reconciled_object(existing: Object, desired: Object) -> Object | None:
    """`existing` with what it lacks of `wanted`; itself where that is nothing, None where it must be made anew."""
    if annotations_of(existing).get(AUTOUPDATE_ANNOTATION) == "false":
        return existing
    if existing.get("roleRef") != desired.get("roleRef"):
        return None
    metadata = {
        **existing["metadata"],
        "annotations": {**annotations_of(desired), **annotations_of(existing)},
        "labels": {**labels_of(desired), **labels_of(existing)},
    }
    found = {**existing, "metadata": metadata}
    if lacking := [each for each in desired.get("subjects", ()) if each not in (existing.get("subjects") or ())]:
        found["subjects"] = [*(existing.get("subjects") or ()), *lacking]
    if existing.get("rules") != desired.get("rules"):
        rules = [rule_object(each) for each in uncovered_rules(rules_of(desired), rules_of(existing))]
        found |= {"rules": [*(existing.get("rules") or ()), *rules]} if rules else {}
    if selectors := merged_selectors(existing, desired):
        found["aggregationRule"] = {"clusterRoleSelectors": selectors}
    if "aggregationRule" in existing and "aggregationRule" not in desired:
        found = {key: value for key, value in found.items() if key != "aggregationRule"}
    return existing if found == existing else found


def merged_selectors(existing: Object, desired: Object) -> list[Any]:
    """The selectors of both, where `existing` lacks one."""
    there, due = selectors_of(existing), selectors_of(desired)
    lacking = [each for each in due if each not in there]
    return [*there, *lacking] if lacking else []


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
    """A check of health: what is wrong, if they are not there."""
    return None if store.count(f"clusterroles.{GROUP}") else "the roles are not installed yet"


async def install(verbs: Verbs, infos: dict[str, ResourceInfo]) -> None:
    """Have all of them; what is as it should be is not written again.  `rows` are those of the four kinds."""
    async with asyncio.TaskGroup() as group:
        for plural, wanted in bootstrap_objects():
            group.create_task(ensure_unless_stale(verbs, infos[plural], wanted))


async def ensure_unless_stale(verbs: Verbs, info: ResourceInfo, desired: Object) -> None:
    with suppress(VersionConflict):  # another server on the same storage does so at this moment
        await ensure_object(verbs, info, desired)


async def ensure_object(verbs: Verbs, info: ResourceInfo, desired: Object) -> None:
    """Written past the pipeline: the data is complete, and a hundred objects must not delay the start."""
    metadata = desired["metadata"]
    key = Key(f"{info.resource.plural}.{GROUP}", metadata.get("namespace", ""), metadata["name"])
    version = verbs.store.get(*key)
    if version is not None:
        existing: Object = msgspec.json.decode(version.raw)
        found = reconciled_object(existing, desired)
        if found is existing:
            return
        if found is not None:
            await verbs.store.put(key, version, encode_for_storage(info, found))
            return
        await verbs.store.delete(key, version, encode_for_storage(info, existing))
    kind = {"apiVersion": info.resource.api_version, "kind": info.resource.kind}
    made = writes.created_object(info, {**kind, **desired}, uid=verbs.new_uid(), now=verbs.now())
    await verbs.store.put(key, None, encode_for_storage(info, made))
