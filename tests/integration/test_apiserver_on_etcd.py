"""API servers that share one real etcd: two of ours, and ours with a kube-apiserver."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as Servers
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, name_of
from tapestry.kube.patches import apply_merge_patch
from tapestry.kube.resources import CRDS, Resource
from tapestry.local.kubernetes import ControlPlane

from ..unit.apiserver.conftest import ServerClient
from .etcds import Etcd
from .servers import TAPESTRY, OwnServer

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def etcd(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(kube_assets, tmp_path_factory.mktemp("etcd")) as shared:
        yield shared


@asynccontextmanager
async def new_server(folder: Path, servers: Servers, **more: Any) -> AsyncIterator[ServerClient]:
    """Our API server without a socket."""
    here = {"etcd": servers, "file_rootpath": str(folder), **more}
    config = ApiServerConfig(backend="etcd", secure_address="", pod_accounts=False, **here)
    async with run_apiserver(config) as made:
        yield ServerClient(made.server, made.account_tokens)


@asynccontextmanager
async def two_servers(
    folder: Path, url: str, prefix: str, **config: Any
) -> AsyncIterator[tuple[ServerClient, ServerClient]]:
    servers = Servers(servers=[url], prefix=prefix)
    async with (
        new_server(folder / "one", servers, **config) as one,
        new_server(folder / "other", servers, **config) as two,
    ):
        yield one, two


def new_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_node_reads_references_of_pod_from_another_server(etcd: Etcd, tmp_path: Path) -> None:
    user = User("system:node:n1", ("system:nodes", "system:authenticated"))
    secrets, pods = "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/pods"
    async with two_servers(tmp_path, etcd.url, "/nodes") as (one, two):
        for name in ("mine", "other"):
            await one.made(secrets, {"metadata": {"name": name}})
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "imagePullSecrets": [{"name": "mine"}]}
        await one.made(pods, {"metadata": {"name": "p"}, "spec": spec})
        await two("GET", f"{pods}/p")  # from now on the server has seen the pod
        for api in (one.being(user), two.being(user)):
            assert (await api("GET", f"{secrets}/mine"))[0] == 200
            assert (await api("GET", f"{secrets}/other"))[0] == 403
            assert (await api("DELETE", "/api/v1/nodes/n2"))[0] == 403


async def test_acknowledged_writes_are_visible_at_the_other_server(etcd: Etcd, tmp_path: Path) -> None:
    async with two_servers(tmp_path, etcd.url, "/read") as (one, other):
        watching = await other.answer("GET", CONFIGMAPS, watch="true")
        assert isinstance(watching, WatchResponse)
        chunks = watching.chunks()
        for number in range(20):
            made = await one.made(CONFIGMAPS, new_map(f"m{number}"))
            assert await other("GET", f"{CONFIGMAPS}/m{number}") == (200, made)
            status, changed = await other("PUT", f"{CONFIGMAPS}/m{number}", {**made, "data": {"at": "other"}})
            assert status == 200
            assert (await one("GET", f"{CONFIGMAPS}/m{number}"))[1] == changed
            version = changed["metadata"]["resourceVersion"]
            assert len((await one("GET", CONFIGMAPS, resourceVersion=version))[1]["items"]) == number + 1
        lines = b""
        while lines.count(b"MODIFIED") < 20:
            lines += await anext(chunks)
        assert lines.count(b"ADDED") == 20
        await chunks.aclose()


async def test_list_continues_at_the_other_server(etcd: Etcd, tmp_path: Path) -> None:
    async with two_servers(tmp_path, etcd.url, "/pages") as (one, other):
        for number in range(5):
            await one.made(CONFIGMAPS, new_map(f"m{number}"))
        _, page = await one("GET", CONFIGMAPS, limit="2")
        await one("DELETE", f"{CONFIGMAPS}/m3")
        names = [item["metadata"]["name"] for item in page["items"]]
        while token := page["metadata"].get("continue"):
            _, page = await other("GET", CONFIGMAPS, **{"limit": "2", "continue": token})
            names += [item["metadata"]["name"] for item in page["items"]]
        assert names == ["m0", "m1", "m2", "m3", "m4"]


async def test_two_servers_never_allocate_the_same_address_or_port(etcd: Etcd, tmp_path: Path) -> None:
    """24 of 29 addresses are allocated in one burst; then both servers request the same address and 8 ports."""
    ports = [{"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000 + number}]} for number in range(8)]

    def new_service(name: str, **spec: Any) -> Object:
        return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}

    async with two_servers(tmp_path, etcd.url, "/services", service_cluster_ip_range="10.0.0.0/27") as servers:
        async with asyncio.TaskGroup() as group:
            burst = [
                group.create_task(servers[number % 2].made(SERVICES, new_service(f"s{number}"))) for number in range(24)
            ]
        assert len({task.result()["spec"]["clusterIP"] for task in burst}) == 24
        for number in range(24):
            assert (await servers[0]("DELETE", f"{SERVICES}/s{number}"))[0] == 200
        async with asyncio.TaskGroup() as group:
            pairs = [
                [
                    group.create_task(each("POST", SERVICES, new_service(f"{name}{number}", **spec)))
                    for each, name in zip(servers, ("one", "other"), strict=True)
                ]
                for number, spec in enumerate([{"clusterIP": "10.0.0.9"}, *ports])
            ]
        codes = [sorted(task.result()[0] for task in pair) for pair in pairs]
        assert codes == [[201, 422]] * 9


async def test_definition_from_one_server_is_served_by_other(etcd: Etcd, tmp_path: Path) -> None:
    async with two_servers(tmp_path, etcd.url, "/definitions") as (one, other):
        await one.made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"n": 1}}
        made = await other.made("/apis/example.com/v1/namespaces/default/widgets", widget)
        assert await one("GET", "/apis/example.com/v1/namespaces/default/widgets/w") == (200, made)


async def test_concurrent_increments_at_two_servers_are_not_lost(etcd: Etcd, tmp_path: Path) -> None:
    async with two_servers(tmp_path, etcd.url, "/increments") as (one, other):
        await one.made(CONFIGMAPS, new_map("m", n="0"))

        async def increment(api: ServerClient) -> None:
            status = 409
            while status == 409:
                _, found = await api("GET", f"{CONFIGMAPS}/m")
                data = {"n": str(int(found["data"]["n"]) + 1)}
                status, _ = await api("PUT", f"{CONFIGMAPS}/m", {**found, "data": data})
            assert status == 200

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(increment(one))
                group.create_task(increment(other))
        for api in (one, other):
            assert (await api("GET", f"{CONFIGMAPS}/m"))[1]["data"] == {"n": "16"}


async def test_concurrent_patches_without_a_version_are_all_applied(etcd: Etcd, tmp_path: Path) -> None:
    async with two_servers(tmp_path, etcd.url, "/patches") as (one, other):
        await one.made(CONFIGMAPS, new_map("m"))

        async def patch(api: ServerClient, number: int) -> None:
            body = {"data": {f"k{number}": "x"}}
            status, _ = await api("PATCH", f"{CONFIGMAPS}/m", body, kind="application/merge-patch+json")
            assert status == 200

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(patch((one, other)[number % 2], number))
        assert len((await one("GET", f"{CONFIGMAPS}/m"))[1]["data"]) == 60


@pytest.mark.parametrize("count", [80_000, 140_000])
async def test_object_that_etcd_does_not_accept_is_too_large(etcd: Etcd, tmp_path: Path, count: int) -> None:
    """The managed fields of many short keys are longer than the keys. etcd and gRPC have limits of their own."""
    async with new_server(tmp_path / "own", Servers(servers=[etcd.url], prefix="/large")) as api:
        status, body = await api("POST", CONFIGMAPS, {**new_map("m"), "data": {f"{n:06}": "" for n in range(count)}})
        assert (status, body["reason"]) == (413, "RequestEntityTooLarge")
        assert "raise --max-request-bytes of etcd" in body["message"]
        assert (await api("GET", f"{CONFIGMAPS}/m"))[0] == 404


async def test_server_answers_503_until_etcd_returns(
    kube_assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Etcd(kube_assets, tmp_path) as etcd:
        async with new_server(tmp_path / "own", Servers(servers=[etcd.url])) as api:
            await api.made(CONFIGMAPS, new_map("kept"))
            etcd.kill()
            with monkeypatch.context() as hurried:
                hurried.setattr("tapestry.apiserver.storage.etcd.store.READ_TIMEOUT", 1.0)
                status, body = 504, {}
                while status == 504:  # requests in flight when etcd died
                    status, body = await api("POST", CONFIGMAPS, new_map("lost"))
                assert (status, body["reason"]) == (503, "ServiceUnavailable")
                assert f"etcd at {etcd.url}" in body["message"]
                assert (await api("GET", f"{CONFIGMAPS}/kept"))[0] == 503
                assert (await api("GET", CONFIGMAPS, resourceVersion="0"))[0] == 200
            await asyncio.to_thread(etcd.start)
            while status == 503:
                status, _ = await api("GET", f"{CONFIGMAPS}/kept")
            assert status == 200
            assert (await api("GET", f"{CONFIGMAPS}/lost"))[0] == 404


async def test_apiserver_command_serves_and_keeps_data_in_etcd(etcd: Etcd, tmp_path: Path) -> None:
    flags = "--backend=etcd", f"--etcd-servers={etcd.url}", "--etcd-prefix=/command"
    maps = Resource("", "v1", "ConfigMap", "configmaps")
    found = []
    for name in ("one", "other"):  # the second server shares only etcd with the first
        with OwnServer(tmp_path / name, *flags) as server:
            client = Client(HttpTransport(load_access([server.kubeconfig], environ=os.environ)))
            if name == "one":
                await client.create(maps, {**new_map("m"), "metadata": {"name": "m", "namespace": "default"}})
            found.append(await client.get(maps, "m", "default"))
            await client.close()
    assert found[0] == found[1]


def test_server_without_etcd_reports_an_error(tmp_path: Path) -> None:
    command = [str(TAPESTRY), "apiserver", "--backend=etcd", "--file-rootpath", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: etcd.servers: there is none; name one or more")


# -- beside a kube-apiserver


WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
CONTAINERS = [{"name": "c", "image": "i"}]
LABELS = {"app": "x"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": CONTAINERS}}
ABOUT = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default"}
SAMPLES: Mapping[Resource, Object] = {
    Resource("", "v1", "ConfigMap", "configmaps"): {"data": {"a": "b"}},
    Resource("", "v1", "Pod", "pods"): {"spec": {"containers": CONTAINERS}},
    Resource("", "v1", "Service", "services"): {
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}
    },
    Resource("", "v1", "Endpoints", "endpoints"): {"subsets": [{"addresses": [{"ip": "10.1.2.3"}]}]},
    Resource("", "v1", "Node", "nodes", namespaced=False): {},
    Resource("", "v1", "ReplicationController", "replicationcontrollers"): {
        "spec": {"selector": LABELS, "template": TEMPLATE}
    },
    Resource("", "v1", "Event", "events"): {"involvedObject": ABOUT, "reason": "Seen", "type": "Normal"},
    Resource("apps", "v1", "Deployment", "deployments"): {
        "spec": {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
    },
    Resource("networking.k8s.io", "v1", "Ingress", "ingresses"): {
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}
    },
    Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"): {
        "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}
    },
    Resource("coordination.k8s.io", "v1", "Lease", "leases"): {"spec": {"holderIdentity": "me"}},
    Resource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False): {
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    },
    WIDGETS: {"spec": {"n": 1}},
}


def new_sample(resource: Resource, name: str, body: Object) -> Object:
    place = {"namespace": "default"} if resource.namespaced else {}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **place}, **body}


async def test_kube_apiserver_and_ours_share_one_etcd(kube_assets: Path, tmp_path: Path) -> None:
    in_json = {"storage-media-type": "application/json"}  # otherwise the servers could not share etcd
    with ControlPlane(tmp_path / "kubernetes", kube_assets, fsync=False, flags=in_json) as plane:
        kube = Client(HttpTransport(load_access([plane.kubeconfig], environ=os.environ)))
        async with new_server(tmp_path / "own", Servers(servers=[plane.etcd_url])) as ours:
            await ours.made(CRDS.path(), DEFINITION)
            await wait_for(kube, WIDGETS, "w", "default", until=lambda found: found is None)
            _, own = await ours("GET", "/apis/apiregistration.k8s.io/v1/apiservices")
            assert "v1.apps" in map(name_of, own["items"]), "what they keep of their own groups"
            for resource, body in SAMPLES.items():
                namespace = "default" if resource.namespaced else None
                made = await kube.create(resource, new_sample(resource, "theirs", body))
                assert (await ours("GET", resource.path(namespace, name_of(made))))[1] == made
                made = await ours.made(resource.path(namespace), new_sample(resource, "ours", body))
                found = await kube.get(resource, name_of(made), namespace)
                assert apply_merge_patch(found, made) == found, "what they fill in beside it is theirs to know"
                assert found["metadata"] == made["metadata"]
        await kube.close()


async def test_apply_and_put_require_the_create_permission_on_etcd(etcd: Etcd, tmp_path: Path) -> None:
    rbac, group = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    rule = {"verbs": ["patch", "update"], "apiGroups": ["*"], "resources": ["*"]}
    subject = {"kind": "User", "name": "eve", "apiGroup": group}
    reference = {"kind": "ClusterRole", "name": "eves", "apiGroup": group}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "new"}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    async with new_server(tmp_path, Servers(servers=[etcd.url], prefix="/creations")) as call:
        await call.made(f"{rbac}/clusterroles", {"metadata": {"name": "eves"}, "rules": [rule]})
        binding = {"metadata": {"name": "eves"}, "roleRef": reference, "subjects": [subject]}
        await call.made(f"{rbac}/clusterrolebindings", binding)
        eve, kind = call.being(User("eve", ("system:authenticated",))), "application/apply-patch+yaml"
        for path, body in ((f"{CONFIGMAPS}/new", new_map("new")), (f"{leases}/new", lease)):
            assert (await eve("PATCH", path, body, kind=kind, fieldManager="eve"))[0] == 403
        assert (await eve("PUT", f"{leases}/new", lease))[0] == 403
        await call.made(CONFIGMAPS, new_map("new"))
        assert (await eve("PATCH", f"{CONFIGMAPS}/new", new_map("new", a="b"), kind=kind, fieldManager="eve"))[0] == 200
