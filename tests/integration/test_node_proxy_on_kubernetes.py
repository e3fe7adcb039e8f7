"""The kubelet API of virtual nodes on real servers: its certificate, its address, and the usage of nodes."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from tapestry.apis import keys
from tapestry.apis.names import node_metrics_path, syncer_lease_name, syncer_name
from tapestry.apis.permissions import SERVING_SIGNER
from tapestry.apis.serving_certificates import service_names
from tapestry.apiserver.access.certificates import CertificateAuthority, private_key_pem, subject_name
from tapestry.apiserver.core.certificate_requests import alternative_names, parse_request
from tapestry.controlplane.signers import SigningCa, signed_certificate
from tapestry.kube.objects import Object, annotations_of, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, EVENTS, LEASES, NODES, SECRETS, SERVICES, SIGNING_REQUESTS
from tapestry.kube.times import micro_timestamp
from tapestry.local.kubernetes import free_ports

from ..conftest import Kubectl
from .bound_clusters import BoundClusters
from .planes import Plane

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.2
AN_HOUR = timedelta(hours=1)


async def until(condition: Callable[[], object]) -> None:
    """Poll the condition, which may return an awaitable."""
    async with asyncio.timeout(60):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def virtual_node(clusters: BoundClusters, **settings: str) -> AsyncIterator[Object]:
    """Run a syncer and yield a virtual node."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer(kubelet_address=f"{LOOPBACK}:0", **settings):
        yield await clusters.wait_for_virtual_node(node)


def port_of(node: Object) -> int:
    port: int = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    return port


async def presented_certificate(port: int) -> x509.Certificate:
    return x509.load_pem_x509_certificate(
        (await asyncio.to_thread(ssl.get_server_certificate, (LOOPBACK, port), timeout=30)).encode()
    )


async def presents(port: int, issuer: x509.Name) -> bool:
    return (await presented_certificate(port)).issuer == issuer


async def requests_of(clusters: BoundClusters) -> list[Object]:
    found = await clusters.virtual.list(SIGNING_REQUESTS, fields=f"spec.signerName={SERVING_SIGNER}")
    return [each for each in found if each["metadata"]["name"].startswith(f"{syncer_name(clusters.name)}-")]


async def test_approved_request_replaces_the_certificate(
    clusters: BoundClusters, kubectl: Kubectl, tmp_path: Path
) -> None:
    """An operator approves and signs: the syncer of this test has no account that the manager knows."""
    async with virtual_node(clusters) as node:
        await until(lambda: requests_of(clusters))
        (request,) = await requests_of(clusters)
        parsed = parse_request(request["spec"]["request"])
        assert [str(each.value) for each in alternative_names(parsed)] == [LOOPBACK]
        await asyncio.to_thread(kubectl, "certificate", "approve", request["metadata"]["name"])
        pair = CertificateAuthority(tmp_path / "signer", "signer").key_pair()
        assert pair is not None
        signed = signed_certificate(SigningCa(*pair), parsed, request["spec"]["usages"], 3600, datetime.now(UTC))
        encoded = base64.b64encode(signed.public_bytes(Encoding.PEM)).decode()
        status = {"status": {"certificate": encoded}}
        if not value_at(
            await clusters.virtual.get(SIGNING_REQUESTS, request["metadata"]["name"]), "status", "certificate"
        ):
            target = object_named(request["metadata"]["name"])
            await clusters.virtual.patch(SIGNING_REQUESTS, target, status, subresource="status")
        found = await clusters.virtual.get(SIGNING_REQUESTS, request["metadata"]["name"])
        issued = x509.load_pem_x509_certificate(base64.b64decode(found["status"]["certificate"]))
        await until(lambda: presents(port_of(node), issued.issuer))


async def test_certificate_in_a_secret_is_reloaded(clusters: BoundClusters, tmp_path: Path) -> None:
    name = f"{clusters.name}-serving"

    async def write_secret(authority: str) -> x509.Name:
        ca = CertificateAuthority(tmp_path / authority, authority)
        files = zip(("tls.crt", "tls.key"), ca.server_certificate([LOOPBACK]), strict=True)
        data = {key: base64.b64encode(file.read_bytes()).decode() for key, file in files}
        secret = {**object_named(name, "default"), "type": "kubernetes.io/tls", "data": data}
        await clusters.virtual.apply(SECRETS, secret, manager="test", force=True)
        return x509.load_pem_x509_certificate(ca.certificate_pem().encode()).subject

    first = await write_secret("first")
    async with virtual_node(clusters, kubelet_secret=f"default/{name}") as node:
        await until(lambda: presents(port_of(node), first))
        second = await write_secret("second")
        await until(lambda: presents(port_of(node), second))
        assert await requests_of(clusters) == []


async def test_certificate_that_expires_soon_is_an_event(clusters: BoundClusters) -> None:
    """More than 90% of its lifetime are over."""
    key, subject, now = ec.generate_private_key(ec.SECP256R1()), subject_name("old"), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - timedelta(hours=10)).not_valid_after(now + AN_HOUR)
    pair = {
        "tls.crt": builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM),
        "tls.key": private_key_pem(key),
    }
    data = {name: base64.b64encode(content).decode() for name, content in pair.items()}
    secret = object_named(f"{clusters.name}-expiring", "default")
    await clusters.virtual.create(SECRETS, {**secret, "type": "kubernetes.io/tls", "data": data})
    async with virtual_node(clusters, kubelet_secret=f"default/{clusters.name}-expiring"):

        async def events() -> list[Object]:
            fields = f"involvedObject.name={clusters.name},reason=ServingCertificateExpires"
            return await clusters.virtual.list(EVENTS, "default", fields=fields)

        await until(events)
        (event,) = await events()
        assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "ClusterBinding")
        assert f"expires at {now + AN_HOUR:%Y-%m-%dT%H:%M:%SZ}" in event["message"]


