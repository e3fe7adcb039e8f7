"""Subresources: the parts of an object that have a path, rights and rules of their own."""

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
from tapestry.apiserver.config import KubeletClientConfig as KubeletSettings
from tapestry.apiserver.requests import User
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.subresources.kubelet_client import KubeletClient
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEAMS = "/apis/example.com/v1/namespaces/default/teams"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def a_pod(name: str = "web", **spec: Any) -> Object:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    containers = [{"name": "c", "image": "nginx", "resources": resources}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


# -- pods


async def test_containers_can_be_added_to_a_running_pod_and_stay(call: Hand) -> None:
    await call.made(PODS, a_pod())
    added = {"ephemeralContainers": [{"name": "debug", "image": "busybox"}], "nodeName": "elsewhere"}
    status, pod = await call("PATCH", f"{PODS}/web/ephemeralcontainers", {"spec": added}, kind=STRATEGIC)
    assert status == 200
    assert [each["name"] for each in pod["spec"]["ephemeralContainers"]] == ["debug"]
    assert "nodeName" not in pod["spec"]
    assert pod["metadata"]["generation"] == 2
    removal = [{"op": "remove", "path": "/spec/ephemeralContainers/0"}]
    status, found = await call("PATCH", f"{PODS}/web/ephemeralcontainers", removal, kind=JSON_PATCH)
    assert (status, 'existing ephemeral containers "debug" may not be removed' in found["message"]) == (422, True)
    other = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "other"}]}}
    status, found = await call("PATCH", f"{PODS}/web/ephemeralcontainers", other, kind=STRATEGIC)
    assert status == 422
    assert 'existing ephemeral containers "debug" may not be changed' in found["message"]


async def test_a_pod_is_resized_by_its_own_path_alone(call: Hand) -> None:
    await call.made(PODS, a_pod())
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
async def test_a_size_that_a_running_pod_cannot_have_is_refused(call: Hand, resources: Object, message: str) -> None:
    made = await call.made(PODS, a_pod())
    [container] = made["spec"]["containers"]
    changed = {**made, "spec": {**made["spec"], "containers": [{**container, "resources": resources}]}}
    status, found = await call("PUT", f"{PODS}/web/resize", changed)
    assert status == 422
    assert message in found["message"]


async def test_a_pod_keeps_its_containers_when_it_is_resized(call: Hand) -> None:
    made = await call.made(PODS, a_pod())
    containers = [*made["spec"]["containers"], {"name": "more", "image": "i"}]
    changed = {**made, "spec": {**made["spec"], "containers": containers}}
    status, found = await call("PUT", f"{PODS}/web/resize", changed)
    assert status == 422
    assert "spec.containers: Forbidden: containers may not be added or removed on resize" in found["message"]


@pytest.mark.parametrize("path", [f"{PODS}/web/exec", f"{PODS}/web/attach", f"{PODS}/web/portforward"])
async def test_streams_are_not_served_yet_and_say_so(call: Hand, path: str) -> None:
    assert (await call("GET", path))[0] == 404
    await call.made(PODS, a_pod())
    for method in ("GET", "POST"):
        status, found = await call(method, path)
        assert (status, found["kind"]) == (501, "Status")
        assert "is not served" in found["message"]


async def test_a_proxy_is_refused_whatever_path_is_behind_it(call: Hand) -> None:
    await call.made(PODS, a_pod())
    for path in (f"{PODS}/web/proxy", f"{PODS}/web/proxy/index.html", f"{PODS}/https:web:8443/proxy/a/b"):
        assert (await call("GET", path))[0] == 501
    assert (await call("GET", "/api/v1/nodes/none/proxy/metrics"))[0] == 404


# -- requests for certificates


def a_request(signer: str = "example.com/signer", organizations: tuple[str, ...] = (), **more: Any) -> Object:
    key = ec.generate_private_key(ec.SECP256R1())
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    name = x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    text = base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": text, "signerName": signer, "usages": ["client auth"], **more}
    return {"metadata": {"name": "r"}, "spec": spec}


async def test_a_request_says_who_made_it_whatever_they_say(call: Hand) -> None:
    made = await call.made(CSRS, a_request(username="root", groups=["system:masters"]))
    assert made["spec"]["username"] == "admin"
    assert made["spec"]["groups"] == ["system:masters"]
    changed = {**made, "spec": {**made["spec"], "username": "root"}}
    assert (await call("PUT", f"{CSRS}/r", changed))[1]["spec"] == made["spec"]


