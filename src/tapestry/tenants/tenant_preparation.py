"""Preparation of host clusters for tenants: the objects of each tenant, and access with the account of the tenant."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tapestry.apis.clusterbindings import Binding
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.kube.objects import value_at
from tapestry.kube.resources import SERVICES
from tapestry.tenants.api_service import certificate_names, is_address
from tapestry.tenants.host_clusters import Host
from tapestry.tenants.host_objects import (
    API_SERVICE,
    DNS_SERVICE,
    HostFacts,
    destinations,
    host_namespace,
    priority_classes,
)
from tapestry.tenants.host_setup import apply_tenant, host_facts
from tapestry.tenants.host_tokens import TenantToken, tenant_access
from tapestry.tenants.leased_nodes import has_leased_nodes
from tapestry.tenants.network_rules import Destinations

RECHECK_SECONDS = 600.0
"""Seconds after which the objects of a tenant in the host cluster are compared again, although nothing changed."""

PortOf = Callable[[str], int | None]
"""Return a port of this process that is reserved for a plane, by the id of the plane; None if there is none."""


@dataclass(frozen=True)
class Prepared:
    """A prepared tenant."""

    namespace: str
    access: Access
    """Access to the host cluster with the account of the tenant."""
    api_port: int | None
    """The plane's own port in this process; None if it has none."""
    api_address: str
    """Address of the Service that leads to that port; empty if there is none."""
    dns_port: int | None
    """Port of the DNS resolver for the plane; None if there is none, or pods do not reach it."""
    dns_address: str
    """Address of the Service that leads to the resolver; empty if there is none."""
    destinations: Destinations
    priority_classes: tuple[str, ...]
    """Classes for the priorities of its pods; empty if all have the same."""


@dataclass(frozen=True)
class LastPreparation:
    inputs: tuple[Binding, HostFacts, str]
    time: float
    prepared: Prepared


@dataclass(frozen=True)
class Preparation:
    """Prepare host clusters for tenants, again when the inputs change."""

    api_port: PortOf
    api_host: str
    """Host on which these ports listen."""
    dns_port: PortOf
    set_certificate_names: Callable[[str, tuple[str, ...]], None]
    """Set additional names in the serving certificate of a plane, by the id of the plane."""
    monotonic: Callable[[], float] = time.monotonic
    _last: dict[str, LastPreparation] = field(default_factory=dict)
    """By the id of the plane."""
    _facts: dict[str, tuple[float, HostFacts]] = field(default_factory=dict)
    """Facts about each host cluster, with the time at which they were read."""

    async def prepare(self, binding: Binding, host: Host) -> Prepared:
        """Create or update the objects of a tenant, and return how to reach its namespace.

        Raises KubeError, and the errors of `host_setup`.
        """
        plane = binding.spec.virtual_cluster
        assert plane is not None
        dns_port = self.dns_port(plane) if not has_leased_nodes(host.connection.nodes.source) else None
        facts = replace(await self._host_facts(host), api_port=self.api_port(plane), dns_port=dns_port)
        inputs, last, now = (binding, facts, host.identity), self._last.get(plane), self.monotonic()
        if last is not None and last.inputs == inputs and now - last.time < RECHECK_SECONDS:
            return last.prepared
        client = host.connection.client
        namespace = await apply_tenant(client, binding, facts)
        is_same = last is not None and last.inputs[2] == host.identity and last.prepared.namespace == namespace
        prepared = Prepared(
            namespace,
            last.prepared.access if is_same and last is not None else self._access(host, namespace),
            facts.api_port,
            await service_address(client, binding, API_SERVICE),
            facts.dns_port,
            await service_address(client, binding, DNS_SERVICE),
            destinations(binding, facts),
            priority_classes(binding, facts),
        )
        names = certificate_names(prepared.api_address, binding.spec.api_host)
        self.set_certificate_names(plane, names)  # before a pod has the address
        self._last[plane] = LastPreparation(inputs, now, prepared)
        return prepared

    def forget(self, plane: str, binding_uid: str) -> None:
        """Forget the tenant of a plane, unless another binding of the plane is the prepared one."""
        last = self._last.get(plane)
        if last is not None and last.inputs[0].uid == binding_uid:
            del self._last[plane]
            self.set_certificate_names(plane, ())

    def _access(self, host: Host, namespace: str) -> Access:
        connection = host.connection
        assert connection.access is not None, "a connected host has an access"
        return tenant_access(connection.access, TenantToken(connection.client, namespace))

    async def _host_facts(self, host: Host) -> HostFacts:
        """Return what the objects of all tenants of a host depend on."""
        name, now = host.connection.name, self.monotonic()
        known = self._facts.get(name)
        if known is None or now - known[0] >= RECHECK_SECONDS:
            assert host.connection.access is not None
            server = host.connection.access.server
            known = now, await host_facts(host.connection.client, server)
            self._facts[name] = known
        return known[1]


async def service_address(client: Client, binding: Binding, name: str) -> str:
    """Return the address of a Service of a tenant's setup; empty if it does not exist, or has none."""
    service = await client.find(SERVICES, name, host_namespace(binding))
    if service is None or not binding.owns(service):
        return ""
    address: str = value_at(service, "spec", "clusterIP", default="")
    return address if is_address(address) else ""
