"""Roles of syncers: nodes of a binding by name, and what the pods on them use."""

import asyncio
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import AllowedVolumes, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, specimen
from tapestry.kube.objects import Object, object_named, uid_of, with_value
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
)
from tapestry.manager.admission_policies import admission_policies
from tapestry.manager.grants import DELETED_NODE_SECONDS, secrets_of_volume
from tapestry.manager.pod_needs import REVOCATION_DELAY

from .conftest import VIRTUAL

World = Any  # of conftest.py
NODE = "vnode-east-a"
ACCOUNT = {"kind": "ServiceAccount", "name": "tapestry-syncer-east", "namespace": "tapestry-system"}
DELAY = REVOCATION_DELAY.total_seconds() + 1


def secret(name: str) -> Object:
    return {"name": name, "secret": {"secretName": name}}


async def add_node(world: World, binding: Object, name: str = NODE) -> None:
    labels = {keys.CLUSTER_BINDING_UID: uid_of(binding), keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
    await world.client.create(NODES, {"metadata": {"name": name, "labels": labels}})


async def add_pod(
    world: World, name: str, *volumes: Object, namespace: str = "shop", node: str = NODE, **metadata: Any
) -> None:
    pod = specimen(PODS, name, namespace)
    spec = {**pod["spec"], "nodeName": node, "volumes": list(volumes)}
    await world.client.create(PODS, {**pod, "metadata": {**pod["metadata"], **metadata}, "spec": spec})


async def rules(world: World, namespace: str | None = "shop") -> dict[str, tuple[list[str], list[str]]]:
    """Return verbs and names by resource of the role in a namespace, or of the ClusterRole."""
    await asyncio.sleep(1)
    kind, name = (ROLES, "tapestry-syncer-east:pods") if namespace else (CLUSTER_ROLES, "tapestry-syncer-east:nodes")
    role = await world.client.find(kind, name, namespace)
    found = role["rules"] if role else ()
    return {each["resources"][0]: (each["verbs"], each.get("resourceNames", [])) for each in found}


async def test_cluster_role_names_binding_and_nodes(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        found = await rules(world, None)
        assert set(found) == {"clusterbindings", "clusterbindings/status"}
        assert found["clusterbindings"] == (["sync"], [uid_of(binding), "east", "east"])
        await add_node(world, binding)
        await add_node(world, binding, "vnode-east-b")
        await world.client.create(NODES, {"metadata": {"name": "vnode-east-c"}})
        found = await rules(world, None)
        for resource in ("nodes", "nodes/status", "csinodes", "leases"):
            assert found[resource][1] == [NODE, "vnode-east-b"]
        await world.client.delete(NODES, object_named(NODE))
        assert (await rules(world, None))["leases"][1] == [NODE, "vnode-east-b"]  # the syncer deletes the lease last
        await world.wait(DELETED_NODE_SECONDS + 1)
        assert (await rules(world, None))["nodes"][1] == ["vnode-east-b"]
        bound = await world.client.get(CLUSTER_ROLE_BINDINGS, "tapestry-syncer-east:nodes")
        assert bound["subjects"] == [ACCOUNT]
        assert bound["roleRef"]["name"] == "tapestry-syncer-east:nodes"


async def test_role_names_what_pods_use_until_they_end(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "first", secret("password"))
        assert (await rules(world))["secrets"] == (["get", "list", "watch"], ["password"])
        assert (await world.client.get(ROLE_BINDINGS, "tapestry-syncer-east:pods", "shop"))["subjects"] == [ACCOUNT]
        await add_pod(world, "second", secret("key"), secret("password"))
        assert (await rules(world))["secrets"][1] == ["key", "password"]
        await world.client.delete(PODS, object_named("second", "shop"), grace_seconds=0)
        assert (await rules(world))["secrets"][1] == ["key", "password"]
        await world.wait(DELAY)
        assert (await rules(world))["secrets"][1] == ["password"]
        status = {"status": {"phase": "Succeeded"}}
        await world.client.patch(PODS, object_named("first", "shop"), status, subresource="status")
        await world.wait(DELAY)
        assert await rules(world) == {}
        assert await world.client.find(ROLE_BINDINGS, "tapestry-syncer-east:pods", "shop") is None


async def test_nothing_is_granted_in_system_namespaces(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        for namespace in ("kube-system", "kube-other", "tapestry-system", "tapestry-host-ports"):
            await add_pod(world, "web", secret("east"), namespace=namespace)
            assert await rules(world, namespace) == {}


async def test_pods_elsewhere_grant_nothing(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"), node="vnode-east-unknown")
        await add_pod(world, "other", secret("password"), node="worker")
        assert await rules(world) == {}


async def test_daemon_pods_grant_only_if_the_binding_runs_them(world: World) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "agent", secret("password"), ownerReferences=[owner])
        assert await rules(world) == {}
        await world.patch("east", {"spec": {"runningDaemonsetByDefault": True}})
        assert (await rules(world))["secrets"][1] == ["password"]


async def test_changed_role_is_restored(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"))
        before = await rules(world)
        everything = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
        await world.client.patch(ROLES, object_named("tapestry-syncer-east:pods", "shop"), {"rules": everything})
        assert await rules(world) == before
        await world.client.delete(ROLES, object_named("tapestry-syncer-east:pods", "shop"))
        assert await rules(world) == before


async def test_foreign_role_with_the_name_stays(world: World) -> None:
    foreign = await world.client.create(ROLES, {**object_named("tapestry-syncer-east:pods", "shop"), "rules": []})
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"))
        await world.wait(60)
        assert await world.client.get(ROLES, "tapestry-syncer-east:pods", "shop") == foreign


async def test_restarted_manager_revokes_what_it_missed(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"))
        assert await rules(world)
    await world.client.delete(PODS, object_named("web", "shop"), grace_seconds=0)
    async with world.running():
        await world.wait(60)
        assert await rules(world) == {}


async def test_rights_stay_until_the_syncer_has_cleaned_up(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"))
        await world.set_finalizers("east", keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)
        await world.unbind("east")
        await world.wait(10)
        assert await rules(world)
        assert await rules(world, None)
        await world.set_finalizers("east", keys.MANAGER_FINALIZER)
        await world.is_gone("east")
        for kind in (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS):
            assert await world.client.list(kind, labels=keys.GRANT) == []


async def test_many_pods_cause_few_writes(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        for number in range(300):
            await add_pod(world, f"web-{number}", secret(f"password-{number:03}"))
        await world.wait(5)
        assert len((await rules(world))["secrets"][1]) == 300
        role = await world.client.get(ROLES, "tapestry-syncer-east:pods", "shop")
        created = int(role["metadata"]["resourceVersion"])
        for number in range(300):
            await add_pod(world, f"again-{number}", secret(f"password-{number:03}"))
        await world.wait(5)
        role = await world.client.get(ROLES, "tapestry-syncer-east:pods", "shop")
        assert int(role["metadata"]["resourceVersion"]) == created


async def test_missing_policies_are_reported(world: World) -> None:
    async with world.running():
        await world.join("east")
        assert await world.condition("east", "Restricted") == ("False", "AdmissionPoliciesMissing")
        installed = list(admission_policies("tapestry-system", []))
        kinds = {each.kind: each for each in (ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS)}
        for obj in installed:
            await world.client.create(kinds[obj["kind"]], obj)
        await world.wait(1)
        assert await world.condition("east", "Restricted") == ("True", "Restricted")
        weaker = {"spec": {"validations": [{"expression": "true"}]}}
        await world.client.patch(ADMISSION_POLICIES, object_named("tapestry-manager"), weaker)
        await world.wait(1)
        assert await world.condition("east", "Restricted") == ("False", "AdmissionPoliciesMissing")
        assert "tapestry-manager" in await world.message("east", "Restricted")


async def test_server_without_the_kinds_of_policies_is_reported(world: World) -> None:
    kinds = [each for each in VIRTUAL if each not in (ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS)]
    world.api = InProcessApi(kinds, now=world.clock.now)
    world.client = Client(world.api.connect())
    await world.client.create(NAMESPACES, object_named("kube-system"))
    async with world.running():
        await world.join("east")
        assert await world.condition("east", "Restricted") == ("False", "AdmissionPoliciesMissing")
        assert "1.30" in await world.message("east", "Restricted")


async def test_secrets_of_volumes_are_granted(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east", allowedVolumes={"drivers": ["csi.example"]}))
        assert (await rules(world, None))["persistentvolumes"] == (["get", "list", "watch"], [])
        await add_pod(world, "web", {"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
        found = await rules(world)
        assert found["persistentvolumeclaims/status"] == (["patch"], [])
        assert "secrets" not in found
        claim = specimen(PERSISTENT_VOLUME_CLAIMS, "data", "shop")
        claim = await world.client.create(PERSISTENT_VOLUME_CLAIMS, with_value(claim, ("spec", "volumeName"), "v"))
        csi = {"driver": "csi.example", "volumeHandle": "h", "nodeStageSecretRef": {"name": "k", "namespace": "shop"}}
        reference = {"name": "data", "namespace": "shop", "uid": uid_of(claim)}
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": csi, "claimRef": reference}
        await world.client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "v"}, "spec": spec})
        await world.wait(3)
        assert (await rules(world))["secrets"][1] == ["k"]


async def test_sync_back_is_granted_by_name(world: World) -> None:
    async with world.running():
        await add_node(world, await world.join("east"))
        await add_pod(world, "web", secret("password"), {"name": "c", "configMap": {"name": "settings"}})
        assert (await rules(world))["configmaps"] == (["get", "list", "watch"], [])
        await world.patch("east", {"spec": {"syncBack": {"namespaces": ["shop"]}}})
        found = await rules(world)
        assert found["configmaps"] == (["patch"], ["settings"])
        assert found["secrets"] == (["patch"], ["password"])


def test_volume_secrets_need_allowed_driver_and_namespace_of_claim() -> None:
    spec = ClusterBindingSpec(
        "east", SecretReference("east", "tapestry-system"), allowed_volumes=AllowedVolumes(("csi.example",))
    )
    csi = {
        "driver": "csi.example",
        "nodeStageSecretRef": {"name": "key", "namespace": "shop"},
        "nodePublishSecretRef": {"name": "none"},
    }
    assert secrets_of_volume({"spec": {"csi": csi}}, "shop", spec) == ("key",)
    assert secrets_of_volume({"spec": {"csi": csi}}, "bank", spec) == ()
    assert secrets_of_volume({"spec": {"csi": {**csi, "driver": "other"}}}, "shop", spec) == ()
