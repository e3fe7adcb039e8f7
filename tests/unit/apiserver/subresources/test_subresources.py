"""Subresources: ephemeral containers, resize, signing requests, scales, streams and logs."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tapestry.apiserver.access.authentication import UnionAuthenticator, authenticate_localhost
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.config import KubeletClientConfig as KubeletSettings
from tapestry.apiserver.core.egress import EgressPolicy
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.subresources.kubelet_client import KubeletClient
from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEAMS = "/apis/example.com/v1/namespaces/default/teams"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def pod_body(name: str = "web", **spec: Any) -> Object:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    containers = [{"name": "c", "image": "nginx", "resources": resources}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


# -- pods


async def test_ephemeral_containers_can_only_be_added(call: ServerClient) -> None:
    await call.made(PODS, pod_body())
    added = {"ephemeralContainers": [{"name": "debug", "image": "busybox"}], "nodeName": "elsewhere"}
    status, pod = await call("PATCH", f"{PODS}/web/ephemeralcontainers", {"spec": added}, kind=STRATEGIC)
    assert status == 200
    assert [each["name"] for each in pod["spec"]["ephemeralContainers"]] == ["debug"]
    assert "nodeName" not in pod["spec"]
    assert pod["metadata"]["generation"] == 2
    removal = [{"op": "remove", "path": "/spec/ephemeralContainers/0"}]
    status, response = await call("PATCH", f"{PODS}/web/ephemeralcontainers", removal, kind=JSON_PATCH)
    assert (status, 'existing ephemeral containers "debug" may not be removed' in response["message"]) == (422, True)
    other = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "other"}]}}
    status, response = await call("PATCH", f"{PODS}/web/ephemeralcontainers", other, kind=STRATEGIC)
    assert status == 422
    assert 'existing ephemeral containers "debug" may not be changed' in response["message"]


async def test_resize_changes_only_resources(call: ServerClient) -> None:
    await call.made(PODS, pod_body())
    bigger = {"name": "c", "image": "ignored", "resources": {"requests": {"cpu": "2"}}}
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [bigger]}}
    assert (await call("PATCH", f"{PODS}/web", patch, kind=STRATEGIC))[0] == 422
    status, pod = await call("PATCH", f"{PODS}/web/resize", patch, kind=STRATEGIC)
    assert status == 200
    [container] = pod["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert container["image"] == "nginx"
    assert "labels" not in pod["metadata"]
    assert pod["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (
            {"requests": {"memory": "1Gi"}},
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be",
        ),
        (
            {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "Pod QOS Class may not change as a result of resizing",
        ),
        (
            {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
    ],
)
async def test_invalid_resize_is_rejected(call: ServerClient, resources: Object, message: str) -> None:
    pod = await call.made(PODS, pod_body())
    [container] = pod["spec"]["containers"]
    changed = {**pod, "spec": {**pod["spec"], "containers": [{**container, "resources": resources}]}}
    status, response = await call("PUT", f"{PODS}/web/resize", changed)
    assert status == 422
    assert message in response["message"]


async def test_resize_cannot_add_containers(call: ServerClient) -> None:
    pod = await call.made(PODS, pod_body())
    containers = [*pod["spec"]["containers"], {"name": "more", "image": "i"}]
    changed = {**pod, "spec": {**pod["spec"], "containers": containers}}
    status, response = await call("PUT", f"{PODS}/web/resize", changed)
    assert status == 422
    assert "spec.containers: Forbidden: containers may not be added or removed on resize" in response["message"]


# -- CertificateSigningRequests


def request_body(signer: str = "example.com/signer", organizations: tuple[str, ...] = (), **more: Any) -> Object:
    key = ec.generate_private_key(ec.SECP256R1())
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    name = x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    text = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": text, "signerName": signer, "usages": ["client auth"], **more}
    return {"metadata": {"name": "r"}, "spec": spec}


async def test_signing_request_records_its_user(call: ServerClient) -> None:
    created = await call.made(CSRS, request_body(username="root", groups=["system:masters"]))
    assert created["spec"]["username"] == "admin"
    assert created["spec"]["groups"] == ["system:masters"]
    changed = {**created, "spec": {**created["spec"], "username": "root"}}
    assert (await call("PUT", f"{CSRS}/r", changed))[1]["spec"] == created["spec"]


async def test_client_certificate_for_masters_is_forbidden(call: ServerClient) -> None:
    client = "kubernetes.io/kube-apiserver-client"
    status, response = await call("POST", CSRS, request_body(client, ("devs", "system:masters")))
    assert status == 403
    assert f"use of {client} signer with system:masters group is not allowed" in response["message"]
    assert (await call("POST", CSRS, request_body(client, ("devs",))))[0] == 201


async def test_signing_request_is_approved_once_by_approval_path(call: ServerClient) -> None:
    created = await call.made(CSRS, request_body())
    approved = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}}
    _, unchanged = await call("PATCH", f"{CSRS}/r", approved, kind=MERGE)
    assert unchanged == created
    status, response = await call("PATCH", f"{CSRS}/r/status", approved, kind=MERGE)
    assert (status, 'updates may not add a condition of type "Approved"' in response["message"]) == (422, True)
    status, response = await call("PATCH", f"{CSRS}/r/approval", {**approved, "spec": {"usages": []}}, kind=MERGE)
    assert status == 200
    [condition] = response["status"]["conditions"]
    assert condition["lastUpdateTime"]
    assert condition["lastTransitionTime"]
    assert response["spec"] == created["spec"]
    status, response = await call("PATCH", f"{CSRS}/r/approval", {"status": {"conditions": []}}, kind=MERGE)
    assert (status, 'may not remove a condition of type "Approved"' in response["message"]) == (422, True)
    both = [condition, {"type": "Denied", "status": "True"}]
    status, response = await call("PATCH", f"{CSRS}/r/approval", {"status": {"conditions": both}}, kind=MERGE)
    assert (status, "Approved and Denied conditions are mutually exclusive" in response["message"]) == (422, True)


async def test_issued_certificate_cannot_be_changed(call: ServerClient, tmp_path: Path) -> None:
    await call.made(CSRS, request_body())
    certificate = base64.b64encode(CertificateAuthority(tmp_path).certificate_pem().encode()).decode()
    status, response = await call("PATCH", f"{CSRS}/r/status", {"status": {"certificate": certificate}}, kind=MERGE)
    assert (status, response["status"]["certificate"]) == (200, certificate)
    other = base64.b64encode(CertificateAuthority(tmp_path / "other").certificate_pem().encode()).decode()
    status, response = await call("PATCH", f"{CSRS}/r/status", {"status": {"certificate": other}}, kind=MERGE)
    assert (status, "updates may not modify existing certificate content" in response["message"]) == (422, True)


async def test_approval_needs_permission_for_signer(call: ServerClient) -> None:
    await call.made(CSRS, request_body())
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [
        {
            "apiGroups": ["certificates.k8s.io"],
            "resources": ["certificatesigningrequests/approval"],
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["certificates.k8s.io"],
            "resources": ["signers"],
            "resourceNames": ["other.com/*"],
            "verbs": ["approve"],
        },
    ]
    await call.made(f"{rbac}/clusterroles", {"metadata": {"name": "decider"}, "rules": rules})
    binding = {
        "metadata": {"name": "decider"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "decider"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    }
    await call.made(f"{rbac}/clusterrolebindings", binding)
    ann = call.being(User("ann", ("system:authenticated",)))
    approved = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    status, response = await ann("PATCH", f"{CSRS}/r/approval", approved, kind=MERGE)
    assert status == 403
    assert 'user not permitted to approve requests with signerName "example.com/signer"' in response["message"]
    await call.made(CSRS, {**request_body("other.com/some"), "metadata": {"name": "theirs"}})
    assert (await ann("PATCH", f"{CSRS}/theirs/approval", approved, kind=MERGE))[0] == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"request": base64.b64encode(b"nothing").decode()}, "PEM block type must be CERTIFICATE REQUEST"),
        ({"usages": []}, "spec.usages: Required value"),
        ({"usages": ["flying"]}, 'spec.usages[0]: Unsupported value: "flying"'),
        ({"signerName": "nobody"}, "spec.signerName: Invalid value"),
        ({"expirationSeconds": 60}, "may not specify a duration less than 600 seconds (10 minutes)"),
    ],
)
async def test_invalid_signing_request_is_rejected(call: ServerClient, change: Object, message: str) -> None:
    request = request_body()
    status, response = await call("POST", CSRS, {**request, "spec": {**request["spec"], **change}})
    assert status == 422
    assert message in response["message"]


# -- scales of custom resources


@pytest.fixture
async def teams(call: ServerClient) -> None:
    """A custom resource that can be scaled."""
    properties = {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "name": {"type": "string"}}},
        "status": {
            "type": "object",
            "properties": {"present": {"type": "integer"}, "selector": {"type": "string"}},
        },
    }
    scale = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.present",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        "subresources": {"status": {}, "scale": scale},
    }
    names = {"plural": "teams", "kind": "Team"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    await call.made(CRDS, {"metadata": {"name": "teams.example.com"}, "spec": spec})


@pytest.mark.usefixtures("teams")
async def test_scale_uses_paths_of_definition(call: ServerClient) -> None:
    created = await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {"size": 2, "name": "us"}})
    await call("PATCH", f"{TEAMS}/t/status", {"status": {"present": 1, "selector": "team=t"}}, kind=MERGE)
    _, scale = await call("GET", f"{TEAMS}/t/scale")
    assert (scale["kind"], scale["apiVersion"], scale["metadata"]["uid"]) == (
        "Scale",
        "autoscaling/v1",
        created["metadata"]["uid"],
    )
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "team=t"})
    status, patched = await call("PATCH", f"{TEAMS}/t/scale", {"spec": {"replicas": 5}}, kind=MERGE)
    assert (status, patched["spec"]) == (200, {"replicas": 5})
    _, team = await call("GET", f"{TEAMS}/t")
    assert (team["spec"], team["metadata"]["generation"]) == ({"size": 5, "name": "us"}, 2)
    assert (await call("PUT", f"{TEAMS}/t/scale", scale))[0] == 409
    fresh = {**patched, "spec": {"replicas": 3}}
    assert (await call("PUT", f"{TEAMS}/t/scale", fresh))[1]["spec"] == {"replicas": 3}


@pytest.mark.usefixtures("teams")
async def test_scale_patch_succeeds_with_concurrent_write(call: ServerClient) -> None:
    await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {"size": 2}})
    async with asyncio.TaskGroup() as group:
        first = group.create_task(call("PATCH", f"{TEAMS}/t", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE))
        second = group.create_task(call("PATCH", f"{TEAMS}/t/scale", {"spec": {"replicas": 5}}, kind=MERGE))
    assert [each.result()[0] for each in (first, second)] == [200, 200]
    _, team = await call("GET", f"{TEAMS}/t")
    assert (team["metadata"]["labels"], team["spec"]["size"]) == ({"a": "b"}, 5)


@pytest.mark.usefixtures("teams")
async def test_invalid_scale_is_rejected(call: ServerClient) -> None:
    await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {}})
    status, response = await call("PATCH", f"{TEAMS}/t/scale", {"spec": {"replicas": -1}}, kind=MERGE)
    assert status == 422
    assert response["message"] == (
        'Scale.autoscaling "t" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0'
    )
    status, response = await call("PATCH", f"{TEAMS}/t/scale", {"metadata": {}}, kind=MERGE)
    assert (status, response["message"]) == (400, 'the spec replicas field ".spec.size" cannot be empty')


# -- logs


@pytest.fixture
async def kubelet(call: ServerClient, tmp_path: Path) -> AsyncIterator[tuple[KubeletClient, list[str]]]:
    """A kubelet client with a kubelet that requires client certificates, and the paths that it received."""
    authority = CertificateAuthority(tmp_path / "pki")
    certificate, key = authority.server_certificate(["127.0.0.1"])
    client, client_key = authority.client_certificate("kube-apiserver", [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_REQUIRED
    paths: list[str] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        paths.append(request.path_qs)
        if "missing" in request.path:
            return web.Response(status=404, text="container not found")
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(3):
            await response.write(b"line %d\n" % number)
        return response

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    status = {
        "addresses": [
            {"type": "Hostname", "address": "nowhere.invalid"},
            {"type": "InternalIP", "address": "127.0.0.1"},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": runner.addresses[0][1]}},
    }
    await call.made("/api/v1/nodes", {"metadata": {"name": "node"}, "status": status})
    settings = KubeletSettings(str(client), str(client_key), str(authority.certificate_file))
    kubelets = KubeletClient(call.server.verbs.store, settings, EgressPolicy().check_kubelet, HostAccess())
    yield kubelets, paths
    await kubelets.close()
    await runner.cleanup()


async def test_log_is_streamed_from_kubelet(call: ServerClient, kubelet: tuple[KubeletClient, list[str]]) -> None:
    kubelets, paths = kubelet
    await call.made(PODS, pod_body(nodeName="node"))
    special = {**call.server.special_handlers, ("pods", "log"): kubelets.pod_log}
    server = replace(call.server, special_handlers=special)
    async with asyncio.TaskGroup() as group:
        runner = await start_http_server(
            HttpHandler(RequestHandler(server, 10), UnionAuthenticator([authenticate_localhost])),
            "127.0.0.1",
            0,
            group=group,
        )
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            query = {"follow": "true", "tailLines": "3", "pretty": "true"}
            async with session.get(f"{PODS}/web/log", params=query) as response:
                assert (response.status, response.content_type) == (200, "text/plain")
                assert await response.read() == b"line 0\nline 1\nline 2\n"
        await runner.stop()
    assert paths == ["/containerLogs/default/web/c?follow=true&tailLines=3"]


async def test_missing_container_log_is_not_found(call: ServerClient, kubelet: tuple[KubeletClient, list[str]]) -> None:
    kubelets, _ = kubelet
    await call.made(PODS, pod_body("missing", nodeName="node"))
    server = replace(call.server, special_handlers={**call.server.special_handlers, ("pods", "log"): kubelets.pod_log})
    status, response = await ServerClient(server, call.accounts)("GET", f"{PODS}/missing/log")
    assert (status, response["reason"]) == (404, "NotFound")
    assert response["message"] == "the server could not find the requested resource ( pods/log missing)"


async def test_unreachable_kubelet_is_server_error(call: ServerClient) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    }
    await call.made("/api/v1/nodes", {"metadata": {"name": "gone"}, "status": status})
    await call.made(PODS, pod_body(nodeName="gone"))
    code, response = await call("GET", f"{PODS}/web/log")
    assert (code, response["message"]) == (
        500,
        'Get "https://127.0.0.1:1/containerLogs/default/web/c": dial tcp 127.0.0.1:1: connect: connection refused',
    )


async def test_log_of_unscheduled_pod_is_empty(call: ServerClient) -> None:
    await call.made(PODS, pod_body())
    assert await call("GET", f"{PODS}/web/log") == (200, b"")


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ({"container": "other"}, 400, "container other is not valid for pod web"),
        ({}, 400, "a container name must be specified for pod web, choose one of: [c d]"),
        (
            {"container": "c", "tailLines": "-1"},
            422,
            "tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            {"container": "c", "sinceSeconds": "1", "sinceTime": "x"},
            422,
            "at most one of `sinceTime` or `sinceSeconds`",
        ),
    ],
)
async def test_invalid_log_options_are_rejected(
    call: ServerClient, query: dict[str, str], status: int, message: str
) -> None:
    containers = [{"name": name, "image": "i"} for name in ("c", "d")]
    await call.made(PODS, pod_body(containers=containers))
    code, response = await call("GET", f"{PODS}/web/log", **query)
    assert code == status
    assert message in response["message"]
