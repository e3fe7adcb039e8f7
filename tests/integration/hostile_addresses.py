"""Objects of a hostile tenant that name addresses to which the process must not connect."""

import socket

from tests.unit.planes.listening_planes import MAPS

from .hostile_requests import CRDS, PODS, SERVICES, WEBHOOKS, Act
from .hostile_tenant import MERGE_PATCH, HostileTenant, definition

API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"

LOCAL_HOSTS = (
    *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0"),
    *("127.1.2.3", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]"),
    *("169.254.169.254", "2852039166", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "100.100.100.200", "[fe80::1]"),
    *("[2002:7f00:1::]", socket.gethostname()),
)


def webhook_to(url: str) -> Act:
    """Let every create of a ConfigMap call the URL."""

    async def act(tenant: HostileTenant) -> None:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        webhook = {"name": "a.example.com", "rules": [rule], "clientConfig": {"url": tenant.format(url)}}
        webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
        status, text = await tenant.at_home("POST", WEBHOOKS, {"metadata": {"name": "hook"}, "webhooks": [webhook]})
        if status == 422:
            return
        assert status == 201, text
        try:
            text = await tenant.at_home_until("POST", MAPS, {"metadata": {"generateName": "m"}}, 500)
            assert any(reason in text for reason in ("address not allowed", "no such host", "not a canonical")), text
        finally:
            await tenant.at_home("DELETE", f"{WEBHOOKS}/hook")

    return act


async def webhook_to_service(tenant: HostileTenant) -> None:
    service = {"type": "ExternalName", "externalName": "localhost"}
    await tenant.created_at_home(SERVICES, {"metadata": {"name": "hook"}, "spec": service})
    client = {"service": {"name": "hook", "namespace": "default", "port": tenant.port}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook = {"name": "a.example.com", "rules": [rule], "clientConfig": client}
    webhook |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    await tenant.created_at_home(WEBHOOKS, {"metadata": {"name": "service"}, "webhooks": [webhook]})
    try:
        text = await tenant.at_home_until("POST", MAPS, {"metadata": {"generateName": "m"}}, 500)
        assert "address not allowed" in text
    finally:
        await tenant.at_home("DELETE", f"{WEBHOOKS}/service")


async def conversion_to_loopback(tenant: HostileTenant) -> None:
    client = {"url": f"https://127.0.0.1:{tenant.port}/convert"}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
    }
    body = definition("converts", "a.example.com", conversion=conversion)
    version = body["spec"]["versions"][0]
    body["spec"]["versions"].append({**version, "name": "v2", "storage": False})
    await tenant.created_at_home(CRDS, body)
    path = "/apis/a.example.com/v2/namespaces/default/converts"
    widget = {"apiVersion": "a.example.com/v2", "kind": "Converts", "metadata": {"name": "w"}}
    assert "address not allowed" in await tenant.at_home_until("POST", path, widget, 500)


async def api_service_to_loopback(tenant: HostileTenant) -> None:
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": tenant.port}]}
    await tenant.created_at_home(SERVICES, {"metadata": {"name": "api"}, "spec": service})
    spec = {
        "group": "x.example.com",
        "version": "v1",
        "insecureSkipTLSVerify": True,
        "service": {"name": "api", "namespace": "default", "port": tenant.port},
        "groupPriorityMinimum": 10,
        "versionPriority": 10,
    }
    await tenant.created_at_home(API_SERVICES, {"metadata": {"name": "v1.x.example.com"}, "spec": spec})
    assert (await tenant.at_home("GET", "/apis/x.example.com/v1/anything"))[0] == 503


def node_at(address: str) -> Act:
    """Read and run in a pod on a node whose kubelet is said to be at the address."""

    async def act(tenant: HostileTenant) -> None:
        name = address.replace(":", "-").replace(".", "-")
        await tenant.created_at_home("/api/v1/nodes", {"metadata": {"name": f"n-{name}"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": tenant.port}},
        }
        patch = {"Content-Type": MERGE_PATCH}
        code, text = await tenant.at_home("PATCH", f"/api/v1/nodes/n-{name}/status", {"status": status}, headers=patch)
        assert code == 200, text
        container = {"name": "c", "image": "i", "ports": [{"containerPort": tenant.port}]}
        spec = {"nodeName": f"n-{name}", "containers": [container]}
        await tenant.at_home_until("POST", PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec}, 201)
        upgrade = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
        for path, headers in (
            (f"{PODS}/p-{name}/log", {}),
            (f"{PODS}/p-{name}/exec?command=id&stdout=true", upgrade),
            (f"{PODS}/p-{name}/portforward", upgrade),
            (f"/api/v1/nodes/n-{name}/proxy/pods", {}),
        ):
            code, text = await tenant.at_home("GET", path, headers=headers)
            assert (code in (400, 500, 503), "address not allowed" in text) == (True, True), (path, code, text)

    return act


def pod_at(address: str) -> Act:
    async def act(tenant: HostileTenant) -> None:
        name = f"at-{address.replace(':', '-').replace('.', '-')}"
        container = {"name": "c", "image": "i", "ports": [{"containerPort": tenant.port}]}
        body = {"metadata": {"name": name}, "spec": {"nodeName": "nowhere", "containers": [container]}}
        await tenant.at_home_until("POST", PODS, body, 201)
        status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        await tenant.at_home("PATCH", f"{PODS}/{name}/status", status, headers={"Content-Type": MERGE_PATCH})
        code, text = await tenant.at_home("GET", f"{PODS}/{name}:{tenant.port}/proxy/")
        assert code in (400, 403, 503), text

    return act


def service_at(address: str) -> Act:
    async def act(tenant: HostileTenant) -> None:
        name = f"at-{address.replace(':', '-').replace('.', '-')}"
        body = {"metadata": {"name": name}, "spec": {"ports": [{"port": tenant.port}]}}
        await tenant.created_at_home(SERVICES, body)
        subset = {"addresses": [{"ip": address}], "ports": [{"port": tenant.port}]}
        await tenant.at_home(
            "POST", "/api/v1/namespaces/default/endpoints", {"metadata": {"name": name}, "subsets": [subset]}
        )
        code, text = await tenant.at_home("GET", f"{SERVICES}/{name}:{tenant.port}/proxy/")
        assert code in (400, 403, 503), text

    return act
