"""Admission policies of a host cluster: twins of a syncer are accepted, and what a stolen token would write is not."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs
from tests.unit.tenants.effective_bindings import HOST, tenant

from tapestry.apis.clusterbindings import Binding, TenantSync
from tapestry.apis.hostclusters import PriorityRange
from tapestry.apis.priorities import PRIORITY_CLASSES, priority_class
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, object_named
from tapestry.kube.patches import owned_patch
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLES,
    DISRUPTION_BUDGETS,
    INGRESSES,
    NETWORK_POLICIES,
    Resource,
)
from tapestry.tenants.host_objects import ACCOUNT, HostFacts, destinations, host_namespace
from tapestry.tenants.host_policies import host_policies
from tapestry.tenants.host_registration import role_objects
from tapestry.tenants.host_setup import apply_tenant
from tapestry.tenants.sync.disruption_budgets import desired_budget
from tapestry.tenants.sync.ingress_translation import desired_ingress
from tapestry.tenants.sync.network_policy_translation import MAX_PEERS, Surroundings, desired_policy
from tapestry.tenants.tenant_binding import TenantAddresses

from .escape_rights import OTHER_KINDS, PLAIN_OBJECTS
from .planes import Plane, kubeconfig_with

OFFER = structs.replace(
    HOST,
    api_address="192.0.2.10",
    priority_range=PriorityRange(("tenants-high",)),
    service_accounts=("builder",),
)
SYNC = TenantSync(ingresses=True, network_policies=True, disruption_budgets=True, priority_classes=True)
FACTS = HostFacts(("203.0.113.10",), 20001, 20002, frozenset({"tenants-high"}))
BINDING = tenant(host=OFFER, sync=SYNC, service_account_name="builder")
WITHOUT_NAMESPACE = replace(BINDING, spec=structs.replace(BINDING.spec, mount_namespace=None))
"""The binding before its namespace exists."""
DENIED = (403, 422)
HOST_NAME = f"shop.{BINDING.spec.virtual_cluster}.apps.example.com"
ACTIVE_SECONDS, POLL_SECONDS = 30.0, 0.1


@dataclass(frozen=True)
class TenantAccount:
    """The account of a tenant in its namespace."""

    client: Client
    binding: Binding
    """The binding as its syncer reads it."""

    def filled(self, text: str) -> str:
        values = {
            "own-namespace": host_namespace(self.binding),
            "own-id": self.binding.spec.virtual_cluster or "",
            "own-cluster": self.binding.virtual_cluster,
            "own-tenant": self.binding.uid,
            "victim-id": "victim",
            "victim-namespace": "kube-system",
            "victim-cluster": "victim",
            "victim-tenant": "victim",
        }
        for name, value in values.items():
            text = text.replace(f"<{name}>", value)
        return text

    async def status(self, path: str, body: Any) -> tuple[int, bytes]:
        """Return the answer to a dry run."""
        content = self.filled(json.dumps(body)).encode()
        response = await self.client.transport.send(Request("POST", self.filled(path), {"dryRun": "All"}, content))
        return response.status, response.body


@pytest.fixture
async def account(shared_plane: Plane, tmp_path: Any) -> AsyncIterator[TenantAccount]:
    async with Client(HttpTransport(load_access([shared_plane.kubeconfig], environ={}))) as owner:
        for obj in (
            priority_class(),
            {**object_named("tenants-high"), "value": -20},
            {**object_named("of-owner"), "value": 9},
        ):
            await create(owner, PRIORITY_CLASSES, obj)
        for obj in host_policies():
            is_policy = obj["kind"] == ADMISSION_POLICIES.kind
            await create(owner, ADMISSION_POLICIES if is_policy else ADMISSION_POLICY_BINDINGS, obj)
        for resource, obj in role_objects():
            if resource is CLUSTER_ROLES:
                await create(owner, resource, obj)
        namespace = await apply_tenant(owner, WITHOUT_NAMESPACE, FACTS)
        issued = await owner.request_token(ACCOUNT, namespace)
        file = kubeconfig_with(shared_plane, issued["token"], tmp_path / "account.kubeconfig")
        async with Client(HttpTransport(load_access([file], environ={}))) as client:
            found = TenantAccount(client, tenant(host=OFFER, sync=SYNC, namespace=namespace))
            await wait_until_active(found)
            yield found


async def wait_until_active(account: TenantAccount) -> None:
    """Wait until the policies are active: a server reads them some time after their creation."""
    bad = OTHER_KINDS[0]
    async with asyncio.timeout(ACTIVE_SECONDS):
        while True:
            if (await account.status(bad.path, bad.body))[0] in DENIED:
                return
            await asyncio.sleep(POLL_SECONDS)


async def create(client: Client, resource: Resource, obj: Object) -> None:
    try:
        await client.create(resource, obj)
    except AlreadyExists:
        return


def ingress() -> Object:
    backend = {"service": {"name": "shop", "port": {"number": 80}}}
    rule = {"host": HOST_NAME, "http": {"paths": [{"path": "/a-b", "pathType": "Prefix", "backend": backend}]}}
    return {**object_named("shop", "team-a"), "spec": {"rules": [rule], "tls": [{"secretName": "certificate"}]}}


def largest_policies() -> Iterator[Object]:
    """Yield policies with as many rules and peers as a tenant may have, which cost the most to check."""
    block = {"ipBlock": {"cidr": "0.0.0.0/0"}}
    for name, rules in (("rules", [{}] * MAX_PEERS), ("peers", [{"to": [block] * (MAX_PEERS - 1)}])):
        yield {**object_named(name, "team-a"), "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": rules}}


def network_policy() -> Object:
    peers = [
        {"ipBlock": {"cidr": "0.0.0.0/0"}},
        {"ipBlock": {"cidr": "::/0"}},
        {"podSelector": {}},
        {"namespaceSelector": {}},
    ]
    ports = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 1, "endPort": 9}]
    rules = [{}, {"ports": ports}, {"to": peers}, {"to": [{"ipBlock": {"cidr": "10.96.0.11/32"}}]}]
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": rules}
    return {**object_named("rules", "team-a"), "spec": spec}


def budget() -> Object:
    return {**object_named("shop", "team-a"), "spec": {"selector": {}, "minAvailable": 1}}


async def test_twins_are_accepted_and_stay_as_they_are(account: TenantAccount) -> None:
    binding = account.binding
    around = Surroundings(destinations(binding, FACTS), TenantAddresses("10.96.0.11", "10.96.0.12"), {})
    for resource, twin in (
        (INGRESSES, desired_ingress(ingress(), binding)),
        (NETWORK_POLICIES, desired_policy(network_policy(), binding, around)),
        *((NETWORK_POLICIES, desired_policy(each, binding, around)) for each in largest_policies()),
        (DISRUPTION_BUDGETS, desired_budget(budget(), binding)),
    ):
        created = await account.client.converge(resource, None, twin)
        assert owned_patch(created, twin) == {}
        await account.client.delete(resource, created)


async def test_plain_objects_are_accepted(account: TenantAccount) -> None:
    for path, body in PLAIN_OBJECTS:
        status, text = await account.status(path, body)
        assert status == 201, text


async def test_stolen_token_is_refused_by_the_policies(account: TenantAccount) -> None:
    accepted = []
    for each in OTHER_KINDS:
        status, text = await account.status(each.path, each.body)
        is_decision = b"denied request" in text and b"error" not in text  # an expression that fails denies, too
        if status not in DENIED or not (is_decision or b"cannot create" in text):
            accepted.append(f"{each.name}: {status} {text[:300]!r}")
    assert not accepted, "\n".join(accepted)
