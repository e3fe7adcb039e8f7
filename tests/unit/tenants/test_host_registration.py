"""Registration of host clusters, on our API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CLUSTER_ROLES, SECRETS
from tapestry.local.control_planes import tapestry_control_plane
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.offers import Offer
from tapestry.planes.app import client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.tenants.app import run_tenants
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.host_registration import AddedHost, HostPlan, add_host, is_reachable, wait_for_host

NOW = datetime.now(UTC)
SPEC = {"allowLoopback": True}
NIGHTS = Offer(windows=({"start": "22:00", "end": "06:00"},), force_reclaim=True)


@dataclass
class Registration:
    clusters: AddedHost
    steps: list[Step] = field(default_factory=list)

    @property
    def host(self) -> Client:
        return self.clusters.host.client

    @property
    def management(self) -> Client:
        return self.clusters.management.client

    async def add(self, name: str = "east", spec: Object = SPEC, now: datetime = NOW, **options: object) -> set[str]:
        """Add the host cluster, and return the results of the steps."""
        self.steps.clear()
        await add_host(HostPlan(name, spec, **options), self.clusters, now)  # type: ignore[arg-type]
        return {each.result for each in self.steps}


@asynccontextmanager
async def bare_host(folder: Path) -> AsyncIterator[Registration]:
    """Run a host cluster without nodes and a process of planes."""
    config = PlanesConfig(data=str(folder / "planes"), name="here", address="127.0.0.1:0")
    async with (
        tapestry_control_plane(folder / "host") as running,
        run_planes(config, dict, extension=run_tenants) as process,
    ):
        access, steps = load_access([folder / "host" / "kubeconfig"], None, environ={}), []
        management = Cluster("management", client_of(process.management), steps.append)
        host = Cluster("host", running.client, steps.append)
        yield Registration(AddedHost(management, host, access, HttpTransport), steps)


async def test_second_run_changes_nothing(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        assert StepResult.CREATED in await registration.add()
        assert is_reachable(await wait_for_host("east", registration.management, 30))
        assert await registration.add() == {StepResult.UNCHANGED, StepResult.GRANTED}


async def test_second_run_repairs_rights_and_renews_token(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.add()
        await registration.host.patch(CLUSTER_ROLES, object_named(ACCOUNT), {"rules": []})
        assert await registration.add(now=NOW + timedelta(days=25)) == {
            *(StepResult.UNCHANGED, StepResult.UPDATED, StepResult.GRANTED)
        }
        assert (await registration.host.get(CLUSTER_ROLES, ACCOUNT))["rules"]
        assert [each.subject for each in registration.steps if each.result == StepResult.UPDATED] == [
            f"ClusterRole {ACCOUNT}",
            f"Secret {HOSTS_NAMESPACE}/east",
        ]


async def test_second_run_changes_given_options_only(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.add(spec={**SPEC, "apiAddress": "192.0.2.7"}, offer=NIGHTS)
        await registration.add(spec={"dnsAddress": "192.0.2.8"}, offer=Offer(grace_seconds=5))
        spec = (await registration.management.get(HOST_CLUSTERS, "east"))["spec"]
        assert (spec["apiAddress"], spec["dnsAddress"]) == ("192.0.2.7", "192.0.2.8")
        policy = (await registration.management.get(POLICIES, "east"))["spec"]
        assert (policy["forceReclaim"], policy["gracefulReclaimPeriodSeconds"]) == (True, 5)
        assert policy["timeWindows"][0]["start"] == "22:00"


async def test_policies_of_others_stay_in_effect(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.management.create(POLICIES, {**object_named("mine"), "spec": {"cluster": "east"}})
        await registration.add()
        assert [each["metadata"]["name"] for each in await registration.management.list(POLICIES)] == ["mine"]


@pytest.mark.parametrize("is_owners", [False, True], ids=["operator", "owner"])
async def test_policy_is_written_where_it_belongs(tmp_path: Path, is_owners: bool) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.add(is_owners_policy=is_owners, policies=({"spec": {"forceReclaim": True}},))
        sides = registration.management, registration.host
        found = [[value_at(each, "spec", "cluster") for each in await side.list(POLICIES)] for side in sides]
        assert found == ([[], ["east"]] if is_owners else [["east"], []])


async def test_without_policy_nothing_is_offered(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.add(has_policy=False)
        assert await registration.management.list(POLICIES) == []


async def test_a_host_has_one_name(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.add()
        await wait_for_host("east", registration.management, 30)
        with pytest.raises(JoinError, match="HostCluster east already"):
            await registration.add("west")
        assert await registration.management.find(SECRETS, "west", HOSTS_NAMESPACE) is None


async def test_foreign_roles_are_not_adopted(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.host.create(CLUSTER_ROLES, {**object_named(ACCOUNT), "rules": []})
        with pytest.raises(JoinError, match="was not created by Tapestry"):
            await registration.add()


async def test_loopback_needs_an_option(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        with pytest.raises(JoinError, match="--allow-loopback"):
            await registration.add(spec={})
        assert registration.steps == []


async def test_waiting_explains_a_silent_process(tmp_path: Path) -> None:
    async with bare_host(tmp_path) as registration:
        await registration.management.create(
            HOST_CLUSTERS,
            {**object_named("west"), "spec": {"secretRef": {"name": "west", "namespace": HOSTS_NAMESPACE}}},
        )
        with pytest.raises(JoinError, match="there is no Secret"):
            await wait_for_host("west", registration.management, 1)