async def test_nobody_asks_for_a_certificate_of_the_masters(call: Hand) -> None:
    client = "kubernetes.io/kube-apiserver-client"
    status, found = await call("POST", CSRS, a_request(client, ("devs", "system:masters")))
    assert status == 403
    assert f"use of {client} signer with system:masters group is not allowed" in found["message"]
    assert (await call("POST", CSRS, a_request(client, ("devs",))))[0] == 201


async def test_a_request_is_decided_by_its_own_path_and_once(call: Hand) -> None:
    made = await call.made(CSRS, a_request())
    approved = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Mine"}]}}
    _, same = await call("PATCH", f"{CSRS}/r", approved, kind=MERGE)
    assert same == made
    status, found = await call("PATCH", f"{CSRS}/r/status", approved, kind=MERGE)
    assert (status, 'updates may not add a condition of type "Approved"' in found["message"]) == (422, True)
    status, found = await call("PATCH", f"{CSRS}/r/approval", {**approved, "spec": {"usages": []}}, kind=MERGE)
    assert status == 200
    [condition] = found["status"]["conditions"]
    assert condition["lastUpdateTime"]
    assert condition["lastTransitionTime"]
    assert found["spec"] == made["spec"]
    status, found = await call("PATCH", f"{CSRS}/r/approval", {"status": {"conditions": []}}, kind=MERGE)
    assert (status, 'may not remove a condition of type "Approved"' in found["message"]) == (422, True)
    both = [condition, {"type": "Denied", "status": "True"}]
    status, found = await call("PATCH", f"{CSRS}/r/approval", {"status": {"conditions": both}}, kind=MERGE)
    assert (status, "Approved and Denied conditions are mutually exclusive" in found["message"]) == (422, True)


async def test_a_certificate_is_given_by_the_status_and_stays(call: Hand, tmp_path: Path) -> None:
    await call.made(CSRS, a_request())
    certificate = base64.b64encode(CertificateAuthority(tmp_path).certificate_pem().encode()).decode()
    status, found = await call("PATCH", f"{CSRS}/r/status", {"status": {"certificate": certificate}}, kind=MERGE)
    assert (status, found["status"]["certificate"]) == (200, certificate)
    other = base64.b64encode(CertificateAuthority(tmp_path / "other").certificate_pem().encode()).decode()
    status, found = await call("PATCH", f"{CSRS}/r/status", {"status": {"certificate": other}}, kind=MERGE)
    assert (status, "updates may not modify existing certificate content" in found["message"]) == (422, True)


async def test_to_approve_takes_the_right_for_that_signer(call: Hand) -> None:
    await call.made(CSRS, a_request())
    rights = "/apis/rbac.authorization.k8s.io/v1"
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
    await call.made(f"{rights}/clusterroles", {"metadata": {"name": "decider"}, "rules": rules})
    binding = {
        "metadata": {"name": "decider"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "decider"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    }
    await call.made(f"{rights}/clusterrolebindings", binding)
    ann = call.being(User("ann", ("system:authenticated",)))
    approved = {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    status, found = await ann("PATCH", f"{CSRS}/r/approval", approved, kind=MERGE)
    assert status == 403
    assert 'user not permitted to approve requests with signerName "example.com/signer"' in found["message"]
    await call.made(CSRS, {**a_request("other.com/some"), "metadata": {"name": "theirs"}})
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
async def test_a_request_that_nobody_could_sign_is_refused(call: Hand, change: Object, message: str) -> None:
    wanted = a_request()
    status, found = await call("POST", CSRS, {**wanted, "spec": {**wanted["spec"], **change}})
    assert status == 422
    assert message in found["message"]


# -- scales of custom resources


@pytest.fixture
async def teams(call: Hand) -> None:
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
async def test_a_custom_resource_is_scaled_where_its_definition_says(call: Hand) -> None:
    made = await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {"size": 2, "name": "us"}})
    await call("PATCH", f"{TEAMS}/t/status", {"status": {"present": 1, "selector": "team=t"}}, kind=MERGE)
    _, scale = await call("GET", f"{TEAMS}/t/scale")
    assert (scale["kind"], scale["apiVersion"], scale["metadata"]["uid"]) == (
        "Scale",
        "autoscaling/v1",
        made["metadata"]["uid"],
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
async def test_a_scale_is_patched_while_somebody_else_writes_the_object(call: Hand) -> None:
    await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {"size": 2}})
    async with asyncio.TaskGroup() as group:
        first = group.create_task(call("PATCH", f"{TEAMS}/t", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE))
        second = group.create_task(call("PATCH", f"{TEAMS}/t/scale", {"spec": {"replicas": 5}}, kind=MERGE))
    assert [each.result()[0] for each in (first, second)] == [200, 200]
    _, team = await call("GET", f"{TEAMS}/t")
    assert (team["metadata"]["labels"], team["spec"]["size"]) == ({"a": "b"}, 5)


