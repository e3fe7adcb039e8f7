"""Comparison of node authorization on our API server and on a kube-apiserver."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.objects import Object
from tapestry.local.kubernetes import ControlPlane

API, DEFAULT = "/api/v1", "/api/v1/namespaces/default"
STORAGE = "/apis/storage.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
POLICY, DEVICES = "/apis/policy/v1", "/apis/resource.k8s.io/v1"
ACCESS = "/apis/authorization.k8s.io/v1"
MIRROR = {"kubernetes.io/config.mirror": "x"}
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
DIFF = re.compile(r"( status.conditions).*", re.DOTALL)
"""Part of a refusal by kube-apiserver: the difference of two objects in Go syntax."""
CONTAINERS = [{"name": "c", "image": "i"}]


@dataclass(frozen=True)
class Side:
    """One of the two servers, called with the credentials of an administrator."""

    session: aiohttp.ClientSession
    url: str
    headers: dict[str, str]

    async def ask(self, method: str, path: str, body: Any = None, node: str = "") -> tuple[int, Any]:
        headers = {**self.headers, "content-type": "application/json"}
        if method == "PATCH":
            headers["content-type"] = "application/merge-patch+json"
        if node:
            headers |= {"impersonate-user": f"system:node:{node}", "impersonate-group": "system:nodes"}
        data = msgspec.json.encode(body) if body is not None else None
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def made(self, path: str, body: Object) -> Object:
        status, found = await self.ask("POST", path, body)
        assert status == 201, found
        made: Object = found
        return made


@asynccontextmanager
async def both_sides(assets: Path, folder: Path) -> AsyncIterator[list[Side]]:
    flags = {"enable-admission-plugins": "NodeRestriction"}
    plane = ControlPlane(folder / "theirs", assets, fsync=False, flags=flags)
    config = ApiServerConfig(
        backend="memory",
        secure_address="",
        local_address="127.0.0.1:0",
        authn_allow_localhost=True,
        pod_accounts=False,  # the real server has none without its controllers
        file_rootpath=str(folder / "ours"),
    )
    await asyncio.to_thread(plane.start)
    try:
        tls = ssl.create_default_context(cafile=str(plane.ca))
        connector = aiohttp.TCPConnector(ssl=tls)
        async with run_apiserver(config) as served, aiohttp.ClientSession(connector=connector) as session:
            theirs = Side(session, plane.url, {"authorization": f"Bearer {plane.token}"})
            yield [theirs, Side(session, f"http://{served.addresses['local']}", {})]
    finally:
        await asyncio.to_thread(plane.stop)


def new_pod(name: str, node: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": CONTAINERS, **spec}}


async def create_objects(side: Side) -> dict[str, str]:
    """Create two nodes with one pod each and the objects that these reference.  Return the UIDs."""
    uids = {}
    for name in ("n1", "n2"):
        uids[name] = (await side.made(f"{API}/nodes", {"metadata": {"name": name}}))["metadata"]["uid"]
    for name in ("s", "t", "stage"):
        await side.made(f"{DEFAULT}/secrets", {"metadata": {"name": name}})
        await side.made(f"{DEFAULT}/configmaps", {"metadata": {"name": name}})
    for name in ("robot", "other"):
        await side.made(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": name}})
    sizes = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    source = {"driver": "d.io", "volumeHandle": "h", "nodeStageSecretRef": {"namespace": "default", "name": "stage"}}
    volume = {**sizes, "csi": source, "claimRef": {"namespace": "default", "name": "c"}}
    await side.made(f"{API}/persistentvolumes", {"metadata": {"name": "v"}, "spec": volume})
    for name, bound in (("c", {"volumeName": "v"}), ("d", {})):
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **bound}
        await side.made(f"{DEFAULT}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": spec})
    for node in ("n1", "n2"):
        spec = {"attacher": "d.io", "nodeName": node, "source": {"persistentVolumeName": "v"}}
        await side.made(f"{STORAGE}/volumeattachments", {"metadata": {"name": f"on-{node}"}, "spec": spec})
        await side.made(LEASES, {"metadata": {"name": node}, "spec": {}})
        await side.made(f"{STORAGE}/csinodes", {"metadata": {"name": node}, "spec": {"drivers": []}})
    tokens = {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}
    volumes = [
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "m", "configMap": {"name": "s"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "t", "projected": tokens},
    ]
    pods = [
        new_pod("p", "n1", volumes=volumes, serviceAccountName="robot"),
        new_pod("q", "n2", serviceAccountName="robot"),
        new_pod("r", "n1", volumes=volumes[3:], serviceAccountName="robot"),
    ]
    for pod in pods:
        name = pod["metadata"]["name"]
        uids[name] = (await side.made(f"{DEFAULT}/pods", pod))["metadata"]["uid"]
    async with asyncio.timeout(20):  # kube-apiserver sees the references a moment later
        while (await side.ask("GET", f"{DEFAULT}/secrets/stage", node="n1"))[0] != 200:
            pass
    return uids


def requests(uids: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Requests of node n1 in order."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uids["n1"], "controller": True}
    mirror = {
        **new_pod("static", "n1"),
        "metadata": {"name": "static", "annotations": MIRROR, "ownerReferences": [owner]},
    }

    def token(pod: str, *audiences: str, **reference: Any) -> Object:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uids[pod], **reference}
        return {"spec": {"audiences": list(audiences), "boundObjectRef": bound}}

    def owned(*owners: Object) -> Object:
        return {**mirror, "metadata": {**mirror["metadata"], "ownerReferences": list(owners)}}

    def mirrored(**spec: Any) -> Object:
        return {**mirror, "spec": {**mirror["spec"], **spec}}

    def labelled(key: str) -> Object:
        return {"metadata": {"labels": {key: "x"}}}

    taint = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    running = {"status": {"phase": "Running"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}}
    slices = {"driver": "d.io", "nodeName": "n2", "pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}}
    reads = [
        *(f"{DEFAULT}/secrets/{name}" for name in ("s", "t", "stage", "absent")),
        *(f"{DEFAULT}/secrets{query}" for query in ("", "?fieldSelector=metadata.name%3Ds", "?limit=1")),
        f"{DEFAULT}/secrets?fieldSelector=metadata.name%3Dt",
        f"{API}/secrets?fieldSelector=metadata.name%3Ds",
        *(f"{DEFAULT}/configmaps/{name}" for name in ("s", "t")),
        *(f"{DEFAULT}/persistentvolumeclaims/{name}" for name in ("c", "d")),
        *(f"{API}/persistentvolumes/v", f"{API}/persistentvolumes", f"{DEFAULT}/persistentvolumeclaims/c/status"),
        *(f"{STORAGE}/volumeattachments/on-{node}" for node in ("n1", "n2")),
        *(f"{DEFAULT}/pods/{name}" for name in ("p", "q")),
        *(
            f"{API}/pods{query}"
            for query in ("", "?fieldSelector=spec.nodeName%3Dn1", "?fieldSelector=spec.nodeName!%3Dn1")
        ),
        *(f"{API}/nodes/{node}" for node in ("n1", "n2", "absent")),
        *(f"{API}/nodes{query}" for query in ("", "?fieldSelector=metadata.name%3Dn1")),
        *(f"{LEASES}/{node}" for node in ("n1", "n2")),
        *(LEASES, "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1"),
        *(f"{STORAGE}/csinodes/{node}" for node in ("n1", "n2")),
        *(f"{DEFAULT}/serviceaccounts/{name}" for name in ("robot", "other")),
        *(f"{DEVICES}/resourceslices", f"{DEVICES}/resourceslices?fieldSelector=spec.nodeName%3Dn1"),
        *(f"{API}/services", f"{API}/namespaces", "/apis/apps/v1/deployments", f"{STORAGE}/csidrivers"),
        *("/metrics", "/version"),
    ]
    return [
        *(("GET", path, None) for path in reads),
        *(("PATCH", f"{API}/nodes/{node}/status", ready) for node in ("n1", "n2", "absent")),
        *(("PATCH", f"{API}/nodes/n2{sub}", {}) for sub in ("", "/status")),
        ("PATCH", f"{API}/nodes/n1", taint),
        *(
            ("PATCH", f"{API}/nodes/n1", labelled(key))
            for key in (
                *("own", "example.com/a", "kubernetes.io/hostname", "kubernetes.io/metadata", "k8s.io/a"),
                *("node-restriction.kubernetes.io/a", "a.node-restriction.kubernetes.io/b", "node.kubernetes.io/a"),
                *("x.kubelet.kubernetes.io/a", "node-role.kubernetes.io/a", "topology.kubernetes.io/zone"),
            )
        ),
        ("PATCH", f"{API}/nodes/n1", {"metadata": {"ownerReferences": [{**owner, "controller": False}]}}),
        ("POST", f"{API}/nodes", {"metadata": {"name": "n3"}}),
        ("DELETE", f"{API}/nodes/n1", None),
        *(("PATCH", f"{DEFAULT}/pods/{name}/status", running) for name in ("p", "q")),
        ("PATCH", f"{DEFAULT}/pods/q/status", {}),
        ("PATCH", f"{DEFAULT}/pods/p/status", labelled("a")),
        ("PATCH", f"{DEFAULT}/pods/p", labelled("a")),
        ("PATCH", f"{DEFAULT}/pods/p/ephemeralcontainers", {"spec": {"ephemeralContainers": CONTAINERS}}),
        ("POST", f"{DEFAULT}/pods", new_pod("x", "n1")),
        *(
            ("POST", f"{DEFAULT}/pods", owned(*owners))
            for owners in ([], [owner, {**owner, "uid": "y"}], [{**owner, "uid": "x"}])
        ),
        ("POST", f"{DEFAULT}/pods", owned({**owner, "name": "n2"})),
        ("POST", f"{DEFAULT}/pods", owned({**owner, "controller": False})),
        ("POST", f"{DEFAULT}/pods", owned({**owner, "blockOwnerDeletion": True})),
        ("POST", f"{DEFAULT}/pods", mirrored(nodeName="n2")),
        ("POST", f"{DEFAULT}/pods", mirrored(serviceAccountName="robot")),
        ("POST", f"{DEFAULT}/pods", mirrored(imagePullSecrets=[{"name": "s"}])),
        *(
            ("POST", f"{DEFAULT}/pods", mirrored(volumes=[{"name": "v", **volume}]))
            for volume in (
                {"configMap": {"name": "m"}},
                {"persistentVolumeClaim": {"claimName": "c"}},
                {"csi": {"driver": "d.io"}},
                {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
                {"projected": {"sources": [{"secret": {"name": "s"}}]}},
            )
        ),
        ("POST", f"{DEFAULT}/pods", mirror),
        *(("POST", f"{DEFAULT}/serviceaccounts/robot/token", token("p", *each)) for each in (["vault"], ["x"], [])),
        *(("POST", f"{DEFAULT}/serviceaccounts/robot/token", token("r", *each)) for each in (["vault"], ["x"], [])),
        ("POST", f"{DEFAULT}/serviceaccounts/robot/token", token("p", "a", "b")),
        ("POST", f"{DEFAULT}/serviceaccounts/robot/token", token("q", "vault")),
        ("POST", f"{DEFAULT}/serviceaccounts/other/token", token("p", "vault")),
        ("POST", f"{DEFAULT}/serviceaccounts/robot/token", {"spec": {"audiences": ["vault"]}}),
        *(
            ("POST", f"{DEFAULT}/serviceaccounts/robot/token", token("p", "vault", **reference))
            for reference in ({"uid": ""}, {"kind": "Secret"}, {"name": "absent"}, {"uid": uids["q"]})
        ),
        *(("POST", LEASES, {"metadata": {"name": name}, "spec": {}}) for name in ("n3",)),
        *(("PATCH", f"{LEASES}/{name}", labelled("a")) for name in ("n1", "n2")),
        ("POST", f"{STORAGE}/csinodes", {"metadata": {"name": "n3"}, "spec": {"drivers": []}}),
        ("POST", f"{DEVICES}/resourceslices", {"metadata": {"name": "x"}, "spec": {**slices, "devices": []}}),
        ("PATCH", f"{DEFAULT}/persistentvolumeclaims/c/status", {"status": {"capacity": {"storage": "2Gi"}}}),
        ("PATCH", f"{DEFAULT}/persistentvolumeclaims/c/status", labelled("a")),
        ("PATCH", f"{DEFAULT}/persistentvolumeclaims/d/status", {"status": {"capacity": {"storage": "2Gi"}}}),
        ("PATCH", f"{DEFAULT}/persistentvolumeclaims/c", labelled("a")),
        ("POST", f"{DEFAULT}/pods/q/eviction", eviction),
        ("POST", f"{DEFAULT}/pods/p/eviction", {**eviction, "metadata": {"name": "p"}}),
        *(("DELETE", f"{DEFAULT}/pods/{name}", {"gracePeriodSeconds": 0}) for name in ("q", "p", "static", "absent")),
        ("POST", f"{ACCESS}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}}),
    ]


def comparable(answer: tuple[int, Any]) -> tuple[int, str]:
    """Code of a response and the message of a refusal."""
    status, body = answer
    words = body.get("message", "") if isinstance(body, dict) and status >= 400 else ""
    return status, DIFF.sub(r"\1", UID.sub("UID", words))


@pytest.mark.kubernetes
async def test_both_servers_answer_a_node_alike(kube_assets: Path, tmp_path: Path) -> None:
    async with both_sides(kube_assets, tmp_path) as sides:
        request_lists = [requests(await create_objects(side)) for side in sides]
        different = []
        for theirs, ours in zip(*request_lists, strict=True):
            answers = [
                comparable(await side.ask(*each, node="n1")) for side, each in zip(sides, (theirs, ours), strict=True)
            ]
            if answers[0] != answers[1]:
                different.append(
                    f"{ours[0]} {ours[1]} {str(ours[2])[:200]}\n  theirs {answers[0]}\n  ours   {answers[1]}"
                )
        assert not different, "\n".join([f"{len(different)} of {len(request_lists[0])} answers differ:", *different])
