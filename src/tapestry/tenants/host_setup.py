"""Setup of a tenant in its host cluster, and its removal.

Both use the credential of the HostCluster. Writes converge: nothing is written when the objects are as they should be.
A namespace that is not provably the tenant's is never used, changed or deleted.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.client import Client
from tapestry.kube.errors import AlreadyExists, Forbidden, Invalid
from tapestry.kube.objects import Object, is_deleting, name_of, value_at, without_field
from tapestry.kube.patches import exact_map_patch
from tapestry.kube.resources import (
    ENDPOINT_SLICES,
    NAMESPACES,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SERVICES,
    Resource,
)
from tapestry.tenants.host_objects import (
    ACCOUNT,
    SETUP_KINDS,
    HostFacts,
    namespace_object,
    setup_objects,
)

KUBERNETES_SERVICE, KUBERNETES_NAMESPACE = "kubernetes", "default"
"""Service of the host's API server."""
RESOLVE_SECONDS = 5.0
"""Seconds to resolve the name of the host's API server."""
SETUP_SELECTOR = f"{keys.TENANT_SETUP}=true"


class HostSetupError(Exception):
    """An obstacle in the host cluster that somebody may remove. The message says what to do."""


@dataclass(frozen=True)
class Inventory:
    """Objects of a tenant that are left in its host cluster."""

    references: tuple[str, ...] = ()
    """Kinds with the names of their objects."""


# -- setup


async def apply_tenant(client: Client, binding: Binding, facts: HostFacts) -> str:
    """Create or update the objects of a tenant, and return the name of its namespace.

    Raises TenantSpecError, HostSetupError and KubeError.
    """
    desired = setup_objects(binding, facts)
    namespace = await apply_namespace(client, binding, facts)
    for kind in SETUP_KINDS:
        objects = [obj for resource, obj in desired if resource is kind]
        await apply_kind(client, binding, namespace, kind, objects)
    return namespace


async def apply_namespace(client: Client, binding: Binding, facts: HostFacts) -> str:
    desired = namespace_object(binding, facts)
    name = name_of(desired)
    current = await client.find(NAMESPACES, name)
    if current is not None and not binding.owns(current):
        message = f"namespace {name} of the host cluster does not belong to this tenant; its owner has to delete it"
        raise HostSetupError(message)
    if current is not None and is_deleting(current):
        raise HostSetupError(f"namespace {name} of the host cluster is being deleted; it is created again afterwards")
    try:
        await client.converge(NAMESPACES, current, desired)
    except AlreadyExists:
        raise HostSetupError(f"namespace {name} of the host cluster was created by somebody else just now") from None
    return name


async def apply_kind(
    client: Client, binding: Binding, namespace: str, resource: Resource, desired: Iterable[Object]
) -> None:
    """Make the setup objects of one kind equal to `desired`, and delete the others."""
    existing = {name_of(each): each for each in await client.list(resource, namespace, labels=SETUP_SELECTOR)}
    for obj in desired:
        current = existing.pop(name_of(obj), None)
        await apply_object(client, binding, resource, current, obj)
    for obj in existing.values():
        if binding.owns(obj) and not is_deleting(obj):
            await client.delete_if_exists(resource, obj)


async def apply_object(
    client: Client, binding: Binding, resource: Resource, current: Object | None, desired: Object
) -> None:
    name, namespace = name_of(desired), desired["metadata"]["namespace"]
    try:
        current = current or await client.find(resource, name, namespace)
    except Forbidden as error:  # the host was added before the tenants could have this kind
        raise HostSetupError(f"{error.message}; add the host again") from error
    if current is not None and not binding.owns(current):
        raise HostSetupError(f"{resource.kind} {namespace}/{name} of the host cluster is not ours; delete it there")
    if current is not None and must_be_replaced(resource, current, desired):
        await client.delete_if_exists(resource, current)
        current = None
    if resource is SERVICES and current is not None:
        desired = without_address(desired)
    try:
        await converge_with_address(client, resource, current, with_exact_maps(resource, current, desired))
    except (Forbidden, Invalid, AlreadyExists) as error:
        raise HostSetupError(f"{resource.kind} {namespace}/{name} of the host cluster: {error.message}") from error


