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
from tapestry.apiserver.access.rbac import GROUP, Rule, rules_of, uncovered
from tapestry.apiserver.rows import Row
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Stale, Store
from tapestry.apiserver.verbs import Verbs, making
from tapestry.kube.objects import Object, annotations_of, labels_of

DATA = "roles.json.gz"
BOOTSTRAPPED = "poststarthook/rbac/bootstrap-roles"
"""What Kubernetes calls the check whether they are there."""
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"


def expected() -> Iterator[tuple[str, Object]]:
    """Every object there should be, under the plural of its kind."""
    raw = gzip.decompress(resources.files("tapestry.apiserver").joinpath("data", DATA).read_bytes())
    data = msgspec.json.decode(raw)
    common = data["common"]
    for plural, objects in data["objects"].items():
        for obj in objects:
            metadata = obj["metadata"]
            added = {field: {**values, **metadata.get(field, {})} for field, values in common.items()}
            yield plural, {**obj, "metadata": {**metadata, **added}}


def reconciled(existing: Object, wanted: Object) -> Object | None:
    """`existing` with what it lacks of `wanted`; itself where that is nothing, None where it must be made anew."""
    if annotations_of(existing).get(AUTOUPDATE) == "false":
        return existing
    if existing.get("roleRef") != wanted.get("roleRef"):
        return None
    metadata = {
        **existing["metadata"],
        "annotations": {**annotations_of(wanted), **annotations_of(existing)},
        "labels": {**labels_of(wanted), **labels_of(existing)},
    }
    found = {**existing, "metadata": metadata}
    if lacking := [each for each in wanted.get("subjects", ()) if each not in (existing.get("subjects") or ())]:
        found["subjects"] = [*(existing.get("subjects") or ()), *lacking]
    if existing.get("rules") != wanted.get("rules"):
        rules = [rule_object(each) for each in uncovered(rules_of(wanted), rules_of(existing))]
        found |= {"rules": [*(existing.get("rules") or ()), *rules]} if rules else {}
    if selectors := lacking_selectors(existing, wanted):
        found["aggregationRule"] = {"clusterRoleSelectors": selectors}
    if "aggregationRule" in existing and "aggregationRule" not in wanted:
        found = {key: value for key, value in found.items() if key != "aggregationRule"}
    return existing if found == existing else found


def lacking_selectors(existing: Object, wanted: Object) -> list[Any]:
    """The selectors of both, where `existing` lacks one."""
    there, due = selectors_of(existing), selectors_of(wanted)
    lacking = [each for each in due if each not in there]
    return [*there, *lacking] if lacking else []


def selectors_of(role: Object) -> list[Any]:
    return (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or []


def rule_object(rule: Rule) -> Object:
    fields = {
        "apiGroups": rule.groups,
        "resources": rule.resources,
        "resourceNames": rule.names,
        "nonResourceURLs": rule.paths,
        "verbs": rule.verbs,
    }
    return {name: list(values) for name, values in fields.items() if values}


async def has_roles(store: Store) -> str | None:
    """A check of health: what is wrong, if they are not there."""
    return None if store.count(f"clusterroles.{GROUP}") else "the roles are not installed yet"


async def install(verbs: Verbs, rows: dict[str, Row]) -> None:
    """Have all of them; what is as it should be is not written again.  `rows` are those of the four kinds."""
    async with asyncio.TaskGroup() as group:
        for plural, wanted in expected():
            group.create_task(have_in_turn(verbs, rows[plural], wanted))


async def have_in_turn(verbs: Verbs, row: Row, wanted: Object) -> None:
    with suppress(Stale):  # another server on the same storage does so at this moment
        await have(verbs, row, wanted)


async def have(verbs: Verbs, row: Row, wanted: Object) -> None:
    """Written past the pipeline: the data is complete, and a hundred objects must not delay the start."""
    metadata = wanted["metadata"]
    key = Key(f"{row.resource.plural}.{GROUP}", metadata.get("namespace", ""), metadata["name"])
    version = verbs.store.get(*key)
    if version is not None:
        existing: Object = msgspec.json.decode(version.raw)
        found = reconciled(existing, wanted)
        if found is existing:
            return
        if found is not None:
            await verbs.store.put(key, version, making(row, found))
            return
        await verbs.store.delete(key, version, making(row, existing))
    kind = {"apiVersion": row.resource.api_version, "kind": row.resource.kind}
    made = writes.created(row, {**kind, **wanted}, uid=verbs.uid(), now=verbs.now())
    await verbs.store.put(key, None, making(row, made))
