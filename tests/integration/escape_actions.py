"""Attempts of a tenant that take several steps."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.tenants.running_tenants import pod_named

from tapestry.apis import keys
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.kube.objects import Object, annotations_of, is_deleting, object_named
from tapestry.kube.resources import NAMESPACES, PODS
from tapestry.tenants.host_connection import SHARED_NAMESPACE

from .escape_objects import ACCEPTED, REJECTED, SLICES, VOLUMES
from .escape_requests import PODS as POD_PATH
from .escape_requests import SERVICES
from .escaping_tenant import CANARY, TIMEOUT, EscapingTenant
from .hostile_tenant import definition

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
MAPS = "/api/v1/namespaces/default/configmaps"
NOT_ANSWERED = (400, 403, 404, 500, 502, 503)
POLL_SECONDS = 0.05
KILL_SWITCH_SECONDS = 10.0
"""Seconds until all twins are being deleted: generous, because other tests run at the same time."""
Act = Callable[[EscapingTenant], Awaitable[None]]


async def written(tenant: EscapingTenant, path: str, body: Any, statuses: tuple[int, ...] = ACCEPTED) -> None:
    status, text = await tenant.request("POST", path, body)
    assert status in statuses, f"{path}: {status}: {text[:300]}"


# -- calls to Services of the tenant


def service_at(address: str) -> Act:
    """Make a Service whose endpoint is an address of others, and let the plane call it in every way."""

    async def act(tenant: EscapingTenant) -> None:
        name = f"at-{address.strip('<>').replace('.', '-')}"
        filled, port = tenant.filled(address), int(tenant.values["port"])
        await written(tenant, SERVICES, {"metadata": {"name": name}, "spec": {"ports": [{"port": port}]}})
        slice = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [filled], "conditions": {"ready": True}}],
            "ports": [{"port": port}],
        }
        await written(tenant, SLICES, slice, (*ACCEPTED, *REJECTED))
        for scheme in ("", "https:"):
            await not_answered(tenant, "GET", f"{SERVICES}/{scheme}{name}:{port}/proxy/")
        await webhook_at(tenant, name, port)
        await aggregated_api_at(tenant, name, port)
        await conversion_at(tenant, name, port)

    return act


async def not_answered(tenant: EscapingTenant, method: str, path: str, body: Any = None) -> None:
    status, text = await tenant.request(method, path, body)
    assert status in NOT_ANSWERED, f"{path}: {status}: {text[:300]}"
    assert CANARY not in text


async def webhook_at(tenant: EscapingTenant, service: str, port: int) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    target = {"service": {"name": service, "namespace": "default", "port": port}}
    webhook = {"name": "a.example.com", "rules": [rule], "clientConfig": target, "timeoutSeconds": 2}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    path = f"{REGISTRATION}/validatingwebhookconfigurations"
    await written(tenant, path, {"metadata": {"name": service}, "webhooks": [webhook]})
    try:
        async with asyncio.timeout(TIMEOUT):
            while (await tenant.request("POST", MAPS, {"metadata": {"generateName": "m"}}))[0] != 500:
                pass  # until the webhook is active
    finally:
        await tenant.request("DELETE", f"{path}/{service}")


async def aggregated_api_at(tenant: EscapingTenant, service: str, port: int) -> None:
    group = f"{service}.example.com"
    spec = {
        "group": group,
        "version": "v1",
        "insecureSkipTLSVerify": True,
        "service": {"name": service, "namespace": "default", "port": port},
        "groupPriorityMinimum": 10,
        "versionPriority": 10,
    }
    await written(tenant, API_SERVICES, {"metadata": {"name": f"v1.{group}"}, "spec": spec})
    await not_answered(tenant, "GET", f"/apis/{group}/v1/anything")
    await tenant.request("DELETE", f"{API_SERVICES}/v1.{group}")


async def conversion_at(tenant: EscapingTenant, service: str, port: int) -> None:
    client = {"service": {"name": service, "namespace": "default", "port": port}}
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}
    group = f"conversion-{service}.example.com"
    body = definition("converts", group, conversion=conversion)
    version = body["spec"]["versions"][0]
    body["spec"]["versions"].append({**version, "name": "v2", "storage": False})
    await written(tenant, CRDS, body)
    widget = {"apiVersion": f"{group}/v2", "kind": "Converts", "metadata": {"name": "w"}}
    await not_answered(tenant, "POST", f"/apis/{group}/v2/namespaces/default/converts", widget)


# -- status that the tenant invents


def forged_status(**status: Any) -> Act:
    """Write a status to a running pod. It must be that of the twin again, and lead the plane nowhere else."""

    async def act(tenant: EscapingTenant) -> None:
        before = json.loads((await tenant.request("GET", f"{POD_PATH}/own"))[1])["status"]
        code, _ = await tenant.request("PATCH", f"{POD_PATH}/own/status", {"status": status})
        await not_answered(tenant, "GET", f"{POD_PATH}/own:<port>/proxy/")
        if code not in ACCEPTED:
            return
        async with asyncio.timeout(TIMEOUT):
            while True:
                now = json.loads((await tenant.request("GET", f"{POD_PATH}/own"))[1])["status"]
                if all(now.get(key) == before.get(key) for key in ("podIP", "hostIP")):
                    return
                await asyncio.sleep(POLL_SECONDS)

    return act


# -- nodes that the tenant holds on to


async def holds_on_to_nodes(tenant: EscapingTenant) -> None:
    """Try everything against the deletion of pods. The owner must get its nodes back all the same."""
    lasting = pod_named("long-grace")
    lasting["spec"]["terminationGracePeriodSeconds"] = 1_000_000
    held = pod_named("finalizer")
    held["metadata"]["finalizers"] = ["example.com/never"]
    for body in (lasting, held):
        await written(tenant, POD_PATH, body)
    names = {"long-grace", "finalizer"}
    await wait_for_twins(tenant, TIMEOUT, lambda twins: names.issubset(map(virtual_name, twins)))
    await deny_every_write(tenant)
    annotation = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    host = tenant.world.host.client
    await host.patch(NAMESPACES, object_named(SHARED_NAMESPACE), annotation)
    await wait_for_twins(tenant, KILL_SWITCH_SECONDS, lambda twins: all(map(is_deleting, twins)))
    graces = [each["metadata"]["deletionGracePeriodSeconds"] for each in await scheduled_twins(tenant)]
    assert max(graces, default=0) <= MAX_GRACE_SECONDS, f"a twin keeps its node for {max(graces)} s"
    await wait_for_twins(tenant, MAX_GRACE_SECONDS + TIMEOUT, lambda twins: not twins)


async def wait_for_twins(tenant: EscapingTenant, seconds: float, until: Callable[[list[Object]], bool]) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if until(await scheduled_twins(tenant)):
                return
            await asyncio.sleep(POLL_SECONDS)


async def scheduled_twins(tenant: EscapingTenant) -> list[Object]:
    twins = await tenant.host_objects(PODS, tenant.own_namespace)
    return [each for each in twins if each["spec"].get("nodeName")]


def virtual_name(twin: Object) -> str | None:
    return annotations_of(twin).get(keys.VIRTUAL_POD_NAME)


async def deny_every_write(tenant: EscapingTenant) -> None:
    """Let an admission policy of the plane deny all writes to pods and nodes."""
    resources = ["pods", "pods/*", "nodes", "nodes/*", "events", "persistentvolumeclaims"]
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": resources}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "never"}],
        "failurePolicy": "Fail",
    }
    await written(tenant, f"{REGISTRATION}/validatingadmissionpolicies", {"metadata": {"name": "never"}, "spec": spec})
    binding = {"metadata": {"name": "never"}, "spec": {"policyName": "never", "validationActions": ["Deny"]}}
    await written(tenant, f"{REGISTRATION}/validatingadmissionpolicybindings", binding)
    async with asyncio.timeout(TIMEOUT):
        while (await tenant.request("DELETE", f"{POD_PATH}/own?dryRun=All"))[0] in ACCEPTED:
            pass  # until the policy is active


def released_volume(name: str) -> Act:
    """Release a volume with a name of the victim, so that the syncer deletes it. Only the one of the plane may go."""

    async def act(tenant: EscapingTenant) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": keys.HOST_VOLUME_DRIVER, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "default", "name": "gone", "uid": "00000000-0000-4000-8000-000000000000"},
        }
        await written(tenant, VOLUMES, {"metadata": {"name": name}, "spec": spec})
        async with asyncio.timeout(TIMEOUT):
            while (await tenant.request("GET", f"{VOLUMES}/{name}"))[0] in ACCEPTED:
                await tenant.request("PATCH", f"{VOLUMES}/{name}/status", {"status": {"phase": "Released"}})

    return act


ACTIONS: dict[str, Act] = {
    **{f"released volume {each}": released_volume(each) for each in ("<victim-twin>", "<victim-service>")},
    **{f"Service at {each}": service_at(each) for each in ("127.0.0.1", "169.254.169.254", "<victim-ip>")},
    "address of the victim in a status": forged_status(podIP="<victim-ip>", podIPs=[{"ip": "<victim-ip>"}]),
    "address of loopback in a status": forged_status(podIP="127.0.0.1", podIPs=[{"ip": "127.0.0.1"}]),
    "host address in a status": forged_status(hostIP="10.9.9.9", hostIPs=[{"ip": "10.9.9.9"}]),
}
