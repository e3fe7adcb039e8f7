"""Repair of inconsistencies by a syncer and by `tapestry repair`."""

import json
import os
import subprocess
from typing import Any

from tapestry.apis import keys
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, name_of, object_named, uid_of
from tapestry.kube.resources import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODE_LEASE_NAMESPACE,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)

from .bound_clusters import BoundClusters, annotated, give, new_object, wait_for_all, wait_until_gone
from .forked import completed

TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


def tapestry(clusters: BoundClusters, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(arguments, {**os.environ, "KUBECONFIG": str(clusters.virtual_plane.kubeconfig)})


def run_repair(clusters: BoundClusters, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `tapestry repair` and return its exit code and findings."""
    done = tapestry(clusters, "repair", clusters.name, "-o", "json", *options)
    assert done.stderr == "", done.stderr
    return done.returncode, json.loads(done.stdout)


async def lend(clusters: BoundClusters) -> str:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    return node


async def map_pod(clusters: BoundClusters, node: str) -> Object:
    """Create a pod that mounts a ConfigMap and a token.  Return its twin."""
    await clusters.wait_for_virtual_node(node)
    await give(
        clusters.virtual, SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": "default", "namespace": "default"})
    )
    settings = {"name": f"{clusters.name}-settings", "namespace": "default"}
    await clusters.virtual.create(CONFIGMAPS, new_object("ConfigMap", settings, data={"k": "v"}))
    config = {"name": "s", "configMap": {"name": settings["name"]}}
    await clusters.bind_pod("work", node, volumes=[config, TOKEN], serviceAccountName="default")
    await clusters.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
    return await clusters.wait_for_twin("work")


async def create_service(clusters: BoundClusters) -> None:
    """Create a Service with one endpoint in a namespace whose Services are copied."""
    await clusters.virtual.create(NAMESPACES, new_object("Namespace", {"name": clusters.name}))
    place = {"name": "front", "namespace": clusters.name}
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    await clusters.virtual.create(
        SERVICES, new_object("Service", place, spec={"selector": {"app": "x"}, "ports": ports})
    )
    labels = {"kubernetes.io/service-name": "front"}
    slice = {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.7.0.1"]}],
        "ports": [{"name": "http", "port": 8080}],
    }
    await clusters.virtual.create(
        ENDPOINT_SLICES,
        new_object("EndpointSlice", {**place, "labels": labels}, ENDPOINT_SLICES.api_version, **slice),
    )
    await clusters.set_binding(serviceNamespaces=[clusters.name])
    for kind in (SERVICES, ENDPOINT_SLICES):
        await wait_for_all(clusters.physical, kind, clusters.mount, lambda found: len(found) == 1)


async def add_duplicate(clusters: BoundClusters, twin: Object) -> None:
    """Create a physical pod with the labels and annotations of `twin` under another name."""
    metadata = {field: twin["metadata"][field] for field in ("labels", "annotations")}
    place = {**metadata, "name": "double", "namespace": clusters.mount}
    spec = {"containers": [{"name": "c", "image": "none"}], "terminationGracePeriodSeconds": 0}
    await clusters.physical.create(PODS, new_object("Pod", place, spec=spec))


async def left_below(clusters: BoundClusters) -> list[str]:
    kinds = (PODS, CONFIGMAPS, SECRETS, SERVICES, ENDPOINT_SLICES)
    return [
        f"{kind.plural} {name_of(obj)}" for kind in kinds for obj in await clusters.physical.list(kind, clusters.mount)
    ]


async def test_repair_finds_nothing_while_a_syncer_runs(clusters: BoundClusters) -> None:
    node = await lend(clusters)
    with clusters.syncer():
        await map_pod(clusters, node)
        await create_service(clusters)
        assert run_repair(clusters) == (0, [])
        assert tapestry(clusters, "repair", clusters.name).stdout == "no inconsistencies were found\n"


async def test_repair_removes_leftovers_but_no_foreign_objects(clusters: BoundClusters) -> None:
    node = await lend(clusters)
    with clusters.syncer():
        await map_pod(clusters, node)
        await create_service(clusters)
    await clusters.physical.create(
        CONFIGMAPS, new_object("ConfigMap", {"name": "foreign", "namespace": clusters.mount})
    )
    await clusters.end_pod("work")
    await clusters.virtual.delete(SERVICES, object_named("front", clusters.name))
    code, found = run_repair(clusters, "--dry-run")
    assert (code, sorted(each["resource"] for each in found)) == (
        1,
        ["configmaps", "endpointslices", "pods", "secrets", "services"],
    )
    assert len(await left_below(clusters)) == 6
    code, found = run_repair(clusters)
    assert (code, [each["fixed"] for each in found]) == (0, [True] * 5)
    await clusters.wait_until_twin_is_gone("work")
    assert await left_below(clusters) == ["configmaps foreign"]
    assert run_repair(clusters) == (0, [])


async def test_repair_reports_problems_only_a_syncer_can_fix(clusters: BoundClusters) -> None:
    node = await lend(clusters)
    with clusters.syncer():
        twin = await map_pod(clusters, node)
    await clusters.physical.delete(PODS, twin, grace_seconds=0)
    done = tapestry(clusters, "repair", clusters.name)
    assert done.returncode == 1
    assert "its twin is gone" in done.stdout
    assert f"{clusters.name}: fixed by the syncer of the binding, which seems to be running" in done.stdout
    assert tapestry(clusters, "repair", "nobody").stderr.startswith(
        "Error: there is no ClusterBinding nobody; known are: "
    )


async def test_syncer_repairs_inconsistencies(clusters: BoundClusters) -> None:
    """The syncer deletes a duplicate twin, restores missing labels and deletes a Lease without a node."""
    node = await lend(clusters)
    gone = clusters.above(f"{node}-gone")
    owner = {"apiVersion": "v1", "kind": "Node", "name": gone, "uid": "00000000-0000-0000-0000-000000000000"}
    lease = {"name": gone, "namespace": NODE_LEASE_NAMESPACE, "ownerReferences": [owner]}
    await give(clusters.virtual, NAMESPACES, new_object("Namespace", {"name": NODE_LEASE_NAMESPACE}))
    await clusters.virtual.create(LEASES, new_object("Lease", lease, LEASES.api_version))
    with clusters.syncer(check_seconds="0.5"):
        twin = await map_pod(clusters, node)
        await add_duplicate(clusters, twin)
        await clusters.physical.patch(PODS, object_named(name_of(twin), clusters.mount), {
            "metadata": {"annotations": {keys.VIRTUAL_POD_NAME: "somebody-elses"}},
        })  # fmt: skip
        await wait_until_gone(clusters.physical, PODS, "double", clusters.mount)
        await clusters.wait_for_twin("work", annotated(keys.VIRTUAL_POD_NAME, f"{clusters.name}-work"))
        await wait_until_gone(clusters.virtual, LEASES, gone, NODE_LEASE_NAMESPACE)
        assert uid_of(await clusters.wait_for_twin("work")) == uid_of(twin)
    assert len([each for each in clusters.writes() if each["verb"] == "delete" and "double" in str(each)]) == 1


async def test_pod_list_tree_and_explanation_agree(clusters: BoundClusters) -> None:
    node = await lend(clusters)
    with clusters.syncer():
        twin = await map_pod(clusters, node)
        missing = {"name": "p", "secret": {"secretName": "nobody-made-it"}}
        await clusters.bind_pod("poor", node, volumes=[missing])
        await clusters.wait_for_pod("poor", lambda pod: "SecretMissing" in str(pod["status"]))
        pods = {
            each["name"]: each
            for each in json.loads(says(clusters, "pods", "-A", "--binding", clusters.name, "-o", "json"))
        }
        work, poor = pods[f"{clusters.name}-work"], pods[f"{clusters.name}-poor"]
        assert (work["node"], work["binding"], work["physicalNode"]) == (clusters.above(node), clusters.name, node)
        assert work["twin"] == f"{clusters.mount}/{name_of(twin)}"
        assert (poor["state"], poor["reason"], poor["twin"]) == ("Waiting", "SecretMissing", "")
        tree = json.loads(says(clusters, "tree", "--binding", clusters.name, "-o", "json"))
        (branch,) = tree["bindings"][0]["nodes"]
        assert [leaf["pod"] for leaf in branch["pods"]] == [
            f"default/{clusters.name}-poor",
            f"default/{clusters.name}-work",
        ]
        assert f"└─ default/{clusters.name}-work -> {work['twin']}: Pending" in says(
            clusters, "tree", "--binding", clusters.name
        )
        text = says(clusters, "explain", "pod", f"default/{clusters.name}-poor")
        assert text.startswith(f"Pod default/{clusters.name}-poor: Waiting (SecretMissing)")
        assert "secrets default/nobody-made-it does not exist" in text
        assert f"twin {work['twin']}: Pending" in says(clusters, "explain", "pod", f"{clusters.name}-work")


async def test_unschedulable_pod_is_explained_by_its_taint(clusters: BoundClusters) -> None:
    node = await lend(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        pod = new_object("Pod", {"name": f"{clusters.name}-new", "namespace": "default"}, spec={
            "containers": [{"name": "c", "image": "none"}],
            "nodeSelector": {"lent-to": clusters.name},
        })  # fmt: skip
        await clusters.virtual.create(PODS, pod)
        text = says(clusters, "explain", "pod", f"{clusters.name}-new")
        assert "taint tapestry.io/vnode:NoSchedule" in text
        assert "add to the pod's spec.tolerations: {key: tapestry.io/vnode, operator: Exists}" in text


def says(clusters: BoundClusters, *arguments: str) -> str:
    done = tapestry(clusters, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
