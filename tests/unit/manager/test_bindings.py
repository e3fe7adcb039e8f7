"""The reconciler of ClusterBindings: Pending, Ready, Failed, and recovery."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tapestry.apis import keys
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.tls import Pem, ServerVerification
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import wait_for
from tapestry.controller.testing import InProcessApi, specimen
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import is_owned_by, object_named, uid_of, version_of
from tapestry.kube.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NAMESPACES,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from tapestry.kube.times import timestamp
from tapestry.manager.app import SyncerCluster
from tapestry.manager.config import PROFILES, BindingsConfig

EAST = "https://east.example"
SYSTEM = keys.SYSTEM_NAMESPACE
FIVE_MINUTES = 301
HALF_A_MINUTE = 31

ELSEWHERE = BindingsConfig(deploy_kubeconfig="there")
VIRTUAL = Access("https://virtual.example", verification=ServerVerification(Pem("ca", b"authority")))

World = Any  # of conftest.py


def available(count: int, generation: int = 1) -> dict[str, Any]:
    counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), count)
    return {"status": {**counts, "observedGeneration": generation}}


async def test_valid_binding_becomes_ready_and_gets_a_syncer(world: World) -> None:
    identity = await world.add_cluster(EAST)
    async with world.running():
        binding = await world.join("east")
        assert binding["metadata"]["finalizers"] == [keys.MANAGER_FINALIZER]
        assert binding["status"]["identity"] == identity
        assert binding["status"]["observedGeneration"] == binding["metadata"]["generation"]
        for condition in ("Ready", "Connected", "Permitted"):
            assert (await world.condition("east", condition))[0] == "True"
        assert is_owned_by(await world.deployment(), binding)
        assert await world.of_syncers() == [
            "ServiceAccount tapestry-syncer-east",
            "Role tapestry-syncer-east",
            "Role tapestry-syncer-east-kubeconfig",
            "RoleBinding tapestry-syncer-east",
            "RoleBinding tapestry-syncer-east-kubeconfig",
            "ClusterRole tapestry-syncer-east:nodes",
            "ClusterRoleBinding tapestry-syncer-east",
            "ClusterRoleBinding tapestry-syncer-east:nodes",
            "PodDisruptionBudget tapestry-syncer-east",
            "Service tapestry-syncer-east",
            "Deployment tapestry-syncer-east",
        ]
        assert await world.reasons() == ["Initializing", "Ready"]


async def test_binding_sets_the_pods_of_its_syncer(world: World) -> None:
    toleration = {"key": "dedicated", "operator": "Exists"}
    pods = {
        "image": "registry.example/tapestry:2",
        "replicas": 3,
        "profile": "large",
        "args": ["--time-zone=UTC"],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [toleration],
    }
    async with world.running():
        await world.join("east", syncer=pods)
        spec = (await world.deployment())["spec"]
        pod, container = spec["template"]["spec"], spec["template"]["spec"]["containers"][0]
        assert (spec["replicas"], container["image"], container["args"][-1]) == (3, pods["image"], "--time-zone=UTC")
        assert container["resources"] == PROFILES["large"]
        assert pod["nodeSelector"] == {"disk": "ssd"}
        assert toleration in pod["tolerations"]
        await world.client.patch(DEPLOYMENTS, await world.deployment(), {"spec": {"replicas": 1}})
        await world.wait(1)
        assert (await world.deployment())["spec"]["replicas"] == 3
        await world.patch("east", {"spec": {"syncer": {"resources": {"limits": {"memory": "1Gi"}}}}})
        await world.wait(1)
        (container,) = (await world.deployment())["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "1Gi"}


async def test_unchanged_binding_is_not_written(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.wait(10)
        before = await world.binding("east"), await world.of_syncers(), await world.deployment()
        await world.wait(10 * FIVE_MINUTES)
        assert (await world.binding("east"), await world.of_syncers(), await world.deployment()) == before
        assert await world.reasons() == ["Initializing", "Ready"]


async def test_syncer_is_ready_with_an_available_replica(world: World) -> None:
    async with world.running():
        await world.join("east")
        assert await world.condition("east", "SyncerReady") == ("False", "SyncerUnavailable")
        for count, verdict in ((1, ("True", "SyncerAvailable")), (0, ("False", "SyncerUnavailable"))):
            await world.client.patch(DEPLOYMENTS, await world.deployment(), available(count), subresource="status")
            await world.wait(1)
            assert await world.condition("east", "SyncerReady") == verdict
        assert (await world.binding("east"))["status"]["phase"] == "Ready"
        assert await world.reasons() == ["Initializing", "Ready", "SyncerAvailable", "SyncerUnavailable"]


async def test_unobserved_rollout_is_not_available(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.client.patch(DEPLOYMENTS, await world.deployment(), available(2, 0), subresource="status")
        await world.wait(1)
        assert await world.condition("east", "SyncerReady") == ("False", "SyncerUnavailable")


async def test_deleted_syncer_is_recreated(world: World) -> None:
    async with world.running():
        await world.join("east")
        everything = await world.of_syncers()
        for resource in (DEPLOYMENTS, SERVICE_ACCOUNTS, ROLES):
            for obj in await world.client.list(resource):
                await world.client.delete(resource, obj)
        await world.wait(1)
        assert await world.of_syncers() == everything


async def test_changed_fields_are_restored_and_additions_remain(world: World) -> None:
    async with world.running():
        await world.join("east")
        deployment = await world.deployment()
        containers = deployment["spec"]["template"]["spec"]["containers"]
        changed = [{**containers[0], "image": "other", "tty": True}]
        spec = {"replicas": 7, "template": {"spec": {"containers": changed}}, "minReadySeconds": 3}
        await world.client.patch(DEPLOYMENTS, deployment, {"spec": spec})
        await world.wait(1)
        spec = (await world.deployment())["spec"]
        assert spec["replicas"] == 7  # by `kubectl scale`: the binding does not set it
        assert spec["template"]["spec"]["containers"] == [{**containers[0], "tty": True}]
        assert spec["minReadySeconds"] == 3


async def test_foreign_object_with_syncer_name_is_not_changed(world: World) -> None:
    foreign = await world.client.create(DEPLOYMENTS, specimen(DEPLOYMENTS, "tapestry-syncer-east", SYSTEM))
    async with world.running():
        await world.add_cluster(EAST)
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "NameTaken")
        assert await world.condition("east", "SyncerReady") == ("False", "NameTaken")
        assert await world.condition("east", "Connected") == ("True", "Connected")
        assert await world.deployment() == foreign
        await world.client.delete(DEPLOYMENTS, foreign)
        await world.reaches("east", "Ready")


async def test_deployment_without_labels_is_recognized_by_owner(world: World) -> None:
    async with world.running():
        await world.join("east")
        deployment = await world.deployment()
        nothing = dict.fromkeys(deployment["metadata"]["labels"])
        await world.client.patch(DEPLOYMENTS, deployment, {"metadata": {"labels": nothing}})
        await world.wait(1)
        assert (await world.deployment())["metadata"]["labels"] == deployment["metadata"]["labels"]


async def test_invalid_binding_waits_for_a_change(world: World) -> None:
    async with world.running():
        await world.add_cluster(EAST)
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east", mountNamespace="Not A Label")
        await world.reaches("east", "Failed", "ValidationFailed")
        assert (await world.message("east")).startswith("spec.mountNamespace: expected `str` matching")
        version = version_of(await world.binding("east"))
        await world.wait(FIVE_MINUTES)
        assert version_of(await world.binding("east")) == version
        assert world.connected_servers == []
        await world.patch("east", {"spec": {"mountNamespace": "leased"}})
        await world.reaches("east", "Ready")
        assert await world.reasons() == ["Initializing", "ValidationFailed", "Ready"]


async def test_first_binding_keeps_a_duplicate_cluster_id(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.add_cluster("https://west.example")
        await world.add_secret("west", {"kubeconfig": world.kubeconfig("https://west.example")})
        await world.add_binding("west", clusterID="east")
        await world.reaches("west", "Failed", "DuplicateClusterID")
        assert "ClusterBinding east" in await world.message("west")
    async with world.running():
        await world.wait(FIVE_MINUTES)
        assert (await world.binding("east"))["status"]["phase"] == "Ready"
        await world.reaches("west", "Failed", "DuplicateClusterID")
        await world.unbind("east")
        await world.is_gone("east")
        await world.wait(1)
        assert (await world.binding("west"))["status"]["phase"] == "Ready"
        assert is_owned_by(await world.deployment(), await world.binding("west"))


async def test_deleting_a_duplicate_keeps_the_other_syncer(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.add_binding("west", clusterID="east")
        await world.reaches("west", "Failed", "DuplicateClusterID")
        everything = await world.of_syncers()
        await world.unbind("west")
        await world.is_gone("west")
        assert await world.of_syncers() == everything


async def test_loopback_kubeconfig_needs_a_flag(world: World, new_kubeconfig: Callable[..., bytes]) -> None:
    server = "https://127.0.0.1:6443"
    await world.add_cluster(server)
    await world.add_secret("east", {"kubeconfig": new_kubeconfig(server)})
    await world.add_binding("east")
    async with world.running():
        await world.reaches("east", "Failed", "ConnectivityFailed")
        assert "--allow-loopback" in await world.message("east")
        assert world.connected_servers == []
    async with world.running(BindingsConfig(allow_loopback=True)):
        await world.reaches("east", "Ready")


async def test_secret_in_other_namespace_is_not_read(world: World) -> None:
    await world.add_cluster(EAST)
    await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)}, namespace="tenant")
    await world.add_binding("east", secretRef={"name": "east", "namespace": "tenant"})
    async with world.running():
        await world.reaches("east", "Failed", "SecretNamespaceNotAllowed")
        assert await world.condition("east", "Connected") == ("False", "SecretNamespaceNotAllowed")
        assert world.connected_servers == []
    async with world.running(BindingsConfig(kubeconfig_namespaces=["tenant"])):
        await world.reaches("east", "Ready")
        roles = {obj["metadata"]["namespace"]: obj["rules"] for obj in await world.client.list(ROLES)}
        assert [rule["resources"] for rule in roles["tenant"]] == [["secrets"]]
        assert [rule["resources"] for rule in roles[SYSTEM]] == [["leases"], ["leases"], ["secrets"]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "Secret tapestry-system/east does not exist"),
        ({"config": b"x"}, "Secret tapestry-system/east has no key kubeconfig"),
        ({"kubeconfig": b"\x00garbage"}, "Secret tapestry-system/east: kubeconfig: "),
        ({"kubeconfig": b"{}"}, "current-context: not set"),
    ],
)
async def test_invalid_kubeconfig_waits_for_its_secret(
    world: World, data: dict[str, bytes] | None, message: str
) -> None:
    async with world.running():
        await world.add_cluster(EAST)
        if data is not None:
            await world.add_secret("east", data)
        await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        assert message in await world.message("east", "Connected")
        await world.wait(FIVE_MINUTES)
        assert world.connected_servers == []
        if data is not None:
            await world.client.delete(SECRETS, object_named("east", SYSTEM))
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.reaches("east", "Ready")
        assert (await world.reasons())[-1] == "Ready"


async def test_unreachable_cluster_is_retried_with_backoff(world: World) -> None:
    async with world.running():
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        assert await world.condition("east", "Connected") == ("False", "ConnectivityFailed")
        await world.wait(3600)
        assert 15 < len(world.connected_servers) < 40
        assert await world.reasons() == ["Initializing", "ConnectivityFailed"]
        await world.add_cluster(EAST)
        await world.wait(FIVE_MINUTES)
        await world.reaches("east", "Ready")


async def test_unreachable_cluster_keeps_its_syncer(world: World) -> None:
    async with world.running():
        await world.join("east")
        everything = await world.of_syncers()
        cluster = world.clusters.pop(EAST)
        await world.reaches("east", "Failed", "ConnectivityFailed")
        await world.client.delete(DEPLOYMENTS, await world.deployment())
        await world.deployment()
        assert await world.of_syncers() == everything
        assert (await world.binding("east"))["status"]["phase"] == "Failed"
        world.clusters[EAST] = cluster
        await world.reaches("east", "Ready")


async def test_rotated_kubeconfig_is_used_at_once(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.client.delete(SECRETS, object_named("east", SYSTEM))
        await world.reaches("east", "Failed", "ConnectivityFailed")
        world.clusters["https://moved.example"] = world.clusters[EAST]
        await world.add_secret("east", {"kubeconfig": world.kubeconfig("https://moved.example")})
        await world.wait(1)
        assert world.connected_servers[-1] == "https://moved.example"
        assert (await world.binding("east"))["status"]["phase"] == "Ready"


async def test_missing_permissions_are_listed_and_rechecked(world: World) -> None:
    async with world.running():
        identity = await world.add_cluster(EAST, "list nodes", "watch pods", "patch resourceleasingpolicies")
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "PermissionsMissing")
        assert await world.condition("east", "Connected") == ("True", "Connected")
        assert await world.condition("east", "Permitted") == ("False", "PermissionsMissing")
        missing = "list nodes, watch pods, patch resourceleasingpolicies/status"
        assert await world.message("east", "Permitted") == f"the kubeconfig does not grant: {missing}"
        assert await world.of_syncers() == []
        world.clusters[EAST].review = lambda _: {"allowed": True}
        await world.wait(HALF_A_MINUTE)
        binding = await world.binding("east")
        assert (binding["status"]["phase"], binding["status"]["identity"]) == ("Ready", identity)


async def test_expiring_token_needs_renewal_permission(world: World) -> None:
    async with world.running():
        await world.add_cluster(EAST, "create serviceaccounts")
        expires = world.clock.now() + timedelta(days=30)
        token = world.token(exp=int(expires.timestamp()), sub="system:serviceaccount:leased:syncer")
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST, token)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "PermissionsMissing")
        assert (await world.message("east")).endswith("create serviceaccounts/token syncer in leased")


async def test_credential_expiry_is_reported_with_warning(world: World) -> None:
    async with world.running():
        await world.add_cluster(EAST)
        expires = world.clock.now() + timedelta(days=7, minutes=6)
        token = world.token(exp=int(expires.timestamp()), sub="system:serviceaccount:leased:syncer")
        secret = await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST, token)})
        await world.add_binding("east")
        binding = await world.reaches("east", "Ready")
        assert binding["status"]["credentialsExpire"] == timestamp(expires)
        assert await world.condition("east", "Connected") == ("True", "Connected")
        await world.wait(2 * FIVE_MINUTES)
        assert await world.condition("east", "Connected") == ("True", "CredentialsExpire")
        token = world.token(exp=int(world.clock.now().timestamp()) + 3600)
        await world.client.delete(SECRETS, secret)
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST, token)})
        await world.wait(1)
        assert "within a day" in await world.message("east", "Connected")
        types = [event["type"] for event in await world.client.list(EVENTS) if event["reason"] == "CredentialsExpire"]
        assert types == ["Warning", "Warning"]


async def test_changed_identity_fails_until_approved(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        first = binding["status"]["identity"]
        second = await world.add_cluster(EAST)
        await world.reaches("east", "Failed", "IdentityChanged")
        assert (await world.binding("east"))["status"]["identity"] == first
        await world.annotate("east", keys.APPROVE_IDENTITY, first)
        await world.wait(FIVE_MINUTES)
        assert (await world.binding("east"))["status"]["phase"] == "Failed"
        await world.annotate("east", keys.APPROVE_IDENTITY, second)
        await world.reaches("east", "Ready")
        assert (await world.binding("east"))["status"]["identity"] == second
        assert "IdentityApproved" in await world.reasons()


async def test_cluster_is_bound_only_once(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.add_secret("again", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("again")
        await world.reaches("again", "Failed", "DuplicateCluster")
        assert "ClusterBinding east" in await world.message("again")
        assert "identity" not in (await world.binding("again"))["status"]
        assert (await world.binding("east"))["status"]["phase"] == "Ready"
        await world.unbind("east")
        await world.is_gone("east")
        await world.wait(1)
        assert (await world.binding("again"))["status"]["phase"] == "Ready"


async def test_status_writes_of_syncer_trigger_no_reconcile(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.wait(1)
        count = len(world.connected_servers)
        leasing = {"type": "Leasing", "status": "True", "reason": "Leasing", "message": "", "lastTransitionTime": "x"}
        binding = await world.binding("east")
        ours = [each for each in binding["status"]["conditions"] if each["type"] != "Leasing"]
        theirs = {"nodes": 3, "conditions": [*ours, leasing]}
        await world.patch("east", {"status": theirs}, subresource="status")
        await world.wait(FIVE_MINUTES)
        status = (await world.binding("east"))["status"]
        assert status["nodes"] == 3
        assert await world.condition("east", "Leasing") == ("True", "Leasing")
        assert len(world.connected_servers) == count + 1  # by the periodic recheck


@pytest.mark.parametrize("cluster", ["east", "east-1", None])
async def test_bound_cluster_without_policy_reports_it(world: World, cluster: str | None) -> None:
    if cluster is not None:
        await world.client.create(POLICIES, {**object_named("night"), "spec": {"cluster": cluster}})
    async with world.running():
        await world.join("east", clusterID="east-1")
        expected = ("False", "NoPolicy") if cluster is None else ("", "")
        assert await world.condition("east", "Leasing") == expected


async def test_bindings_are_counted_by_phase(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.add_binding("west", mountNamespace="")
        await world.reaches("west", "Failed")
        await world.wait(1)
        phases = ("Ready", "Failed", "Pending")
        counts = [REGISTRY.get_sample_value("tapestry_bindings", {"phase": phase}) for phase in phases]
        assert counts == [1, 1, 0]


async def test_custom_templates_replace_packaged_ones(world: World, tmp_path: Path) -> None:
    spec = json.dumps(specimen(DEPLOYMENTS, "mine")["spec"])
    place = "{name: 'mine-${clusterID}', namespace: '${namespace}'}"
    text = f"{{apiVersion: apps/v1, kind: Deployment, metadata: {place}, spec: {spec}}}"
    config = BindingsConfig(template_dir=str(tmp_path))
    async with world.running(config):
        await world.add_cluster(EAST)
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "SyncerFailed")
        assert "contains no .yaml file" in await world.message("east")
        (tmp_path / "syncer.yaml").write_text(text.replace("namespace}", "wrong}"))
        await world.wait(FIVE_MINUTES)
        assert "syncer.yaml: metadata.namespace: ${wrong} is unknown" in await world.message("east")
        (tmp_path / "syncer.yaml").write_text(text)
        await world.reaches("east", "Ready")
        assert await world.of_syncers() == ["Deployment mine-east"]
        (tmp_path / "syncer.yaml").write_text(text.replace("mine", "ours"))
        await world.wait(FIVE_MINUTES)
        assert await world.of_syncers() == ["Deployment ours-east"]
        (tmp_path / "syncer.yaml").unlink()
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_syncers_may_run_in_a_remote_cluster(world: World) -> None:
    management = InProcessApi([DEPLOYMENTS, DISRUPTION_BUDGETS, SECRETS], now=world.clock.now)
    there = Client(management.connect())
    async with world.running(ELSEWHERE, SyncerCluster(management.connect(), management.connect(), VIRTUAL)):
        binding = await world.join("east")
        await world.wait(1)
        assert [each for each in await world.of_syncers() if not each.startswith(("Role", "ClusterRole"))] == [
            "ServiceAccount tapestry-syncer-east",
            "Service tapestry-syncer-east",
        ]
        assert "ClusterRole tapestry-syncer-east:nodes" in await world.of_syncers()
        deployment = await wait_for(there, DEPLOYMENTS, "tapestry-syncer-east", SYSTEM, until=bool)
        assert deployment is not None
        assert "ownerReferences" not in deployment["metadata"]
        assert deployment["metadata"]["labels"][keys.CLUSTER_BINDING_UID] == uid_of(binding)
        pod = deployment["spec"]["template"]["spec"]
        assert pod.get("serviceAccountName") is None
        assert pod["automountServiceAccountToken"] is False
        assert [(each["name"], each["secret"]["secretName"]) for each in pod["volumes"]] == [
            ("kubeconfig", "tapestry-syncer-east")
        ]
        assert "--kubeconfig=/etc/tapestry/kubeconfig/kubeconfig" in pod["containers"][0]["args"]
        await there.delete(DEPLOYMENTS, deployment)
        await wait_for(there, DEPLOYMENTS, "tapestry-syncer-east", SYSTEM, until=bool)
        await world.unbind("east")
        await world.is_gone("east")
        assert await there.list(DEPLOYMENTS) == await there.list(SECRETS) == []
        assert await there.list(DISRUPTION_BUDGETS) == []


async def test_former_leader_writes_nothing_to_remote_cluster(world: World) -> None:
    management = InProcessApi([DEPLOYMENTS, DISRUPTION_BUDGETS, SECRETS], now=world.clock.now)
    elsewhere = SyncerCluster(management.connect(), management.connect(), VIRTUAL)
    async with world.running(ELSEWHERE, elsewhere) as manager:
        await world.join("east")
        assert manager.elector is not None
        with pytest.raises(TransportError, match="cut"):
            await asyncio.wait_for(cut_off(elsewhere.write_transport, manager.elector.on_loss), 1)


async def cut_off(transport: Transport, cut: Callable[[], None]) -> None:
    """Cut a request while it is in flight."""
    under_way = asyncio.create_task(transport.send(Request("GET", DEPLOYMENTS.path(SYSTEM))))
    await asyncio.sleep(0)
    cut()
    await under_way


async def test_binding_only_in_cache_creates_nothing(world: World) -> None:
    management = InProcessApi([DEPLOYMENTS, DISRUPTION_BUDGETS, SECRETS], now=world.clock.now)
    there = Client(management.connect())
    async with world.running(ELSEWHERE, SyncerCluster(management.connect(), management.connect(), VIRTUAL)):
        await world.join("east")
        await world.wait(1)
        world.api.freeze()
        await world.set_finalizers("east")
        await world.unbind("east")
        await there.delete(DEPLOYMENTS, object_named("tapestry-syncer-east", SYSTEM))
        await world.wait(10)
        assert await there.list(DEPLOYMENTS) == []
        world.api.thaw()
        await world.wait(10)
        assert await there.list(DEPLOYMENTS) == []


async def test_nothing_is_written_to_the_physical_cluster(world: World) -> None:
    async with world.running():
        await world.add_cluster(EAST)
        before = world.clusters[EAST].dump()
        await world.join("east")
        await world.wait(FIVE_MINUTES)
        assert world.clusters[EAST].dump() == before


# -- mount namespace and volume permissions


async def label_mount_namespace(world: World, mark: str | None) -> None:
    client = Client(world.clusters[EAST].connect())
    labels = {"metadata": {"name": "leased", "labels": {keys.VIRTUAL_CLUSTER: mark}}}
    if await client.find(NAMESPACES, "leased") is None:
        await client.create(NAMESPACES, labels)
    else:
        await client.patch(NAMESPACES, object_named("leased"), labels)


async def test_mount_namespace_of_other_virtual_cluster_fails_binding(world: World) -> None:
    async with world.running():
        await world.add_cluster(EAST)
        await label_mount_namespace(world, "another")
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", keys.MOUNT_NAMESPACE_TAKEN)
        assert await world.condition("east", "Permitted") == ("False", keys.MOUNT_NAMESPACE_TAKEN)
        assert "namespace leased in the physical cluster belongs to another" in await world.message("east")
        assert await world.of_syncers() == []
        own = virtual_cluster_label(uid_of(await world.client.get(NAMESPACES, "kube-system")))
        await label_mount_namespace(world, own)
        await world.reaches("east", "Ready")


async def test_mount_namespace_taken_later_fails_binding(world: World) -> None:
    async with world.running():
        await world.join("east")
        await label_mount_namespace(world, "another")
        await world.wait(2 * FIVE_MINUTES)
        assert (await world.binding("east"))["status"]["phase"] == "Failed"


@pytest.mark.parametrize(
    ("denied", "effect"),
    [
        ("create persistentvolumes", "volumes are not synced"),
        ("list pods.metrics.k8s.io", "the usage of pods and virtual nodes is unknown"),
    ],
)
async def test_missing_optional_permissions_keep_binding_ready(world: World, denied: str, effect: str) -> None:
    async with world.running():
        await world.add_cluster(EAST, denied)
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east", allowedVolumes={"drivers": ["disk.example"]})
        await world.reaches("east", "Ready")
        await world.deployment()
        assert await world.condition("east", "Ready") == ("True", "Ready")
        assert await world.condition("east", "Permitted") == ("False", "PermissionsMissing")
        message = await world.message("east", "Permitted")
        assert message.startswith(f"{effect}: the kubeconfig does not grant {denied}")
        world.clusters[EAST].review = lambda _: {"allowed": True}
        await world.wait(HALF_A_MINUTE)
        assert await world.condition("east", "Permitted") == ("True", "Permitted")
