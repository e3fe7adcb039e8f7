"""A host cluster with two tenants and foreign objects, and the cluster-admin of one tenant who attacks all others."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from tests.unit.dns.dns_servers import Upstream, consecutive_ports, running_upstream
from tests.unit.tenants.running_tenants import HostWorld, host_world, pod_named, run_pod
from yarl import URL

from tapestry.apis import keys
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.client import Client
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.objects import EMPTY_MAPPING, Object, labels_of, name_of, object_named, value_at
from tapestry.kube.resources import (
    CONFIGMAPS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INGRESSES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STORAGE_CLASSES,
    Resource,
)
from tapestry.tenants.host_connection import SHARED_NAMESPACE
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.host_rights import HOST_ACCOUNT

from .hostile_tenant import Calls, silent_listener, tls_context
from .plane_clients import client_of, plane_kubeconfig, token_of

CANARY = "canary-of-the-victim"
"""Text that the attacker may not see."""
FOREIGN = "foreign"
"""Namespace of the host cluster with objects of its owner."""
CLOSED = {"tests.example.com/closed": "true"}
"""Label of the node that is not leased to tenants."""
SYNC = {
    "ingresses": True,
    "priorityClasses": True,
    "networkPolicies": True,
    "disruptionBudgets": True,
}
INGRESS_CLASS, INGRESS_DOMAIN, INGRESS_NAMESPACE = "public", "apps.example.com", "ingress"
PRIORITIES = {"tenants-low": -30, "tenants-high": -20}
"""PriorityClasses that tenants may use."""
STORAGE_CLASS = "standard"
"""The only class that the host cluster offers."""
ACCOUNT_OF_PODS = "builder"
ACCOUNTS = {"victim": "victims", "mallory": ACCOUNT_OF_PODS}
"""Account of the pods of each tenant in the host cluster."""
OFFERS = {
    "ingressClass": INGRESS_CLASS,
    "ingressDomain": INGRESS_DOMAIN,
    "ingressNamespace": INGRESS_NAMESPACE,
    "storageClasses": [{"name": STORAGE_CLASS}],
    "priorityRange": {"classes": list(PRIORITIES)},
    "serviceAccounts": [ACCOUNT_OF_PODS, "victims"],
}
"""What the HostCluster offers."""
TIMEOUT = 20.0
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
WATCHED = (
    *(NAMESPACES, NODES, PERSISTENT_VOLUMES, PODS, SERVICES, ENDPOINT_SLICES, SECRETS, CONFIGMAPS),
    *(SERVICE_ACCOUNTS, PERSISTENT_VOLUME_CLAIMS, INGRESSES, NETWORK_POLICIES, DISRUPTION_BUDGETS, PRIORITY_CLASSES),
)
"""Kinds of the host cluster whose objects outside the attacker's namespace no attempt may change."""


class Target(NamedTuple):
    """A server, and the credentials for it."""

    url: str
    authorization: str