async def test_published_client_cas_are_reloaded(clusters: BoundClusters, tmp_path: Path) -> None:
    """As when an administrator rotates the CA: API servers publish the new one beside the old one."""
    new = CertificateAuthority(tmp_path / "new", "new")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.load_cert_chain(*new.client_certificate("rotated", ["system:masters"]))
    async with virtual_node(clusters) as node:
        url = f"https://{LOOPBACK}:{port_of(node)}{node_metrics_path(node['metadata']['name'])}"

        async def is_accepted() -> bool:
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(url, ssl=tls) as response:
                        return response.status == 503  # authorized, but there is no usage
                except (aiohttp.ClientConnectionError, ssl.SSLError):
                    return False

        assert not await is_accepted()
        place = object_named("extension-apiserver-authentication", "kube-system")
        published = await clusters.virtual.get(CONFIGMAPS, place["metadata"]["name"], "kube-system")
        cas = {"client-ca-file": value_at(published, "data", "client-ca-file", default="") + new.certificate_pem()}
        await clusters.virtual.patch(CONFIGMAPS, place, {"data": cas})
        await until(is_accepted)


async def test_nodes_show_the_address_of_the_service(clusters: BoundClusters) -> None:
    """Nodes follow the Service: it is deleted and created again with another address."""
    name = f"{clusters.name}-kubelet"
    service = {**object_named(name, "default"), "spec": {"ports": [{"name": "kubelet", "port": 10250}]}}
    made = await clusters.virtual.create(SERVICES, service)
    async with virtual_node(clusters, kubelet_service=f"default/{name}"):

        async def shows(host: str, port: int) -> bool:
            node = await clusters.virtual.get(NODES, clusters.above(f"{clusters.name}-n1"))
            return (node["status"]["addresses"][0]["address"], port_of(node)) == (host, port)

        await until(lambda: shows(made["spec"]["clusterIP"], 10250))
        await until(lambda: requests_of(clusters))
        (request,) = await requests_of(clusters)
        names = {str(each.value) for each in alternative_names(parse_request(request["spec"]["request"]))}
        assert names == service_names(made)
        await clusters.virtual.delete(SERVICES, made)
        await until(lambda: shows_own_address(clusters))


async def shows_own_address(clusters: BoundClusters) -> bool:
    node = await clusters.virtual.get(NODES, clusters.above(f"{clusters.name}-n1"))
    return bool(node["status"]["addresses"][0]["address"] == LOOPBACK)


async def usage_status(clusters: BoundClusters, port: int, node: str) -> tuple[int, str]:
    """Return the response of a replica to a request for the usage of a node."""
    url = f"https://{LOOPBACK}:{port}{node_metrics_path(node)}"
    authorization = {"Authorization": f"Bearer {clusters.virtual_plane.token}"}
    async with aiohttp.ClientSession(headers=authorization) as session:
        try:
            async with session.get(url, ssl=False) as response:
                return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""


async def test_standby_answers_and_nodes_follow_the_leader(clusters: BoundClusters) -> None:
    lease = {
        **object_named(syncer_lease_name(clusters.name), keys.SYSTEM_NAMESPACE),
        "spec": {
            "holderIdentity": "somebody",
            "leaseDurationSeconds": 3600,
            "renewTime": micro_timestamp(datetime.now(UTC)),
        },
    }
    made, (port,) = await clusters.virtual.create(LEASES, lease), free_ports(1)
    settings = {"leader_election_retry_seconds": "1"}
    async with virtual_node(clusters) as node:
        with clusters.syncer(leader_elect=True, kubelet_address=f"{LOOPBACK}:{port}", **settings):
            await until(lambda: answers(clusters, port, node["metadata"]["name"]))
            found = await clusters.virtual.get(NODES, node["metadata"]["name"])
            assert port_of(found) == port_of(node) != port
            await clusters.virtual.delete(LEASES, made)
            await clusters.wait_for_virtual_node(f"{clusters.name}-n1", lambda each: port_of(each) == port)


async def answers(clusters: BoundClusters, port: int, node: str) -> bool:
    return (await usage_status(clusters, port, node))[0] == 503


async def test_kubelet_serves_the_usage_of_each_node(clusters: BoundClusters, virtual_plane: Plane) -> None:
    """The physical cluster of this test has no metrics API, and the kubelet says so."""
    async with virtual_node(clusters) as node:
        name = node["metadata"]["name"]
        assert annotations_of(node)[keys.METRICS_PATH] == node_metrics_path(name)
        url, headers = f"https://{LOOPBACK}:{port_of(node)}", {"Authorization": f"Bearer {virtual_plane.token}"}
        forwarded = {"X-Forwarded-Uri": f"/api/v1/nodes/{name}/proxy/stats/summary"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for path, more in ((node_metrics_path(name), {}), ("/stats/summary", forwarded)):
                async with session.get(url + path, headers=more, ssl=False) as response:
                    assert (response.status, "has no metrics API" in await response.text()) == (503, True)
