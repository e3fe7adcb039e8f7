"""DNS of tenants: a resolver with a port for each plane that this process holds.

A resolver answers from the Services and EndpointSlices in the store of its plane. It reads them when the first query
arrives, and then follows changes, so a tenant without queries costs two sockets. When a plane closes while its pods
run, the resolver continues with the last names.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.hostclusters import HOST_CLUSTER
from tapestry.apiserver.core.store import ObjectVersion, Store, WatchEvent
from tapestry.controller import ObjectCache
from tapestry.dns.cluster_names import ClusterNames
from tapestry.dns.forwarding import Forwarder
from tapestry.dns.listener import DnsListener
from tapestry.dns.messages import wire_name
from tapestry.dns.resolver import Range, Resolver, Rules
from tapestry.dns.resolver_config import ResolverConfig, parsed_servers
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.objects import Object, uid_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_metrics import OPEN_PLANES
from tapestry.planes.plane_ports import PortUse
from tapestry.planes.plane_set import PlaneSet
from tapestry.process.work_meter import WorkMeter
from tapestry.syncer.translate.pod_dns import CLUSTER_DOMAIN
from tapestry.syncer.translate.services import SERVICE_NAME
from tapestry.tenants.dns_metrics import COUNTS
from tapestry.tenants.network_rules import PRIVATE, Destinations, forbidden_ranges, parsed_ranges

DOMAIN = wire_name(CLUSTER_DOMAIN)
DNS_PORTS = PortUse("--dns-port-range", "dnsPort")
LOOPBACK = tuple(ipaddress.ip_network(each) for each in ("127.0.0.0/8", "::1/128"))


class PlaneNames:
    """Names of an open plane, which follow its store. They stay as they are when it is closed."""

    def __init__(self, store: Store) -> None:
        self.store: Store | None = store
        self._names = ClusterNames(CLUSTER_DOMAIN)
        self._changed = {
            version.key for kind in (SERVICES, ENDPOINT_SLICES) for version in store.unsorted_objects(kind.name)
        }
        """Keys of objects to be read again. Writers of a plane do not wait for its DNS."""
        for kind in (SERVICES, ENDPOINT_SLICES):
            store.on_change(kind.name, self._on_change)

    def _on_change(self, event: WatchEvent) -> None:
        self._changed.add(event.object_version.key)

    def current(self) -> ClusterNames:
        if self._changed and self.store is not None:
            for resource, namespace, name in self._changed:
                self._put(resource, namespace, name, self.store.get(resource, namespace, name))
            self._changed.clear()
        return self._names

    def _put(self, resource: str, namespace: str, name: str, version: ObjectVersion | None) -> None:
        raw = version.raw if version is not None else None
        if resource == SERVICES.name:
            self._names.put_service(namespace, name, raw)
        else:
            service = version.labels.get(SERVICE_NAME, "") if version is not None else ""
            self._names.put_slice(namespace, name, service, raw)

    def close(self) -> None:
        """Follow the store no more."""
        self.current()
        self.store = None


@dataclass(frozen=True)
class TenantDns:
    """The resolvers of the planes of a process."""

    planes: PlaneSet
    hosts: ObjectCache
    tenant_of: Callable[[str], Object | None]
    """Return the binding of a plane, by the id of the plane."""
    tenants_at: Callable[[str, str], Collection[str]]
    """Return the UIDs of the bindings whose pods have an address, by the names of the host cluster and the address."""
    system: ResolverConfig
    group: asyncio.TaskGroup
    forwarder: Forwarder = field(default_factory=Forwarder)
    _names: dict[str, PlaneNames] = field(default_factory=dict)
    _rules: dict[str, tuple[Object, Object, Rules | None]] = field(default_factory=dict)
    """Rules of planes, with the binding and the HostCluster that they are made from."""

    async def listen(self, host: str, port: int, plane_id: str) -> "TenantListener":
        """Listen for the pods of a plane. Raises OSError."""
        resolver = Resolver(
            plane_id,
            DOMAIN,
            names=lambda: self.names(plane_id),
            rules=lambda: self.rules(plane_id),
            is_foreign=lambda address: self.is_foreign(plane_id, address),
            forwarder=self.forwarder,
        )
        listener = DnsListener(resolver, self.group, partial(meter_of, plane_id))
        await listener.start(host, port)
        COUNTS[plane_id] = listener.counts
        return TenantListener(listener, partial(self.forget, plane_id))

    def names(self, plane_id: str) -> ClusterNames | None:
        """Return the names of a plane; None if it has not been open in this process."""
        entry, known = self.planes.get(plane_id), self._names.get(plane_id)
        if entry is not None and entry.plane is not None:
            store = entry.plane.opened.store
            if known is None or known.store is not store:
                known = self._names[plane_id] = PlaneNames(store)
        if known is None:
            return None
        names, rules = known.current(), self.rules(plane_id)
        if rules is not None and names.allows_external_names != rules.allows_external_names:
            names.allow_external_names(rules.allows_external_names)
        return names

    def is_foreign(self, plane_id: str, address: str) -> bool:
        """Return whether an address is that of a pod of another tenant, and not also of one of this tenant."""
        binding = self.tenant_of(plane_id)
        owners = self.tenants_at(value_at(binding, "spec", "hostCluster", default=""), address)
        return bool(owners) and (binding is None or uid_of(binding) not in owners)

    def keep_names(self, plane: OpenPlane) -> None:
        """Keep the names of a plane that is about to close, unless the process ends."""
        if self.planes.is_stopped:
            return
        names = self._names.get(plane.id)
        if names is None or names.store is not plane.opened.store:
            names = self._names[plane.id] = PlaneNames(plane.opened.store)
        names.close()

    def forget(self, plane_id: str) -> None:
        """Forget a plane that this process does not hold any more, or that is no tenant."""
        COUNTS.pop(plane_id, None)
        self._names.pop(plane_id, None)
        self._rules.pop(plane_id, None)
        self.forwarder.forget(plane_id)

    def rules(self, plane_id: str) -> Rules | None:
        """Return the rules for a plane; None if it is no tenant."""
        binding = self.tenant_of(plane_id)
        host = self.hosts.store.get(value_at(binding, "spec", "hostCluster", default=""))
        if binding is None or host is None:
            return None
        known = self._rules.get(plane_id)
        if known is None or known[0] is not binding or known[1] is not host:
            known = self._rules[plane_id] = binding, host, self._new_rules(plane_id, binding, host)
        return known[2]

    def _new_rules(self, plane_id: str, obj: Object, host: Object) -> Rules | None:
        try:
            binding = binding_of(obj, plane_id, manager_namespace="", host=decode_spec(HOST_CLUSTER, host))
        except InvalidSpec:
            return None
        return dns_rules(binding, self.system)


def meter_of(plane_id: str) -> WorkMeter | None:
    """Return the meter of a plane, while it is open."""
    plane = OPEN_PLANES.get(plane_id)
    return plane.work if plane is not None else None


@dataclass(frozen=True)
class TenantListener:
    """Listener for the pods of a plane."""

    listener: DnsListener
    forget: Callable[[], None]

    async def stop(self) -> None:
        """Close the port, and forget the names."""
        await self.listener.stop()
        self.forget()


def dns_rules(binding: Binding, system: ResolverConfig) -> Rules:
    """Return what the resolver of a tenant forwards, and to whom it answers.

    It returns no address of another server that the pods of the tenant may not reach.
    """
    host = binding.host
    assert host is not None, "a tenant has a host cluster"
    own = [each for each in (host.api_address, host.dns_address) if each]
    clients = parsed_ranges((*host.private_ranges, *host.pod_ranges, *own))
    sources: tuple[Range, ...] = (*PRIVATE, *LOOPBACK, *clients)
    return Rules(
        servers=tuple(parsed_servers(host.dns_upstreams)) or system.servers,
        refused_domains=system.cluster_domains,
        refused_ranges=forbidden_ranges(binding, Destinations(forbidden=tuple(own))),
        source_ranges=sources,
        allows_external_names=binding.spec.isolation.allows_external_names,
    )
