"""Tests of ClusterRole aggregation."""

from typing import Any

from tapestry.apiserver.access.role_aggregation import aggregated_rules
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object
from tapestry.kube.resources import CLUSTER_ROLES

from .conftest import RunControllers


def new_role(name: str, *verbs: str, selects: list[Object] | None = None, **labels: str) -> Object:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]} for verb in verbs]
    role: Object = {"metadata": {"name": name, "labels": labels}, "rules": rules}
    return {**role, "aggregationRule": {"clusterRoleSelectors": selects}} if selects is not None else role


def verbs_of(rules: list[Any]) -> list[str]:
    return [verb for rule in rules for verb in rule["verbs"]]


def test_rules_are_ordered_and_unique() -> None:
    others = [
        new_role("b", "list", team="red"),
        new_role("a", "get", "watch", team="red"),
        new_role("c", "get", team="blue"),
    ]
    whole = new_role("all", "delete", selects=[{"matchLabels": {"team": "blue"}}, {"matchLabels": {"team": "red"}}])
    assert verbs_of(aggregated_rules(whole, [*others, whole])) == ["get", "watch", "list"]


def test_role_excludes_itself_and_needs_selectors() -> None:
    own = new_role("own", "get", selects=[{"matchLabels": {"team": "red"}}], team="red")
    assert aggregated_rules(own, [own]) == []
    assert aggregated_rules(new_role("none", selects=[]), [new_role("a", "get")]) == []


async def test_default_user_roles_are_created_with_their_rules(client: Client, run_controllers: RunControllers) -> None:
    created = [await client.get(CLUSTER_ROLES, name) for name in ("view", "edit", "admin")]
    assert all(each["rules"] for each in created)
    async with run_controllers("roles"):
        await client.create(CLUSTER_ROLES, new_role("part", "get", team="red"))
        await client.create(CLUSTER_ROLES, new_role("whole", selects=[{"matchLabels": {"team": "red"}}]))
        assert await wait_for(
            client, CLUSTER_ROLES, "whole", until=lambda role: bool(role and role.get("rules")), timeout=10
        )
        assert [await client.get(CLUSTER_ROLES, each["metadata"]["name"]) for each in created] == created


async def test_aggregated_role_follows_selected_roles(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("roles"):
        await client.create(CLUSTER_ROLES, new_role("whole", selects=[{"matchLabels": {"team": "red"}}]))
        part = await client.create(CLUSTER_ROLES, new_role("part", "get", team="red"))

        async def wait_for_verbs(*verbs: str) -> None:
            assert await wait_for(
                client,
                CLUSTER_ROLES,
                "whole",
                until=lambda role: role is not None and verbs_of(role.get("rules") or []) == list(verbs),
                timeout=10,
            )

        await wait_for_verbs("get")
        part = await client.patch(CLUSTER_ROLES, part, {"rules": new_role("part", "get", "list")["rules"]})
        await wait_for_verbs("get", "list")
        await client.delete(CLUSTER_ROLES, part)
        await wait_for_verbs()
