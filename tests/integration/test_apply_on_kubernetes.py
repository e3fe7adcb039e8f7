"""Comparison of server-side apply on our API server and on a kube-apiserver.

The tests compare the code of each response, the message and causes of a refusal, the object and its managed fields.
Identities and times differ between servers and are left out.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.kube.objects import Object, value_at, without_field

from .sides import JSON, Ours, Theirs

APPLY, MERGE, JSON_PATCH = "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PLACES = {
    "ConfigMap": ("v1", "/api/v1/namespaces/default/configmaps"),
    "Service": ("v1", "/api/v1/namespaces/default/services"),
    "Deployment": ("apps/v1", "/apis/apps/v1/namespaces/default/deployments"),
    "Gadget": ("example.com/v1", "/apis/example.com/v1/namespaces/default/gadgets"),
}
ALLOCATED = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
"""Fields of a Service that Kubernetes allocates and we do not."""
GADGETS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget", "singular": "gadget", "listKind": "GadgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer"},
                                    "color": {"type": "string", "default": "red"},
                                    "plain": {"type": "array", "items": {"type": "string"}},
                                    "tags": {
                                        "type": "array",
                                        "items": {"type": "string"},
                                        "x-kubernetes-list-type": "set",
                                    },
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name", "side"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "side": {"type": "string", "default": "left"},
                                                "count": {"type": "integer"},
                                                "note": {"type": "string"},
                                            },
                                        },
                                    },
                                    "whole": {
                                        "type": "object",
                                        "x-kubernetes-map-type": "atomic",
                                        "additionalProperties": {"type": "string"},
                                    },
                                    "nested": {
                                        "type": "object",
                                        "additionalProperties": {
                                            "type": "object",
                                            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                                        },
                                    },
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@dataclass(frozen=True)
class Step:
    """One request about the object of a sequence."""

    method: str
    content: Any
    """Content of the object without its identity, or a patch."""
    kind: str = "application/json"
    manager: str = ""
    force: bool = False
    subresource: str = ""
    query: tuple[tuple[str, str], ...] = ()


def apply(manager: str, content: Any, *, force: bool = False, subresource: str = "", **query: str) -> Step:
    return Step("PATCH", content, APPLY, manager, force, subresource, tuple(query.items()))


def post(manager: str, content: Any) -> Step:
    return Step("POST", content, manager=manager)


def put(manager: str, content: Any, subresource: str = "") -> Step:
    return Step("PUT", content, manager=manager, subresource=subresource)


def patch(manager: str, content: Any, kind: str = MERGE, subresource: str = "") -> Step:
    return Step("PATCH", content, kind, manager, subresource=subresource)


def data(**values: str) -> Object:
    return {"data": values}


def labelled(**labels: str) -> Object:
    return {"metadata": {"labels": labels}}


def deployment(*containers: Object, volumes: tuple[Object, ...] = (), **spec: Any) -> Object:
    pod: Object = {"containers": list(containers)}
    if volumes:
        pod["volumes"] = list(volumes)
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {"spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


def container(name: str = "c", image: str = "nginx:1", **more: Any) -> Object:
    return {"name": name, "image": image, **more}


def ports(*listed: Object) -> Object:
    return {"spec": {"ports": list(listed), "selector": {"app": "web"}}}


def gadget(**spec: Any) -> Object:
    return {"spec": spec}


CONFIG_MAPS: dict[str, list[Step]] = {
    "made": [apply("a", data(x="1"))],
    "made with labels": [apply("a", {**data(x="1"), **labelled(l="1")})],
    "made empty": [apply("a", {})],
    "applied twice": [apply("a", data(x="1")), apply("a", data(x="1"))],
    "changed": [apply("a", data(x="1")), apply("a", data(x="2"))],
    "more": [apply("a", data(x="1")), apply("a", data(x="1", y="2"))],
    "less": [apply("a", data(x="1", y="2")), apply("a", data(x="1"))],
    "nothing any more": [apply("a", data(x="1")), apply("a", {})],
    "emptied": [apply("a", data(x="1")), apply("a", {"data": {}})],
    "a conflict": [apply("a", data(x="1")), apply("b", data(x="2"))],
    "conflicts": [apply("a", data(x="1", y="1")), apply("b", data(x="2", y="2"))],
    "conflicts with two": [apply("a", data(x="1")), apply("b", data(y="1")), apply("c", data(x="2", y="2"))],
    "forced": [apply("a", data(x="1", y="1")), apply("b", data(x="2"), force=True), apply("a", data(x="1", y="1"))],
    "shared": [apply("a", data(x="1")), apply("b", data(x="1")), apply("a", {}), apply("b", {})],
    "shared, changed": [apply("a", data(x="1")), apply("b", data(x="1")), apply("b", data(x="2"))],
    "beside": [apply("a", data(x="1")), apply("b", data(y="1")), apply("a", {}), apply("b", data(y="2"))],
    "made, then applied": [post("m", data(x="1", y="1")), apply("a", data(x="1"))],
    "made, then in conflict": [post("m", {**data(x="1"), **labelled(l="1")}), apply("a", data(x="2"))],
    "made, then forced": [post("m", {**data(x="1"), **labelled(l="1")}), apply("a", data(x="2"), force=True)],
    "applied, then patched": [apply("a", data(x="1", y="1")), patch("m", data(x="2")), apply("a", data(x="1", y="1"))],
    "applied, then put": [apply("a", data(x="1", y="1")), put("m", data(z="1")), apply("a", data(y="1"))],
    "removed by another": [
        apply("a", data(x="1", y="1")),
        patch("m", {"data": {"x": None}}),
        apply("a", data(x="1", y="1")),
    ],
    "put without a change": [apply("a", data(x="1")), put("m", data(x="1"))],
    "patched twice": [post("m", data(x="1")), patch("n", data(y="1")), patch("m", data(y="2")), patch("n", {})],
    "labels and annotations": [
        post("m", {"metadata": {"labels": {"a": "1"}, "annotations": {"b": "1"}}}),
        patch("n", {"metadata": {"labels": {"c": "1"}, "finalizers": ["x.example.com/y"]}}),
        apply("a", {"metadata": {"labels": {"c": "1"}, "finalizers": ["x.example.com/z"]}}),
        patch("n", {"metadata": {"finalizers": None}}),
    ],
    "reset": [
        apply("a", data(x="1")),
        patch("m", {"metadata": {"managedFields": [{}]}}),
        patch("m", data(y="1")),
        apply("a", data(x="1")),
        apply("b", data(y="2")),
    ],
    "reset by an empty list": [
        apply("a", data(x="1")),
        patch("m", [{"op": "replace", "path": "/metadata/managedFields", "value": []}], JSON_PATCH),
    ],
    "many writers": [
        post("m", data(x="0")),
        *(patch(f"m{number}", data(**{f"x{number}": "1"})) for number in range(12)),
    ],
    "no manager": [apply("", data(x="1"))],
    "managed fields in it": [apply("a", {"metadata": {"managedFields": [{"manager": "b"}]}})],
    "another kind": [apply("a", {"apiVersion": "v1", "kind": "Secret"})],
    "unknown fields": [apply("a", {"date": {"x": "1"}})],
    "force on another patch": [post("m", {}), Step("PATCH", {}, MERGE, "m", force=True)],
    "dry run": [apply("a", data(x="1"), dryRun="All"), apply("a", data(x="2"))],
    "kubectl moves on": [
        post(
            "kubectl-client-side-apply",
            {
                **data(x="1", y="1"),
                "metadata": {
                    "annotations": {
                        "kubectl.kubernetes.io/last-applied-configuration": msgspec.json.encode(
                            {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "1", "y": "1"}}
                        ).decode()
                    }
                },
            },
        ),
        apply("other", data(x="2")),
        apply("kubectl", data(x="2", y="1")),
    ],
}
DEPLOYMENTS: dict[str, list[Step]] = {
    "made": [apply("a", deployment(container()))],
    "posted": [post("m", deployment(container(ports=[{"containerPort": 80}])))],
    "posted with much": [
        post(
            "m",
            deployment(
                container(
                    env=[
                        {"name": "A", "value": "1"},
                        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    livenessProbe={"httpGet": {"path": "/", "port": 80}},
                    resources={"limits": {"cpu": "1"}},
                    volumeMounts=[{"name": "v", "mountPath": "/v"}],
                    securityContext={"capabilities": {"add": ["NET_ADMIN"]}},
                ),
                volumes=({"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "w"}}),
                replicas=2,
                strategy={"type": "Recreate"},
            ),
        )
    ],
    "replicas": [
        apply("a", deployment(container(), replicas=1)),
        apply("b", {"spec": {"replicas": 3}}),
        apply("b", {"spec": {"replicas": 3}}, force=True),
        apply("a", deployment(container())),
        apply("b", {}),
    ],
    "scaled": [
        apply("a", deployment(container(), replicas=1)),
        patch("m", {"spec": {"replicas": 2}}, subresource="scale"),
        apply("a", deployment(container(), replicas=1)),
    ],
    "a container more": [
        apply("a", deployment(container())),
        apply("b", deployment(container("d", "busybox:1"))),
        apply("a", deployment(container(), container("e", "busybox:2"))),
        apply("a", deployment(container("e", "busybox:2"), container())),
        apply("b", {}),
    ],
    "variables": [
        apply("a", deployment(container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]))),
        apply("b", deployment(container(env=[{"name": "C", "value": "3"}]))),
        apply("a", deployment(container(env=[{"name": "B", "value": "2"}]))),
        patch("m", deployment(container(image="nginx:2")), STRATEGIC),
        apply("a", deployment(container(env=[{"name": "B", "value": "2"}]))),
    ],
    "twice the same port": [
        apply("a", deployment(container(ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]))),
        apply("b", deployment(container(ports=[{"containerPort": 80, "protocol": "UDP", "name": "dns"}]))),
        apply("a", deployment(container(ports=[{"containerPort": 80}, {"containerPort": 80}]))),
    ],
    "its status": [
        apply("a", deployment(container())),
        patch("k", {"status": {"replicas": 1, "observedGeneration": 1}}, subresource="status"),
        apply("s", {"status": {"readyReplicas": 1}}, subresource="status"),
        apply("a", {**deployment(container()), "status": {"replicas": 7}}),
    ],
    "an unknown field": [apply("a", deployment(container(imagge="x")))],
    "a status of nothing": [apply("s", {"status": {"replicas": 1}}, subresource="status")],
}
SERVICES: dict[str, list[Step]] = {
    "made": [apply("a", ports({"port": 80}))],
    "posted": [post("m", ports({"port": 80, "name": "web"}))],
    "ports": [
        apply("a", ports({"port": 80, "name": "web"})),
        apply("b", {"spec": {"ports": [{"port": 53, "protocol": "UDP", "name": "dns"}]}}),
        apply("b", {"spec": {"ports": [{"port": 80, "name": "other"}]}}),
        apply("a", {}),
    ],
    "its selector is one field": [
        apply("a", ports({"port": 80})),
        apply("b", {"spec": {"selector": {"tier": "x"}}}),
        apply("b", {"spec": {"selector": {"tier": "x"}}}, force=True),
        patch("m", {"spec": {"selector": {"more": "y"}}}),
    ],
}
GADGET_STEPS: dict[str, list[Step]] = {
    "made": [apply("a", gadget(size=1))],
    "posted": [post("m", {**gadget(size=1, tags=["x"], parts=[{"name": "p"}]), **labelled(l="1")})],
    "a default is nobody's": [apply("a", gadget(size=1)), apply("b", gadget(color="blue"))],
    "tags": [
        apply("a", gadget(tags=["x", "y"])),
        apply("b", gadget(tags=["z", "x"])),
        apply("a", gadget(tags=["y"])),
        apply("b", gadget(tags=[])),
        apply("a", {}),
    ],
    "parts": [
        apply("a", gadget(parts=[{"name": "p", "count": 1}, {"name": "q", "side": "right"}])),
        apply("b", gadget(parts=[{"name": "p", "note": "n"}, {"name": "p", "side": "right"}])),
        apply("b", gadget(parts=[{"name": "p", "side": "left", "count": 2}])),
        apply("a", gadget(parts=[{"name": "q", "side": "right"}])),
        apply("b", {}),
    ],
    "a part without its key": [apply("a", gadget(parts=[{"count": 1}]))],
    "lists that are one field": [
        apply("a", gadget(plain=["x"], whole={"a": "1"})),
        apply("b", gadget(plain=["x", "y"])),
        apply("b", gadget(whole={"b": "1"})),
        apply("a", gadget(plain=["x", "y"])),
    ],
    "maps of maps": [
        apply("a", gadget(nested={"m": {"a": 1}, "n": {"a": 1}})),
        apply("b", gadget(nested={"m": {"b": 2}})),
        apply("a", gadget(nested={"n": {"a": 2}})),
        apply("b", {}),
    ],
    "what no schema describes": [
        apply("a", gadget(free={"x": {"y": 1, "l": [{"name": "n"}]}})),
        apply("b", gadget(free={"x": {"z": 1}})),
        apply("b", gadget(free={"x": {"l": []}})),
        apply("a", gadget(free={})),
    ],
    "its status": [
        apply("a", {**gadget(size=1), "status": {"phase": "x"}}),
        apply("s", {"status": {"phase": "Ready"}}, subresource="status"),
        patch("k", {"status": {"phase": "Gone"}}, subresource="status"),
        apply("s", {**gadget(size=7), "status": {"phase": "Ready"}}, subresource="status"),
    ],
    "an unknown field": [apply("a", gadget(sise=1))],
}
SEQUENCES = [
    (kind, name, steps)
    for kind, table in (
        ("ConfigMap", CONFIG_MAPS),
        ("Deployment", DEPLOYMENTS),
        ("Service", SERVICES),
        ("Gadget", GADGET_STEPS),
    )
    for name, steps in table.items()
]


async def outcome(side: Ours | Theirs, kind: str, name: str, step: Step) -> Any:
    """Response of one server, reduced to the parts that must be equal."""
    api_version, place = PLACES[kind]
    path = place if step.method == "POST" else "/".join(filter(None, (place, name, step.subresource)))
    query = dict(step.query)
    if step.manager:
        query["fieldManager"] = step.manager
    if step.force:
        query["force"] = "true"
    body = step.content
    if step.method in ("POST", "PUT") or step.kind == APPLY:
        metadata = {"name": name, "namespace": "default", **body.get("metadata", {})}
        body = {"apiVersion": api_version, "kind": kind, **body, "metadata": metadata}
    status, found = await side(step.method, path, body, step.kind, query)
    if status >= 400:
        return status, found.get("reason", ""), found["message"], causes(found)
    return status, comparable(found)


def causes(status: Object) -> list[Any]:
    """Causes in a fixed order, because servers return them in any order."""
    listed = value_at(status, "details", "causes", default=[])
    return sorted((each.get("reason"), each["message"], each.get("field")) for each in listed)


def comparable(obj: Object) -> Object:
    metadata = {key: each for key, each in obj["metadata"].items() if key in ("labels", "annotations", "managedFields")}
    if "managedFields" in metadata:
        metadata["managedFields"] = sorted(
            ({**each, "time": "time" in each} for each in metadata["managedFields"]),
            key=lambda each: (each["manager"], each["operation"], each.get("subresource", "")),
        )
    rest = {key: each for key, each in obj.items() if each and key not in ("metadata", "status")}
    for field in ALLOCATED:
        rest = without_field(rest, "spec", field) if "spec" in rest else rest
    return {**rest, "metadata": metadata}


async def test_every_sequence_of_writes_has_the_same_outcome(ours: Ours, theirs: Theirs) -> None:
    await define_gadgets(ours, theirs)
    differing = {}
    for number, (kind, name, steps) in enumerate(SEQUENCES):
        for index, step in enumerate(steps):
            answers = [await outcome(side, kind, f"o{number}", step) for side in (ours, theirs)]
            if answers[0] != answers[1]:
                differing[f"{kind}: {name}, step {index}"] = answers
                break
    assert not differing


async def define_gadgets(ours: Ours, theirs: Theirs) -> None:
    for side in (ours, theirs):
        status, _ = await side("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", GADGETS, JSON, {})
        assert status == 201
    async with asyncio.timeout(30):
        while (await theirs("GET", PLACES["Gadget"][1], None, JSON, {}))[0] != 200:
            continue