@dataclass
class EscapingTenant:
    """What the attacker has, and more than a real one knows: names of the host cluster and of the victim."""

    world: HostWorld
    session: aiohttp.ClientSession
    targets: dict[str, Target]
    """Servers that the attacker calls. All get its token of the plane, except for the host cluster with stolen tokens:
    `tenant account` is that of the attacker's tenant, `process account` that of the process of planes."""
    ids: dict[str, str]
    """Ids of the planes `mallory` and `victim`."""
    namespaces: dict[str, str]
    """Namespaces of both in the host cluster."""
    calls: Calls
    """Connections to a port of this machine that nobody may call."""
    values: dict[str, str]
    """Values for the placeholders in requests, for example `<node>`."""
    upstream: Upstream
    """DNS server of the host cluster, to which the resolvers of tenants forward names."""
    own_addresses: set[str] = field(default_factory=set)
    """Addresses of the attacker's pods."""

    @property
    def own_namespace(self) -> str:
        return self.namespaces["mallory"]

    def filled(self, content: Any) -> Any:
        """Return a body with the values of its placeholders."""
        text = content if isinstance(content, str) else json.dumps(content).replace('"<port>"', self.values["port"])
        for name, value in self.values.items():
            text = text.replace(f"<{name}>", value)
        return text if isinstance(content, str) else json.loads(text)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] = EMPTY_MAPPING,
        target: str = "plane",
    ) -> tuple[int, str]:
        """Send a request, and return the status and the text of the response."""
        server = self.targets[target]
        content = None if body is None else json.dumps(self.filled(body))
        kind = MERGE_PATCH if method == "PATCH" else JSON
        sent = {"Authorization": server.authorization, "Content-Type": kind}
        sent |= {name: self.filled(value) for name, value in headers.items()}
        url = URL(server.url + self.filled(path), encoded=True)
        async with self.session.request(method, url, data=content, headers=sent) as response:
            return response.status, await response.text(errors="replace")

    async def host_objects(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        return await self.world.host.client.list(resource, namespace)

    async def state_of_others(self) -> dict[str, str]:
        """Return all objects of the host cluster outside the attacker's namespace, without what changes by itself."""
        found = {}
        for resource in WATCHED:
            for each in await self.host_objects(resource):
                place = each["metadata"].get("namespace", "")
                claimed_by = value_at(each, "spec", "claimRef", "namespace") if resource is PERSISTENT_VOLUMES else None
                if self.own_namespace not in (place, name_of(each), claimed_by):
                    found[f"{resource.kind} {place}/{name_of(each)}"] = stable_text(each)
        return found


def stable_text(obj: Object) -> str:
    metadata = {key: obj["metadata"].get(key) for key in ("uid", "labels", "annotations", "deletionTimestamp")}
    content = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    return json.dumps([metadata, content], sort_keys=True)


@asynccontextmanager
async def escaping_tenant(folder: Path) -> AsyncIterator[EscapingTenant]:
    """Run the host cluster, the victim and the attacker, whose plane has one running pod."""
    async with AsyncExitStack() as stack:
        upstream, dns_ports = await stack.enter_async_context(running_upstream()), consecutive_ports(2)
        dns_range = f"{dns_ports[0]}-{dns_ports[-1]}"
        world = await stack.enter_async_context(host_world(folder, nodes=3, dns_port_range=dns_range))
        nodes = sorted(name_of(each) for each in await world.host.client.list(NODES))
        await world.host.client.patch(NODES, object_named(nodes[-1]), {"metadata": {"labels": CLOSED}})
        await create_foreign_objects(world.host.client)
        await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": OFFERS | dns_offers(upstream)})
        sync = {**SYNC, "nodeSelector": open_nodes()}
        of_pods = ACCOUNTS.items()
        ids = {name: await world.add_tenant(name, sync=sync, serviceAccountName=each) for name, each in of_pods}
        victim = await create_victim(world.tenant_client(ids["victim"]), ids["victim"])
        mallory = world.tenant_client(ids["mallory"])
        own = await run_pod(mallory, "own", volumes=[await volume_of_claim(mallory)])
        await mallory.create(SERVICES, {**object_named("own", "default"), "spec": {"ports": [{"port": 80}]}})
        await wait_for_address(mallory, "own")
        namespaces = {name: await namespace_of_tenant(world, name) for name in ids}
        twins = {name: (await world.host.client.list(PODS, namespaces[name]))[0] for name in ids}
        services = await world.host.client.list(SERVICES, namespaces["victim"])
        copies = await world.host.client.list(SECRETS, namespaces["victim"])
        claims = {name: (await world.host.client.list(PERSISTENT_VOLUME_CLAIMS, namespaces[name]))[0] for name in ids}
        kubeconfig = folder / "planes" / "kubeconfig"
        async with client_of(kubeconfig) as management:
            file = await plane_kubeconfig(management, "mallory", folder / "mallory.kubeconfig", byPath=True)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls_context(), limit=20),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        )
        await stack.enter_async_context(session)
        host = load_access([folder / "host" / "kubeconfig"], None, environ={}).server
        accounts = {
            "tenant account": (namespaces["mallory"], ACCOUNT),
            "process account": (SHARED_NAMESPACE, HOST_ACCOUNT),
        }
        own_url, authorization = load_access([file], None, environ={}).server, f"Bearer {token_of(file)}"
        targets = {
            "plane": Target(own_url, authorization),
            "victim": Target(own_url.replace(ids["mallory"], ids["victim"]), authorization),
            "management": Target(own_url.replace(ids["mallory"], "management"), authorization),
            "host cluster": Target(host, authorization),
        }
        for name, account in accounts.items():
            targets[name] = Target(host, f"Bearer {await account_token(world.host.client, *account)}")
        calls: Calls = []
        port = await stack.enter_async_context(silent_listener(calls))
        policies = await world.host.client.list(NETWORK_POLICIES, namespaces["mallory"])
        values = {
            "port": str(port),
            "dns-port": str(await dns_port(world, "mallory")),
            "victim-dns-port": str(await dns_port(world, "victim")),
            "victim-certificate": name_of(copies[0]),
            "base-policy": name_of(policies[0]),
            "node": own["spec"]["nodeName"],
            "closed": nodes[-1],
            "victim-ip": value_at(victim, "status", "podIP"),
            "victim-twin": name_of(twins["victim"]),
            "own-twin": name_of(twins["mallory"]),
            "victim-namespace": namespaces["victim"],
            "own-namespace": namespaces["mallory"],
            "victim-claim": name_of(claims["victim"]),
            "victim-volume": claims["victim"]["spec"]["volumeName"],
            "own-claim": name_of(claims["mallory"]),
            "victim-service": name_of(services[0]),
            "victim-service-ip": services[0]["spec"]["clusterIP"],
            "victim-id": ids["victim"],
            "own-id": ids["mallory"],
            "victim-tenant": labels_of(twins["victim"])[keys.CLUSTER_BINDING_UID],
            "victim-cluster": labels_of(twins["victim"])[keys.VIRTUAL_CLUSTER],
            "own-tenant": labels_of(twins["mallory"])[keys.CLUSTER_BINDING_UID],
            "own-cluster": labels_of(twins["mallory"])[keys.VIRTUAL_CLUSTER],
        }
        yield EscapingTenant(world, session, targets, ids, namespaces, calls, values, upstream)


