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


def tapestry(site: BoundClusters, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(arguments, {**os.environ, "KUBECONFIG": str(site.virtual_plane.kubeconfig)})


def run_repair(site: BoundClusters, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `tapestry repair` and return its exit code and findings."""
    done = tapestry(site, "repair", site.name, "-o", "json", *options)
    assert done.stderr == "", done.stderr
    return done.returncode, json.loads(done.stdout)


async def lend(site: BoundClusters) -> str:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    return node


async def map_pod(site: BoundClusters, node: str) -> Object:
    """Create a pod that mounts a ConfigMap and a token.  Return its twin."""
    await site.wait_for_virtual_node(node)
    await give(
        site.virtual, SERVICE_ACCOUNTS, new_object("ServiceAccount", {"name": "default", "namespace": "default"})
    )
    settings = {"name": f"{site.name}-settings", "namespace": "default"}
    await site.virtual.create(CONFIGMAPS, new_object("ConfigMap", settings, data={"k": "v"}))
    config = {"name": "s", "configMap": {"name": settings["name"]}}
    await site.bind_pod("work", node, volumes=[config, TOKEN], serviceAccountName="default")
    await site.wait_for_pod("work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION))
    return await site.wait_for_twin("work")


async def create_service(site: BoundClusters) -> None:
    """Create a Service with one endpoint in a namespace whose Services are copied."""
    await site.virtual.create(NAMESPACES, new_object("Namespace", {"name": site.name}))
    place = {"name": "front", "namespace": site.name}
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    await site.virtual.create(SERVICES, new_object("Service", place, spec={"selector": {"app": "x"}, "ports": ports}))
    labels = {"kubernetes.io/service-name": "front"}
    slice = {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.7.0.1"]}],
        "ports": [{"name": "http", "port": 8080}],
    }
    await site.virtual.create(
        ENDPOINT_SLICES,
        new_object("EndpointSlice", {**place, "labels": labels}, ENDPOINT_SLICES.api_version, **slice),
    )
    await site.set_binding(serviceNamespaces=[site.name])
    for kind in (SERVICES, ENDPOINT_SLICES):
        await wait_for_all(site.physical, kind, site.mount, lambda found: len(found) == 1)


async def add_duplicate(site: BoundClusters, twin: Object) -> None:
    """Create a physical pod with the labels and annotations of `twin` under another name."""
    metadata = {field: twin["metadata"][field] for field in ("labels", "annotations")}
    place = {**metadata, "name": "double", "namespace": site.mount}
    spec = {"containers": [{"name": "c", "image": "none"}], "terminationGracePeriodSeconds": 0}
    await site.physical.create(PODS, new_object("Pod", place, spec=spec))


async def left_below(site: BoundClusters) -> list[str]:
    kinds = (PODS, CONFIGMAPS, SECRETS, SERVICES, ENDPOINT_SLICES)
    return [f"{kind.plural} {name_of(obj)}" for kind in kinds for obj in await site.physical.list(kind, site.mount)]


async def test_repair_finds_nothing_while_a_syncer_runs(site: BoundClusters) -> None:
    node = await lend(site)
    with site.syncer():
        await map_pod(site, node)
        await create_service(site)
        assert run_repair(site) == (0, [])
        assert tapestry(site, "repair", site.name).stdout == "no inconsistencies were found\n"


async def test_repair_removes_leftovers_but_no_foreign_objects(site: BoundClusters) -> None:
    node = await lend(site)
    with site.syncer():
        await map_pod(site, node)
        await create_service(site)
    await site.physical.create(CONFIGMAPS, new_object("ConfigMap", {"name": "foreign", "namespace": site.mount}))
    await site.end_pod("work")
    await site.virtual.delete(SERVICES, object_named("front", site.name))
    code, found = run_repair(site, "--dry-run")
    assert (code, sorted(each["resource"] for each in found)) == (
        1,
        ["configmaps", "endpointslices", "pods", "secrets", "services"],
    )
    assert len(await left_below(site)) == 6
    code, found = run_repair(site)
    assert (code, [each["fixed"] for each in found]) == (0, [True] * 5)
    await site.wait_until_twin_is_gone("work")
    assert await left_below(site) == ["configmaps foreign"]
    assert run_repair(site) == (0, [])


async def test_repair_reports_problems_only_a_syncer_can_fix(site: BoundClusters) -> None:
    node = await lend(site)
    with site.syncer():
        twin = await map_pod(site, node)
    await site.physical.delete(PODS, twin, grace_seconds=0)
    done = tapestry(site, "repair", site.name)
    assert done.returncode == 1
    assert "its twin is gone" in done.stdout
    assert f"{site.name}: fixed by the syncer of the binding, which seems to be running" in done.stdout
    assert tapestry(site, "repair", "nobody").stderr.startswith("Error: there is no ClusterBinding nobody; known are: ")


async def test_syncer_repairs_inconsistencies(site: BoundClusters) -> None:
    """The syncer deletes a duplicate twin, restores missing labels and deletes a Lease without a node."""
    node = await lend(site)
    gone = site.above(f"{node}-gone")
    owner = {"apiVersion": "v1", "kind": "Node", "name": gone, "uid": "00000000-0000-0000-0000-000000000000"}
    lease = {"name": gone, "namespace": NODE_LEASE_NAMESPACE, "ownerReferences": [owner]}
    await give(site.virtual, NAMESPACES, new_object("Namespace", {"name": NODE_LEASE_NAMESPACE}))
    await site.virtual.create(LEASES, new_object("Lease", lease, LEASES.api_version))
    with site.syncer(check_seconds="0.5"):
        twin = await map_pod(site, node)
        await add_duplicate(site, twin)
        await site.physical.patch(PODS, object_named(name_of(twin), site.mount), {
            "metadata": {"annotations": {keys.VIRTUAL_POD_NAME: "somebody-elses"}},
        })  # fmt: skip
        await wait_until_gone(site.physical, PODS, "double", site.mount)
        await site.wait_for_twin("work", annotated(keys.VIRTUAL_POD_NAME, f"{site.name}-work"))
        await wait_until_gone(site.virtual, LEASES, gone, NODE_LEASE_NAMESPACE)
        assert uid_of(await site.wait_for_twin("work")) == uid_of(twin)
    assert len([each for each in site.writes() if each["verb"] == "delete" and "double" in str(each)]) == 1


async def test_pod_list_tree_and_explanation_agree(site: BoundClusters) -> None:
    node = await lend(site)
    with site.syncer():
        twin = await map_pod(site, node)
        missing = {"name": "p", "secret": {"secretName": "nobody-made-it"}}
        await site.bind_pod("poor", node, volumes=[missing])
        await site.wait_for_pod("poor", lambda pod: "SecretMissing" in str(pod["status"]))
        pods = {
            each["name"]: each for each in json.loads(says(site, "pods", "-A", "--binding", site.name, "-o", "json"))
        }
        work, poor = pods[f"{site.name}-work"], pods[f"{site.name}-poor"]
        assert (work["node"], work["binding"], work["physicalNode"]) == (site.above(node), site.name, node)
        assert work["twin"] == f"{site.mount}/{name_of(twin)}"
        assert (poor["state"], poor["reason"], poor["twin"]) == ("Waiting", "SecretMissing", "")
        tree = json.loads(says(site, "tree", "--binding", site.name, "-o", "json"))
        (branch,) = tree["bindings"][0]["nodes"]
        assert [leaf["pod"] for leaf in branch["pods"]] == [f"default/{site.name}-poor", f"default/{site.name}-work"]
        assert f"└─ default/{site.name}-work -> {work['twin']}: Pending" in says(site, "tree", "--binding", site.name)
        text = says(site, "explain", "pod", f"default/{site.name}-poor")
        assert text.startswith(f"Pod default/{site.name}-poor: Waiting (SecretMissing)")
        assert "secrets default/nobody-made-it does not exist" in text
        assert f"twin {work['twin']}: Pending" in says(site, "explain", "pod", f"{site.name}-work")


async def test_unschedulable_pod_is_explained_by_its_taint(site: BoundClusters) -> None:
    node = await lend(site)
    with site.syncer():
        await site.wait_for_virtual_node(node)
        pod = new_object("Pod", {"name": f"{site.name}-new", "namespace": "default"}, spec={
            "containers": [{"name": "c", "image": "none"}],
            "nodeSelector": {"lent-to": site.name},
        })  # fmt: skip
        await site.virtual.create(PODS, pod)
        text = says(site, "explain", "pod", f"{site.name}-new")
        assert "taint tapestry.io/vnode:NoSchedule" in text
        assert "add to the pod's spec.tolerations: {key: tapestry.io/vnode, operator: Exists}" in text


def says(site: BoundClusters, *arguments: str) -> str:
    done = tapestry(site, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