async def converge_with_address(client: Client, resource: Resource, current: Object | None, desired: Object) -> None:
    """Create or update an object. A Service whose address the host cluster cannot give gets another one."""
    try:
        await client.converge(resource, current, desired)
    except Invalid:
        if resource is not SERVICES or value_at(desired, "spec", "clusterIP") is None:
            raise
        await client.converge(resource, current, without_address(desired))


def without_address(service: Object) -> Object:
    """Return a Service without an address of its choice. An existing one keeps its address, which pods use."""
    return {**service, "spec": without_field(service["spec"], "clusterIP")}


def must_be_replaced(resource: Resource, current: Object, desired: Object) -> bool:
    """Return whether fields differ that cannot change."""
    if resource is ROLE_BINDINGS:
        return bool(current.get("roleRef") != desired["roleRef"])
    if resource is ENDPOINT_SLICES:
        return bool(current.get("addressType") != desired["addressType"])
    return False


def with_exact_maps(resource: Resource, current: Object | None, desired: Object) -> Object:
    """Return `desired` without the amounts of a quota that it does not mention."""
    if resource is not RESOURCE_QUOTAS or current is None:
        return desired
    hard = exact_map_patch(value_at(current, "spec", "hard"), desired["spec"]["hard"])
    return {**desired, "spec": {"hard": hard}}


async def host_facts(client: Client, server: str) -> HostFacts:
    """Return the facts about a host cluster that are the same for all tenants. `server` is the URL of its API."""
    classes = frozenset(name_of(each) for each in await client.list(PRIORITY_CLASSES))
    return HostFacts(api_servers=await api_server_addresses(client, server), priority_classes=classes)


async def api_server_addresses(client: Client, server: str) -> tuple[str, ...]:
    """Return the addresses of the host's API server: of its URL, its Service and its endpoints."""
    found = {*await resolved(urlsplit(server).hostname or "")}
    if service := await client.find(SERVICES, KUBERNETES_SERVICE, KUBERNETES_NAMESPACE):
        found.update(value_at(service, "spec", "clusterIPs", default=[]))
    selector = f"kubernetes.io/service-name={KUBERNETES_SERVICE}"
    for endpoints in await client.list(ENDPOINT_SLICES, KUBERNETES_NAMESPACE, labels=selector):
        for each in endpoints.get("endpoints") or ():
            found.update(each.get("addresses") or ())
    return tuple(sorted(filter(is_routed, found)))


async def resolved(host: str) -> list[str]:
    """Return the addresses of a host name; none if it does not resolve, as behind a proxy."""
    with suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return [str(address[0]) for *_, address in found]


def is_routed(address: str) -> bool:
    """Return whether something other than the machine itself may have an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


# -- removal


async def remove_tenant(client: Client, binding: Binding) -> Inventory:
    """Delete what a tenant has, and return what is left. Call it again until that is nothing."""
    left = []
    for namespace in await client.list(NAMESPACES, labels=owner_selector(binding)):
        left.append(f"Namespace {name_of(namespace)}")
        if binding.owns(namespace) and not is_deleting(namespace):
            await revoke(client, binding, name_of(namespace))
            await client.delete_if_exists(NAMESPACES, namespace)
    return Inventory(tuple(left))


def owner_selector(binding: Binding) -> str:
    return ",".join(f"{key}={value}" for key, value in binding.owner_labels().items())


async def revoke(client: Client, binding: Binding, namespace: str) -> None:
    """Take the rights from the account of a tenant, so that nothing new appears in its namespace."""
    role_binding = await client.find(ROLE_BINDINGS, ACCOUNT, namespace)
    if role_binding is not None and binding.owns(role_binding):
        await client.delete_if_exists(ROLE_BINDINGS, role_binding)