def dns_offers(upstream: Upstream) -> Object:
    """Return the fields of the HostCluster that give its tenants DNS."""
    return {"dnsAddress": "192.0.2.10", "dnsUpstreams": [f"127.0.0.1:{upstream.port}"]}


async def dns_port(world: HostWorld, plane: str) -> int:
    """Return the port of the resolver of a plane."""
    found = await wait_for(
        world.management, PLANES, plane, until=lambda each: bool(value_at(each, "status", "dnsPort")), timeout=TIMEOUT
    )
    port: int = value_at(found, "status", "dnsPort")
    return port


async def account_token(host: Client, namespace: str, name: str) -> str:
    """Return a token of an account of the host cluster."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    response = await host.transport.send(Request("POST", path, {}, b'{"spec": {}}'))
    assert response.status == 201, response.body
    token: str = json.loads(response.body)["status"]["token"]
    return token


def open_nodes() -> Object:
    (key,) = CLOSED
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}]}


async def namespace_of_tenant(world: HostWorld, name: str) -> str:
    labels = f"tapestry.io/cluster-binding={name}"
    (namespace,) = await world.host.client.list(NAMESPACES, labels=labels)
    return name_of(namespace)


async def create_foreign_objects(host: Client) -> None:
    """Create objects of the owner of the host cluster."""
    await host.create(NAMESPACES, object_named(FOREIGN))
    for name, value in {**PRIORITIES, "of-owner": 1000}.items():
        await host.create(PRIORITY_CLASSES, {**object_named(name), "value": value})
    foreign = object_named("foreign", FOREIGN)
    await host.create(SECRETS, {**foreign, "stringData": {"key": CANARY}})
    await host.create(CONFIGMAPS, {**foreign, "data": {"key": CANARY}})
    await host.create(SERVICES, {**foreign, "spec": {"ports": [{"port": 80}], "selector": {"app": "foreign"}}})
    rule = {"host": "shop.example.com", "http": {"paths": [ingress_path("foreign")]}}
    await host.create(INGRESSES, {**foreign, "spec": {"rules": [rule]}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await host.create(PERSISTENT_VOLUME_CLAIMS, {**foreign, "spec": claim})
    volume = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "csi": {"driver": "disks.example.com", "volumeHandle": "foreign"},
    }
    await host.create(PERSISTENT_VOLUMES, {**object_named("foreign"), "spec": volume})
    await host.create(PODS, {**pod_named("foreign", FOREIGN), "metadata": labelled(foreign, {"app": "foreign"})})


def labelled(obj: Object, labels: dict[str, str]) -> Object:
    return {**obj["metadata"], "labels": labels}


def ingress_path(service: str) -> Object:
    backend = {"service": {"name": service, "port": {"number": 80}}}
    return {"path": "/", "pathType": "Prefix", "backend": backend}


async def create_victim(client: Client, id: str) -> Object:
    """Create what the victim has, and return its running pod."""
    shop = object_named("shop", "default")
    await client.create(SECRETS, {**shop, "stringData": {"key": CANARY}})
    await client.create(CONFIGMAPS, {**shop, "data": {"key": CANARY}})
    await client.create(SERVICES, {**shop, "spec": {"ports": [{"port": 80}], "selector": {"app": "shop"}}})
    await client.create(NETWORK_POLICIES, {**shop, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}})
    budget = {"selector": {"matchLabels": {"app": "shop"}}, "minAvailable": 1}
    await client.create(DISRUPTION_BUDGETS, {**shop, "spec": budget})
    host = f"shop.{id}.{INGRESS_DOMAIN}"
    rule = {"host": host, "http": {"paths": [ingress_path("shop")]}}
    tls = {"hosts": [host], "secretName": "shop"}
    await client.create(INGRESSES, {**shop, "spec": {"rules": [rule], "tls": [tls]}})
    mounts = [{"name": "s", "secret": {"secretName": "shop"}}, {"name": "c", "configMap": {"name": "shop"}}]
    pod = await run_pod(client, "shop", volumes=[*mounts, await volume_of_claim(client)])
    await wait_for_address(client, "shop")
    return pod


async def volume_of_claim(client: Client) -> Object:
    """Create a claim, and return the volume of a pod that mounts it."""
    await wait_for(client, STORAGE_CLASSES, STORAGE_CLASS, until=bool, timeout=TIMEOUT)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await client.create(PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "default"), "spec": spec})
    return {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


async def wait_for_address(client: Client, service: str) -> None:
    found = await wait_for(
        *(client, SERVICES, service, "default"),
        until=lambda each: bool(value_at(each, "spec", "clusterIP")),
        timeout=TIMEOUT,
    )
    assert found is not None
