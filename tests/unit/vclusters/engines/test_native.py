"""Virtual clusters of the native engine: planes, and tenants of a host cluster with simulated nodes."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.apiserver.access import certificates
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, INGRESSES, PODS
from tapestry.local.kubernetes import free_ports
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.engines.native import binding_spec, native_name, with_unset

from ...tenants.running_tenants import TIMEOUT, bare_world, host_world, pod_named, run_pod, wait_for_pod
from .running_vclusters import NAMED, Service


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Service]:
    async with bare_world(tmp_path) as world, run_vclusters(world.process):
        yield Service(world)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[Service]:
    async with host_world(tmp_path) as world, run_vclusters(world.process):
        yield Service(world)


async def test_cluster_without_host_is_a_plane(alone: Service) -> None:
    found = await alone.create(storage={"persistenceSize": "5Gi"}, resources={"cpuLimit": "2"})
    plane = await alone.world.management.get(PLANES, native_name(found))
    limits = plane["spec"]["limits"]
    assert (plane["spec"]["backend"], limits["bytes"], limits["requestsInFlight"]) == ("file", "5Gi", 200)
    assert found["status"]["apiServerEndpoint"] == plane["status"]["address"]
    assert found["status"]["kubernetesVersion"].startswith("1.")
    await alone.reach(Phase.RUNNING)
    client = alone.world.tenant_client(plane_id(plane))
    await client.create(CONFIGMAPS, object_named("c", "default"))
    await alone.request(Verb.SUSPEND, Phase.SUSPENDED)
    assert (await alone.world.management.get(PLANES, name_of(plane)))["status"]["phase"] == "Suspended"
    await alone.request(Verb.RESUME, Phase.RUNNING)
    assert await alone.world.tenant_client(plane_id(plane)).find(CONFIGMAPS, "c", "default")
    await alone.delete()
    assert await alone.leftovers() == []
    assert len(await alone.world.management.list(OPERATIONS)) == 4


async def test_condition_names_mapped_fields(alone: Service) -> None:
    await alone.create(network={"podCidr": "10.244.0.0/16"})
    condition = lambda obj: find_condition(value_at(obj, "status", "conditions"), "FieldsMapped")  # noqa: E731
    found = await wait_for(alone.world.management, VCLUSTERS, "v", "default", until=condition, timeout=TIMEOUT)
    assert "network.podCidr: the host cluster allocates" in condition(found)["message"]


async def test_condition_says_when_certificates_end(alone: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CA_LIFETIME", timedelta(days=10))
    await alone.create()
    condition = lambda obj: find_condition(value_at(obj, "status", "conditions"), "CertificatesExpiring")  # noqa: E731
    found = await wait_for(alone.world.management, VCLUSTERS, "v", "default", until=condition, timeout=TIMEOUT)
    assert (condition(found)["status"], condition(found)["reason"]) == ("True", "ExpiresSoon")
    assert "the CA is valid until" in condition(found)["message"]


async def test_cluster_without_persistence_is_in_memory(alone: Service) -> None:
    found = await alone.create(storage={"enablePersistence": False})
    assert (await alone.world.management.get(PLANES, native_name(found)))["spec"]["backend"] == "memory"


async def test_scale_changes_limits_of_plane(alone: Service) -> None:
    found = await alone.create(resources={"cpuLimit": "1"})
    resources = {"resources": {"cpuLimit": "3"}}
    await alone.world.management.patch(VCLUSTERS, NAMED, {"spec": resources})
    await alone.request(Verb.SCALE, Phase.RUNNING)
    plane = await alone.world.management.get(PLANES, native_name(found))
    assert plane["spec"]["limits"]["requestsInFlight"] == 300


async def test_create_is_ready_soon(alone: Service) -> None:
    began = time.monotonic()
    await alone.create()
    assert time.monotonic() - began < 10  # the benchmark measures it


async def test_unknown_host_cluster_is_an_error(alone: Service) -> None:
    operation = alone.operation(Verb.CREATE)
    spec = {"project": "shop", "owner": "jane", "hostCluster": "nowhere", "operation": operation}
    await alone.world.management.create(VCLUSTERS, {**NAMED, "spec": spec})
    found = await alone.reach(Phase.ERROR)
    assert found["status"]["reason"] == "NO_HOST_CAPACITY"
    assert "nowhere" in found["status"]["message"]
    assert await alone.leftovers() == []


async def test_pods_run_in_host_cluster_until_they_are_drained(hosted: Service) -> None:
    found = await hosted.create(isolationMode="full", sync={"syncNodes": True})
    assert found["status"]["hostCluster"] == "east"
    id = plane_id(await hosted.world.management.get(PLANES, native_name(found)))
    await run_pod(hosted.world.tenant_client(id))
    await hosted.request(Verb.SUSPEND, Phase.SUSPENDED, drainWorkloads=True)
    binding = await hosted.world.management.get(CLUSTER_BINDINGS, native_name(found))
    assert (binding["spec"]["workloads"], binding["spec"]["isolation"]["mode"]) == ("Drained", "full")
    await hosted.request(Verb.RESUME, Phase.RUNNING, reconcileWorkloads=True)
    client = hosted.world.tenant_client(id)
    await wait_for_pod(client, "work", lambda each: value_at(each, "status", "phase") == "Running")
    await hosted.delete()
    assert await hosted.leftovers() == []
    assert not [each for each in await client_pods(hosted) if "work" in name_of(each)]


async def test_pods_have_the_requested_account_and_no_token(hosted: Service) -> None:
    world = hosted.world
    await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": {"serviceAccounts": ["builder"]}})
    await hosted.create(serviceAccount={"name": "builder"})
    await run_pod(await hosted.client(), "first")
    await world.management.patch(VCLUSTERS, NAMED, {"spec": {"serviceAccount": None}})
    await hosted.request(Verb.UPDATE, Phase.RUNNING)
    await run_pod(await hosted.client(), "second")
    accounts = {}
    for each in await client_pods(hosted):
        assert each["spec"]["automountServiceAccountToken"] is False
        accounts[annotations_of(each)["tapestry.io/virtual-pod-name"]] = each["spec"]["serviceAccountName"]
    assert accounts == {"first": "builder", "second": "default"}


async def test_workloads_of_a_cluster_with_host_run(hosted: Service) -> None:
    await hosted.create()
    client = await hosted.client()
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod_named("w")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await client.create(DEPLOYMENTS, {**object_named("web", "default"), "spec": spec})
    is_ready = lambda each: value_at(each, "status", "readyReplicas") == 1  # noqa: E731
    assert await wait_for(client, DEPLOYMENTS, "web", "default", until=is_ready, timeout=TIMEOUT)
    await hosted.delete()


async def test_ingress_leads_to_the_plane_until_it_is_removed(tmp_path: Path) -> None:
    port, hostname = free_ports(1)[0], "blue.api.example.com"
    async with host_world(tmp_path, port_range=f"{port}-{port}") as world, run_vclusters(world.process):
        hosted = Service(world)
        offer = {"apiAddress": "192.0.2.10", "ingressClass": "nginx", "apiIngressDomain": "api.example.com"}
        await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": offer})
        found = await hosted.create(ingress={"enabled": True, "hostname": hostname})
        assert found["status"]["apiServerEndpoint"] == f"https://{hostname}"
        [ingress] = await world.host.client.list(INGRESSES)
        assert ingress["spec"]["rules"][0]["host"] == hostname
        authority = CertificateAuthority(tmp_path / "planes" / "planes" / plane_id(await hosted.plane()) / "pki")
        context = ssl.create_default_context(cadata=authority.certificate_pem())
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=hostname)
        writer.close()
        await world.management.patch(VCLUSTERS, NAMED, {"spec": {"ingress": None}})
        found = await hosted.request(Verb.UPDATE, Phase.RUNNING)
        assert found["status"]["apiServerEndpoint"] == value_at(await hosted.plane(), "status", "address")
        assert await world.host.client.list(INGRESSES) == []
        await hosted.delete()
        assert await hosted.leftovers() == []


async def client_pods(service: Service) -> list[Object]:
    return list(await service.world.host.client.list(PODS))


def test_fields_that_are_not_requested_any_more_are_removed() -> None:
    spec = with_unset(binding_spec({"spec": {"network": {"dnsServiceIp": "10.96.0.10"}, "sync": {"syncNodes": True}}}))
    assert (spec["sync"]["nodes"], spec["sync"]["ingresses"], spec["isolation"]) == (True, None, None)
    assert (spec["dns"]["serviceIp"], spec["dns"]["searches"]) == ("10.96.0.10", None)


def test_binding_has_requested_switches() -> None:
    spec = {"sync": {"syncNodes": True, "syncIngresses": True}, "network": {"enableNetworkPolicies": True}}
    assert binding_spec({"spec": spec}) == {"sync": {"nodes": True, "ingresses": True, "networkPolicies": True}}
    assert binding_spec({"spec": {"storage": {"defaultStorageClass": "fast"}}}) == {
        "sync": {},
        "defaultStorageClass": "fast",
    }
    ingress = {"enabled": True, "hostname": "blue.api.example.com"}
    assert binding_spec({"spec": {"ingress": ingress}}) == {"sync": {}, "apiHost": "blue.api.example.com"}
    network = {"dnsServiceIp": "10.96.0.10", "dns": {"nameservers": ["192.0.2.1"], "options": []}}
    assert binding_spec({"spec": {"network": network}}) == {
        "sync": {},
        "dns": {"serviceIp": "10.96.0.10", "nameservers": ["192.0.2.1"]},
    }
