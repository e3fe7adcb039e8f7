"""Safeguards of join: mount namespace, Pod Security level, quota, network and volume policies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mount_labels import is_taken, safeguards_of, stricter_level
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.controller.testing import InProcessApi, run, running_clock, specimen
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, labels_of, name_of, object_named, with_value
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CRDS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from tapestry.manager.join_steps import Cluster, StepResult
from tapestry.manager.joining import Plan, account_name, join, policy_name
from tapestry.manager.safeguards import Safeguards, network_rules
from tapestry.manager.unjoining import unjoin

from .test_joining import (
    ACCESS,
    MOUNT,
    PHYSICAL,
    VIRTUAL,
    World,
    check_rejected,
    in_a_world,
    kinds_with_result,
    new_world,
)

ENFORCE = keys.POD_SECURITY_ENFORCE
DISKS = {"spec": {"allowedVolumes": {"drivers": ["disk.example"]}}}


async def mount_of(world: World, name: str = MOUNT) -> Object:
    return await world.physical.client.get(NAMESPACES, name)


async def label_of(world: World) -> str:
    return virtual_cluster_label(await world.uid())


async def two_worlds() -> tuple[World, World]:
    """Return two virtual clusters that share one physical cluster."""
    now = running_clock().now
    physical = InProcessApi(PHYSICAL, now=now)
    one = await new_world(InProcessApi(VIRTUAL, now=now), physical)
    other = World(InProcessApi(VIRTUAL, now=now), physical)
    await other.virtual.client.create(NAMESPACES, object_named("kube-system"))
    return one, other


async def bound_to(world: World) -> str:
    binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
    return str(binding["spec"]["mountNamespace"])


# -- one mount namespace for each virtual cluster


def test_join_labels_namespace_with_virtual_cluster() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        assert labels_of(await mount_of(world))[keys.VIRTUAL_CLUSTER] == await label_of(world)

    in_a_world(scenario)


def test_second_virtual_cluster_gets_another_namespace() -> None:
    async def main() -> None:
        one, other = await two_worlds()
        await one.join()
        steps = await other.join()
        chosen = f"{MOUNT}-{(await label_of(other))[:12]}"
        assert (await bound_to(one), await bound_to(other)) == (MOUNT, chosen)
        (left,) = (step for step in steps if step.result is StepResult.LEFT)
        assert (left.subject, chosen in left.note) == (f"Namespace {MOUNT}", True)
        assert labels_of(await mount_of(one))[keys.VIRTUAL_CLUSTER] == await label_of(one)
        again = await other.join()  # without naming it
        assert kinds_with_result(again, StepResult.CREATED) == []
        await one.unjoin()
        assert f"Namespace {chosen}" in await other.physical_objects()
        assert f"Namespace {MOUNT}" not in await other.physical_objects()
        await other.unjoin()
        assert await other.physical_objects() == []

    run(main())


def test_namespace_of_other_virtual_cluster_is_rejected() -> None:
    async def main() -> None:
        one, other = await two_worlds()
        await one.join()
        await check_rejected(other, "belongs to another virtual cluster", mount_namespace=MOUNT)

    run(main())


@pytest.mark.parametrize("resource", [PODS, SERVICE_ACCOUNTS])
def test_unlabelled_namespace_in_use_is_not_free(resource: Any) -> None:
    async def scenario(world: World) -> None:
        client = world.physical.client
        await client.create(NAMESPACES, object_named(MOUNT))
        theirs = with_value(specimen(resource, "x", MOUNT), ("metadata", "labels"), {keys.VIRTUAL_CLUSTER: "other"})
        await client.create(resource, theirs)
        await check_rejected(world, "contains objects of another virtual cluster", mount_namespace=MOUNT)
        await world.join()
        assert await bound_to(world) == f"{MOUNT}-{(await label_of(world))[:12]}"
        assert keys.VIRTUAL_CLUSTER not in labels_of(await mount_of(world))

    in_a_world(scenario)


def test_namespace_shared_before_stays_unlabelled() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await world.physical.client.patch(
            NAMESPACES, object_named(MOUNT), {"metadata": {"labels": {keys.VIRTUAL_CLUSTER: None}}}
        )
        theirs = with_value(specimen(PODS, "x", MOUNT), ("metadata", "labels"), {keys.VIRTUAL_CLUSTER: "other"})
        await world.physical.client.create(PODS, theirs)
        steps = await world.join()
        assert keys.VIRTUAL_CLUSTER not in labels_of(await mount_of(world))
        assert any("not labelled" in step.note for step in steps)
        await world.physical.client.delete(PODS, object_named("x", MOUNT), grace_seconds=0)
        await world.join()
        assert labels_of(await mount_of(world))[keys.VIRTUAL_CLUSTER] == await label_of(world)

    in_a_world(scenario)


def test_unjoin_removes_only_the_label_of_owner_namespace() -> None:
    async def scenario(world: World) -> None:
        labels = {"team": "owner", ENFORCE: "restricted"}
        await world.physical.client.create(NAMESPACES, {"metadata": {"name": MOUNT, "labels": labels}})
        await world.join()
        await world.unjoin()
        left = labels_of(await mount_of(world))
        assert left.items() >= labels.items()
        assert keys.VIRTUAL_CLUSTER not in left
        assert safeguards_of(await mount_of(world)) == frozenset()

    in_a_world(scenario)


def test_unlabelled_namespace_is_not_taken() -> None:
    marked = {"metadata": {"labels": {keys.VIRTUAL_CLUSTER: "one"}}}
    assert is_taken(marked, "other")
    assert not is_taken(marked, "one")
    assert not is_taken({"metadata": {}}, "one")
    assert not is_taken(None, "one")


# -- Pod Security


def test_join_enforces_baseline_by_default() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        assert labels_of(await mount_of(world))[ENFORCE] == "baseline"

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("has", "requested", "gets"),
    [
        ("privileged", None, "privileged"),
        ("restricted", None, "restricted"),
        ("restricted", "baseline", "restricted"),
        ("baseline", "privileged", "baseline"),
        ("baseline", "restricted", "restricted"),
        (None, "privileged", "privileged"),
        (None, "restricted", "restricted"),
    ],
)
def test_enforced_level_is_never_relaxed(has: str | None, requested: str | None, gets: str) -> None:
    async def scenario(world: World) -> None:
        labels = {ENFORCE: has} if has else {}
        await world.physical.client.create(NAMESPACES, {"metadata": {"name": MOUNT, "labels": labels}})
        steps = await world.join(safeguards=Safeguards(pod_security=requested))
        assert labels_of(await mount_of(world))[ENFORCE] == gets
        note = next(step.note for step in steps if step.subject == f"Namespace {MOUNT}")
        assert ("to relax it" in note) == (requested not in (None, gets))

    in_a_world(scenario)


def test_new_binding_is_as_strict_as_the_owner() -> None:
    async def scenario(world: World) -> None:
        await world.join(safeguards=Safeguards(pod_security="restricted"))
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert binding["spec"]["podSecurity"] == "restricted"
        await world.virtual.client.patch(CLUSTER_BINDINGS, object_named("east"), {"spec": {"podSecurity": "baseline"}})
        await world.join()
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert binding["spec"]["podSecurity"] == "baseline"  # the operator's choice: a condition reports it

    in_a_world(scenario)


def test_stricter_of_two_levels() -> None:
    assert stricter_level("privileged", "baseline") == "baseline"
    assert stricter_level("restricted", "baseline") == "restricted"
    assert stricter_level("privileged", None) == "privileged"


# -- quota and network policy


async def hard(world: World) -> Object | None:
    found = await world.physical.client.find(RESOURCE_QUOTAS, policy_name(await world.uid(), "east"), MOUNT)
    return found["spec"]["hard"] if found is not None else None


async def divided(world: World) -> dict[str, Any]:
    """Return the total limits of the policy, which are divided among the nodes."""
    policy = await world.physical.client.get(POLICIES, policy_name(await world.uid(), "east"))
    return {each["resource"]: each["quantity"] for each in policy["spec"].get("totalLimits", ())}


def test_limits_become_a_quota_that_later_runs_change() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        assert (await hard(world), await divided(world)) == (None, {})
        await world.join(safeguards=Safeguards(max_cpu="2000m", max_memory="4Gi", max_pods="10"))
        assert await hard(world) == {"requests.cpu": "2", "requests.memory": "4Gi", "pods": "10"}
        assert await divided(world) == {"cpu": "2", "memory": "4Gi", "pods": "10"}
        unchanged = kinds_with_result(await world.join(), StepResult.UNCHANGED)
        assert {"ResourceQuota", "ResourceLeasingPolicy"} <= set(unchanged)
        await world.join(safeguards=Safeguards(max_cpu="3", max_pods="none"))
        assert await hard(world) == {"requests.cpu": "3", "requests.memory": "4Gi"}
        assert await divided(world) == {"cpu": "3", "memory": "4Gi"}
        await world.join(safeguards=Safeguards(max_cpu="none", max_memory="none"))
        assert (await hard(world), await divided(world)) == (None, {})

    in_a_world(scenario)


def test_limits_of_first_join_are_divided_among_nodes() -> None:
    async def scenario(world: World) -> None:
        await world.join(safeguards=Safeguards(max_pods="10"))
        name = policy_name(await world.uid(), "east")
        gpus = {"resource": "nvidia.com/gpu", "quantity": 8}
        limits = [{"resource": "pods", "quantity": "10"}, gpus]
        await world.physical.client.patch(POLICIES, object_named(name), {"spec": {"totalLimits": limits}})
        await world.join(safeguards=Safeguards(max_pods="5"))
        assert await divided(world) == {"pods": "5", "nvidia.com/gpu": 8}

    in_a_world(scenario)


def test_policy_of_the_owner_keeps_its_total_limits() -> None:
    async def scenario(world: World) -> None:
        await world.physical.client.create(CRDS, crd(POLICY))
        spec = {"cluster": "east", "resourceLimits": [{"resource": "cpu", "percent": 10}]}
        await world.physical.client.create(POLICIES, {"metadata": {"name": "mine"}, "spec": spec})
        steps = await world.join(safeguards=Safeguards(max_pods="10"))
        [note] = [each.note for each in steps if each.subject == "ResourceLeasingPolicy mine"]
        assert note == "determines what is leased; set its totalLimits too, so that the virtual nodes show the totals"
        assert (await world.physical.client.get(POLICIES, "mine"))["spec"]["totalLimits"] == []
        assert await hard(world) == {"pods": "10"}

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("requested", "option"),
    [
        (Safeguards(max_cpu="many"), "--max-cpu"),
        (Safeguards(max_memory="-1Gi"), "--max-memory"),
        (Safeguards(max_pods="1500m"), "--max-pods"),
        (Safeguards(pod_security="lax"), "--pod-security"),
    ],
)
def test_invalid_safeguard_names_its_option(requested: Safeguards, option: str) -> None:
    in_a_world(lambda world: check_rejected(world, option, safeguards=requested))


async def network_policy(world: World) -> Object | None:
    found = await world.physical.client.find(NETWORK_POLICIES, policy_name(await world.uid(), "east"), MOUNT)
    return found["spec"] if found is not None else None


def test_pods_are_isolated_from_namespaces_and_metadata_service() -> None:
    async def scenario(world: World) -> None:
        await world.join(safeguards=Safeguards(ingress_from=("monitoring",)))
        spec = await network_policy(world)
        assert spec is not None
        assert spec["podSelector"] == {}
        own, named_ones = spec["ingress"][0]["from"]
        assert own == {"podSelector": {}}
        assert named_ones["namespaceSelector"]["matchExpressions"][0]["values"] == ["monitoring"]
        blocks = [each["ipBlock"] for each in spec["egress"][0]["to"] if "ipBlock" in each]
        assert {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]} in blocks

    in_a_world(scenario)


def test_network_policy_stays_until_changed() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        name = policy_name(await world.uid(), "east")
        opened = {"spec": {"ingress": [{}]}}
        await world.physical.client.patch(NETWORK_POLICIES, object_named(name, MOUNT), opened)
        assert "NetworkPolicy" in kinds_with_result(await world.join(), StepResult.UNCHANGED)
        await world.join(safeguards=Safeguards(ingress_from=("a",)))
        assert await network_policy(world) == network_rules(("a",))

    in_a_world(scenario)


def test_declined_network_policy_is_not_recreated() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await world.join(safeguards=Safeguards(network_policy=False))
        assert await network_policy(world) is None
        await world.join()
        assert await network_policy(world) is None
        await world.join(safeguards=Safeguards(network_policy=True))
        assert await network_policy(world) is not None

    in_a_world(scenario)


# -- exec, attach and port-forward


def test_declined_exec_stays_declined_until_it_is_allowed() -> None:
    async def scenario(world: World) -> None:
        async def granted() -> set[str]:
            role = await world.physical.client.get(ROLES, account_name(await world.uid(), "east"), MOUNT)
            rules = [rule for rule in role["rules"] if rule["verbs"] == ["create", "get"]]
            return {resource for rule in rules for resource in rule["resources"]}

        streams = {"pods/exec", "pods/attach", "pods/portforward"}
        for requested, expected in ((None, streams), (False, set()), (None, set()), (True, streams), (None, streams)):
            await world.join(safeguards=Safeguards(streams=requested))
            assert await granted() == expected
            assert ("no-exec" in safeguards_of(await mount_of(world))) == (not expected)

    in_a_world(scenario)


# -- volumes


def test_volume_policies_exist_while_permissions_do() -> None:
    async def scenario(world: World) -> None:
        client = world.physical.client
        await world.join()
        (policy,) = await client.list(ADMISSION_POLICIES)
        assert name_of(policy).endswith("-pods")
        await world.virtual.client.patch(CLUSTER_BINDINGS, object_named("east"), DISKS)
        await world.join()
        assert any("allows volumes of disk.example" in step.note for step in world.steps)
        steps = [
            step.subject.split()[0] for step in world.steps if step.result in (StepResult.CREATED, StepResult.UPDATED)
        ]
        assert steps.index("ValidatingAdmissionPolicyBinding") < steps.index("ClusterRole")
        assert len(await client.list(ADMISSION_POLICIES)) == 3
        assert len(await client.list(ADMISSION_POLICY_BINDINGS)) == 5
        assert kinds_with_result(await world.join(), StepResult.CREATED) == []
        none = {"spec": {"allowedVolumes": None}}
        await world.virtual.client.patch(CLUSTER_BINDINGS, object_named("east"), none)
        steps = [
            step.subject.split()[0]
            for step in await world.join()
            if step.result in (StepResult.DELETED, StepResult.UPDATED)
        ]
        assert steps.index("ClusterRole") < steps.index("ValidatingAdmissionPolicyBinding")
        assert await client.list(ADMISSION_POLICIES) == [policy]

    in_a_world(scenario)


def test_privileged_pods_may_use_any_volume() -> None:
    async def scenario(world: World) -> None:
        await world.join(safeguards=Safeguards(pod_security="privileged"))
        assert await world.physical.client.list(ADMISSION_POLICIES) == []
        await world.join(safeguards=Safeguards(pod_security="baseline"))
        assert len(await world.physical.client.list(ADMISSION_POLICIES)) == 1

    in_a_world(scenario)


def test_without_admission_policies_volumes_need_trust() -> None:
    async def main() -> None:
        now = running_clock().now
        kinds = [each for each in PHYSICAL if each.group != ADMISSION_POLICIES.group]
        world = await new_world(InProcessApi(VIRTUAL, now=now), InProcessApi(kinds, now=now))
        await world.join()
        await world.virtual.client.patch(CLUSTER_BINDINGS, object_named("east"), DISKS)
        await check_rejected(world, "use --trust-volumes")
        await world.join(safeguards=Safeguards(trust_volumes=True))
        assert "Namespace" in kinds_with_result(await world.unjoin(), StepResult.DELETED)

    run(main())


# -- interrupted runs


class Killed(Exception):
    """The joining process was killed."""


@dataclass
class DyingTransport:
    """A transport of a process that dies right after some writes."""

    transport: Transport
    writes: list[int]

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            return await self.transport.send(request)
        if self.writes[0] == 0:
            raise Killed
        self.writes[0] -= 1
        return await self.transport.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with self.transport.stream(request) as stream:
            yield stream

    def abort(self) -> None:
        self.transport.abort()

    async def close(self) -> None:
        await self.transport.close()


ALL = Safeguards(pod_security="restricted", max_cpu="4", max_pods="10", ingress_from=("a",))


def dying_clusters(world: World, writes: list[int]) -> tuple[Cluster, Cluster]:
    apis = {"virtual": world.virtual_api, "physical": world.physical_api}
    above, below = (Cluster(word, Client(DyingTransport(api.connect(), writes)), print) for word, api in apis.items())
    return above, below


async def joined_until(world: World, writes: int) -> bool:
    """Join with a process that dies after that many writes.  Return whether it completed."""
    plan = Plan("east", "east", safeguards=ALL)
    connect = lambda _: world.physical_api.connect()  # noqa: E731
    try:
        await join(plan, *dying_clusters(world, [writes]), ACCESS, connect=connect, now=running_clock().now())
    except Killed:
        return False
    return True


def without_versions(objects: list[Object]) -> list[Object]:
    """Return the objects without fields that differ between runs: identities, versions, tokens."""
    comparable = []
    for obj in objects:
        metadata = {key: obj["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")}
        comparable.append(
            {"kind": obj.get("kind"), "metadata": metadata, "spec": obj.get("spec"), "rules": obj.get("rules")}
        )
    return [each for each in comparable if each["kind"] != "Secret"]


async def new_joined_world(interrupted_after: int | None) -> tuple[World, bool]:
    now = running_clock().now
    world = await new_world(InProcessApi(VIRTUAL, now=now, seed=1), InProcessApi(PHYSICAL, now=now, seed=2))
    await world.virtual.client.create(CLUSTER_BINDINGS, {**object_named("east"), "spec": BOUND})
    done = interrupted_after is not None and await joined_until(world, interrupted_after)
    if not done:
        await world.join(safeguards=ALL)
    return world, done


BOUND = {
    "clusterID": "east",
    "secretRef": {"name": "east", "namespace": keys.SYSTEM_NAMESPACE},
    "mountNamespace": MOUNT,
    "disableNodeDefaultTaint": True,
    **DISKS["spec"],
}


def test_interrupted_join_is_completed_by_the_next() -> None:
    async def main() -> None:
        clean, _ = await new_joined_world(None)
        wanted = without_versions(clean.physical_api.dump())
        for writes in range(60):
            world, done = await new_joined_world(writes)
            assert without_versions(world.physical_api.dump()) == wanted, f"killed after {writes} writes"
            if done:
                assert writes > 15
                return
        raise AssertionError("it never came to an end")

    run(main())


def test_interrupted_unjoin_is_completed_by_the_next() -> None:
    async def main() -> None:
        for writes in range(60):
            world, _ = await new_joined_world(None)
            try:
                await unjoin("east", *dying_clusters(world, [writes]))
                assert writes > 10
                return
            except Killed:
                await world.unjoin()
            assert await world.physical_objects() == [], f"killed after {writes} writes"
            assert [name_of(node) for node in await world.physical.client.list(NODES)] == ["n1"]
        raise AssertionError("it never came to an end")

    run(main())
