"""Admission of virtual clusters on a management API, on every backend without other processes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.keys import VCLUSTER_FINALIZER
from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS, Verb
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP, CallOrigin, User
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.conditions import new_condition
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.vclusters.admission import PROJECT_ANNOTATION, operation_of, vcluster_plugin
from tapestry.vclusters.app import prepare_management_api
from tapestry.vclusters.errors import permission_denied
from tapestry.vclusters.validation import Provided

JANE, JOE, EVE = (User(name, (MASTERS_GROUP,)) for name in ("jane", "joe", "eve"))


def allow(user: User, method: str, _: str) -> None:
    """Reject everything that eve does."""
    if user == EVE:
        raise permission_denied(method, "virtual clusters")


@dataclass
class Management:
    running: RunningServer

    def client(self, user: User = JANE, origin: CallOrigin = CallOrigin.CLIENT) -> Client:
        return Client(InProcessTransport(self.running.request_handler, user, origin))

    @property
    def orchestrator(self) -> Client:
        return self.client(APISERVER_USER, CallOrigin.CONTROLLER)

    async def create(self, name: str = "v", user: User = JANE, namespace: str = "default", **spec: Any) -> Object:
        content = {**object_named(name, namespace), "spec": {"project": "shop", **spec}}
        return await self.client(user).create(VCLUSTERS, content)

    async def update(self, spec: Object, user: User = JANE, name: str = "v") -> Object:
        return await self.client(user).patch(VCLUSTERS, object_named(name, "default"), {"spec": spec})

    async def write_status(self, **status: Any) -> None:
        named = object_named("v", "default")
        await self.orchestrator.patch(VCLUSTERS, named, {"status": status}, subresource="status")

    async def run_operation(self, phase: str = "Running") -> None:
        """End the requested operation, as the orchestrator does."""
        found = await self.client().get(VCLUSTERS, "v", "default")
        await self.write_status(phase=phase, lastOperation=found["spec"]["operation"]["id"])


@pytest.fixture(params=["memory", "file"])
async def management(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Management]:
    config = ApiServerConfig(backend=request.param, secure_address="", file_rootpath=str(tmp_path / "data"))
    plugin = partial(vcluster_plugin, provided=Provided("1.34.3"), allow=allow)
    async with run_apiserver(config, admission=plugin) as running:
        result = Management(running)
        await prepare_management_api(result.orchestrator)
        yield result


async def test_reserved_namespaces_have_no_vclusters(management: Management) -> None:
    await management.client().create(NAMESPACES, object_named("tapestry-hosts"))
    for namespace in ("kube-system", "tapestry-hosts"):
        with pytest.raises(ApiError, match=r"FIELD_INVALID: metadata\.namespace: must not be"):
            await management.create(namespace=namespace)


async def test_create_gets_owner_finalizer_and_operation(management: Management) -> None:
    created = await management.create(owner="joe")
    spec = created["spec"]
    assert (spec["owner"], spec["project"], spec["engine"]) == ("jane", "shop", "native")
    assert (spec["operation"]["verb"], spec["operation"]["principal"]) == ("Create", "jane")
    assert created["metadata"]["finalizers"] == [VCLUSTER_FINALIZER]


async def test_installation_has_a_default_isolation(tmp_path: Path) -> None:
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path / "data"))
    plugin = partial(vcluster_plugin, provided=Provided("1.34.3", isolation_mode="lite"), allow=allow)
    async with run_apiserver(config, admission=plugin) as running:
        lenient = Management(running)
        await prepare_management_api(lenient.orchestrator)
        assert (await lenient.create("open"))["spec"]["isolationMode"] == "lite"
        assert (await lenient.create("closed", isolationMode="full"))["spec"]["isolationMode"] == "full"


async def test_namespace_belongs_to_its_first_project(management: Management) -> None:
    await management.create("a", project="shop")
    assert (await management.create("b", project=""))["spec"]["project"] == "shop"
    with pytest.raises(ApiError, match="Namespace default was not found"):
        await management.create("c", project="bank")
    await management.client().create(NAMESPACES, object_named("free"))
    with pytest.raises(ApiError, match=r"spec\.project: must be set"):
        await management.create("d", namespace="free", project="")


async def test_annotation_of_namespace_names_project(management: Management) -> None:
    metadata = {"annotations": {PROJECT_ANNOTATION: "bank"}}
    await management.client().patch(NAMESPACES, object_named("default"), {"metadata": metadata})
    assert (await management.create(project=""))["spec"]["project"] == "bank"


async def test_concurrent_first_uses_of_a_namespace_have_one_project(management: Management) -> None:
    async def attempt(number: int) -> str:
        try:
            return str((await management.create(f"v{number}", project=f"p{number % 2}"))["spec"]["project"])
        except ApiError:
            return ""

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(number)) for number in range(10)]
    assert len({each.result() for each in tasks} - {""}) == 1


async def test_concurrent_creates_never_exceed_quota(management: Management) -> None:
    quota = {**object_named("shop"), "spec": {"project": "shop", "limits": {"vclusters": 3}}}
    await management.client().create(QUOTAS, quota)
    reasons: list[str] = []

    async def attempt(number: int) -> None:
        try:
            await management.create(f"v{number}")
        except ApiError as error:
            reasons.append(error.message)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(attempt(number))
    assert len(await management.client().list(VCLUSTERS)) == 3
    assert len([each for each in reasons if each.startswith("QUOTA_EXCEEDED")]) == 17


async def add_host(management: Management, name: str = "east", **status: Any) -> None:
    """Add a reachable host cluster with Ingresses to planes."""
    offer = {"ingressClass": "nginx", "apiIngressDomain": "api.example.com", "apiAddress": "192.0.2.10"}
    spec = {"secretRef": {"name": name, "namespace": "tapestry-hosts"}, **offer}
    created = await management.orchestrator.create(HOST_CLUSTERS, {**object_named(name), "spec": spec})
    reachable = {**new_condition("Reachable", True, "Reachable"), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [reachable], **status}
    await management.orchestrator.patch(HOST_CLUSTERS, created, {"status": status}, subresource="status")


async def test_host_name_of_an_ingress_is_unique(management: Management) -> None:
    await add_host(management)
    ingress = {"enabled": True, "hostname": "blue.api.example.com"}
    messages: list[str] = []

    async def attempt(number: int) -> None:
        try:
            await management.create(f"v{number}", ingress=ingress)
        except ApiError as error:
            messages.append(error.message)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(attempt(number))
    assert len(await management.client().list(VCLUSTERS)) == 1
    assert {"spec.ingress.hostname" in each for each in messages} == {True}


async def test_concurrent_creates_never_exceed_capacity(management: Management) -> None:
    await add_host(management, capacity={"cpu": "3", "memory": "8Gi"})
    reasons: list[str] = []

    async def attempt(number: int) -> None:
        try:
            await management.create(f"v{number}", resources={"cpuRequest": "1"})
        except ApiError as error:
            reasons.append(error.message.partition(":")[0])

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(attempt(number))
    assert len(await management.client().list(VCLUSTERS)) == 3
    assert reasons == ["NO_HOST_CAPACITY"] * 5


async def test_growth_needs_capacity(management: Management) -> None:
    await add_host(management, capacity={"cpu": "3", "memory": "8Gi"})
    await management.create(resources={"cpuRequest": "2"})
    await management.run_operation()
    await management.write_status(hostCluster="east", plane="p")
    await management.update({"resources": {"cpuRequest": "3"}})
    await management.run_operation()
    with pytest.raises(ApiError, match="NO_HOST_CAPACITY"):
        await management.update({"resources": {"cpuRequest": "4"}})


async def test_ingress_needs_a_host_cluster(management: Management) -> None:
    ingress = {"enabled": True, "hostname": "blue.api.example.com"}
    with pytest.raises(ApiError, match=r"FIELD_UNSUPPORTED: spec\.ingress\.enabled"):
        await management.create(ingress=ingress)
    await management.create()
    await management.run_operation()
    with pytest.raises(ApiError, match=r"FIELD_UNSUPPORTED: spec\.ingress\.enabled"):
        await management.update({"ingress": ingress})


async def test_resume_is_checked_against_quota(management: Management) -> None:
    await management.create()
    await management.run_operation()
    await management.update({"suspended": True})
    await management.run_operation("Suspended")
    quota = {**object_named("shop"), "spec": {"project": "shop", "limits": {"runningVclusters": 1}}}
    await management.client().create(QUOTAS, quota)
    await management.create("other")
    with pytest.raises(ApiError, match=r"QUOTA_EXCEEDED.*runningVclusters: requested 1, used 1, limit 1"):
        await management.update({"suspended": False})


async def test_change_of_desired_state_requests_an_operation(management: Management) -> None:
    await management.create()
    await management.run_operation()
    for spec, verb in [
        ({"resources": {"cpuLimit": "2"}}, "Scale"),
        ({"sync": {"syncNodes": True}}, "Update"),
        ({"suspended": True}, "Suspend"),
    ]:
        updated = await management.update(spec, JOE)
        assert (updated["spec"]["operation"]["verb"], updated["spec"]["operation"]["principal"]) == (verb, "joe")
        await management.run_operation("Suspended" if verb == "Suspend" else "Running")


async def test_label_needs_no_operation(management: Management) -> None:
    created = await management.create()
    metadata = {"labels": {"team": "a"}}
    found = await management.client().patch(VCLUSTERS, object_named("v", "default"), {"metadata": metadata})
    assert found["spec"] == created["spec"]


async def test_one_operation_waits_and_another_is_rejected(management: Management) -> None:
    await management.create()
    with pytest.raises(ApiError, match="OPERATION_IN_PROGRESS"):
        await management.update({"suspended": True})
    await management.run_operation()
    await management.update({"suspended": True})
    with pytest.raises(ApiError, match="OPERATION_IN_PROGRESS"):
        await management.update({"suspended": False})
    journal = value_at(await management.client().get(VCLUSTERS, "v", "default"), "spec", "operation")
    running = {"id": journal["id"], "verb": "Suspend", "phaseFrom": "Running", "startTime": "2026-01-01T00:00:00Z"}
    await management.write_status(phase="Suspending", journal={**running, "principal": "jane"})
    assert (await management.update({"suspended": False}))["spec"]["operation"]["verb"] == "Resume"


async def test_wrong_phase_is_rejected(management: Management) -> None:
    await management.create()
    await management.run_operation("Error")
    with pytest.raises(ApiError, match=r"PHASE_NOT_ALLOWED.*only in RUNNING"):
        await management.update({"suspended": True})


@pytest.mark.parametrize(
    "forged",
    [{"principal": "joe"}, {"id": operation_of(Verb.SCALE, JOE, "r")["id"]}, {"requestId": ""}],
    ids=["principal", "id", "request id"],
)
async def test_operation_of_another_user_is_rejected(management: Management, forged: Object) -> None:
    await management.create()
    await management.run_operation()
    operation = operation_of(Verb.SCALE, JANE, "r")
    with pytest.raises(ApiError, match=r"spec\.operation"):
        await management.update({"operation": {**operation, **forged}})
    assert (await management.update({"operation": operation}))["spec"]["operation"]["id"] == operation["id"]


async def test_running_operation_can_be_cancelled_by_others(management: Management) -> None:
    await management.create()
    assert (await management.update({"operation": {"cancelled": True}}, JOE))["spec"]["operation"]["cancelled"]


async def test_status_belongs_to_the_orchestrator(management: Management) -> None:
    await management.create()
    named = object_named("v", "default")
    with pytest.raises(ApiError, match="PERMISSION_DENIED"):
        await management.client().patch(VCLUSTERS, named, {"status": {"phase": "Running"}}, subresource="status")
    with pytest.raises(ApiError, match="remove the finalizer"):
        await management.client().patch(VCLUSTERS, object_named("v", "default"), {"metadata": {"finalizers": []}})


async def test_unsupported_field_is_rejected_by_name(management: Management) -> None:
    with pytest.raises(ApiError, match=r"FIELD_UNSUPPORTED: spec\.enableHa") as caught:
        await management.create(enableHa=True)
    assert "fieldViolations" in caught.value.causes[0]["message"]
    await management.create()
    await management.run_operation()
    with pytest.raises(ApiError, match=r"FIELD_UNSUPPORTED: spec\.distro"):
        await management.update({"distro": "k3s"})


async def test_immutable_field_is_rejected_by_name(management: Management) -> None:
    await management.create()
    await management.run_operation()
    with pytest.raises(ApiError, match=r"spec\.storage\.enablePersistence: cannot change"):
        await management.update({"storage": {"enablePersistence": False}})


async def test_policy_holds_for_every_write(management: Management) -> None:
    with pytest.raises(ApiError, match="PERMISSION_DENIED"):
        await management.create(user=EVE)
    await management.create()
    with pytest.raises(ApiError, match="PERMISSION_DENIED"):
        await management.update({"suspended": True}, EVE)
    with pytest.raises(ApiError, match="PERMISSION_DENIED"):
        await management.client(EVE).delete(VCLUSTERS, object_named("v", "default"))


async def test_protected_cluster_is_not_deleted(management: Management) -> None:
    await management.create(deletionProtection=True)
    with pytest.raises(ApiError, match="DELETION_PROTECTED"):
        await management.client().delete(VCLUSTERS, object_named("v", "default"))
    await management.update({"deletionProtection": False})
    await management.client().delete(VCLUSTERS, object_named("v", "default"))