@pytest.mark.usefixtures("teams")
async def test_a_size_that_there_cannot_be_is_refused(call: Hand) -> None:
    await call.made(TEAMS, {"metadata": {"name": "t"}, "spec": {}})
    status, found = await call("PATCH", f"{TEAMS}/t/scale", {"spec": {"replicas": -1}}, kind=MERGE)
    assert status == 422
    assert found["message"] == (
        'Scale.autoscaling "t" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0'
    )
    status, found = await call("PATCH", f"{TEAMS}/t/scale", {"metadata": {}}, kind=MERGE)
    assert (status, found["message"]) == (400, 'the spec replicas field ".spec.size" cannot be empty')


# -- logs


@pytest.fixture
async def kubelet(call: Hand, tmp_path: Path) -> AsyncIterator[tuple[KubeletClient, list[str]]]:
    """A kubelet that lets in whoever its CA knows, the way to it, and what it was asked."""
    authority = CertificateAuthority(tmp_path / "pki")
    certificate, key = authority.server_certificate(["127.0.0.1"])
    client, client_key = authority.client_certificate("kube-apiserver", [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_REQUIRED
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path_qs)
        if "missing" in request.path:
            return web.Response(status=404, text="container not found")
        found = web.StreamResponse()
        await found.prepare(request)
        for number in range(3):
            await found.write(b"line %d\n" % number)
        return found

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
    kubelets = KubeletClient(call.server.verbs.store, settings)
    yield kubelets, asked
    await kubelets.close()
    await runner.cleanup()


async def test_a_log_comes_from_the_kubelet_as_it_is_written(
    call: Hand, kubelet: tuple[KubeletClient, list[str]]
) -> None:
    kubelets, asked = kubelet
    await call.made(PODS, a_pod(nodeName="node"))
    special = {**call.server.special_handlers, ("pods", "log"): kubelets.pod_log}
    server = replace(call.server, special=special)
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
    assert asked == ["/containerLogs/default/web/c?follow=true&tailLines=3"]


async def test_what_the_kubelet_does_not_have_is_not_found(
    call: Hand, kubelet: tuple[KubeletClient, list[str]]
) -> None:
    kubelets, _ = kubelet
    await call.made(PODS, a_pod("missing", nodeName="node"))
    server = replace(call.server, special={**call.server.special_handlers, ("pods", "log"): kubelets.pod_log})
    status, found = await Hand(server, call.accounts)("GET", f"{PODS}/missing/log")
    assert (status, found["reason"]) == (404, "NotFound")
    assert found["message"] == "the server could not find the requested resource ( pods/log missing)"


async def test_a_kubelet_that_is_away_is_an_error_of_the_server(call: Hand) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    }
    await call.made("/api/v1/nodes", {"metadata": {"name": "gone"}, "status": status})
    await call.made(PODS, a_pod(nodeName="gone"))
    code, found = await call("GET", f"{PODS}/web/log")
    assert (code, found["message"]) == (
        500,
        'Get "https://127.0.0.1:1/containerLogs/default/web/c": dial tcp 127.0.0.1:1: connect: connection refused',
    )


async def test_the_log_of_a_pod_that_runs_nowhere_is_empty(call: Hand) -> None:
    await call.made(PODS, a_pod())
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
async def test_a_log_that_cannot_be_meant_is_refused(
    call: Hand, query: dict[str, str], status: int, message: str
) -> None:
    containers = [{"name": name, "image": "i"} for name in ("c", "d")]
    await call.made(PODS, a_pod(containers=containers))
    code, found = await call("GET", f"{PODS}/web/log", **query)
    assert code == status
    assert message in found["message"]
