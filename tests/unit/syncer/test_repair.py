"""Consistency findings: none in a consistent state, and one for each fault."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.controller.testing import run
from tapestry.kube.objects import Object, annotations_of, key_of, name_of, uid_of, with_type_meta
from tapestry.kube.patches import apply_merge_patch
from tapestry.kube.resources import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    LEASES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)
from tapestry.kube.times import micro_timestamp
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.consistency_check import MAX_REPAIRS
from tapestry.syncer.repair import ClusterSide, Finding, Invariant, Requeue, Snapshot, findings
from tapestry.syncer.translate.copies import desired_copy, digest_view, tokens_secret
from tapestry.syncer.translate.pods import desired_twin
from tapestry.syncer.translate.services import desired_objects
from tapestry.syncer.translate.volumes import twin_claim, twin_volume

from .world import MOUNT, World, new_world, phase

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NODE = "vnode-e1-n1"
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


# -- a small consistent state


def new_binding(**spec: Any) -> Binding:
    reference = {"name": "east", "namespace": keys.SYSTEM_NAMESPACE}
    allowed = {"drivers": ["nfs.example"]}
    given = {"clusterID": "e1", "secretRef": reference, "mountNamespace": MOUNT, "serviceNamespaces": ["shop"]}
    obj = {"metadata": {"name": "east", "uid": "uid-east"}, "spec": {**given, "allowedVolumes": allowed, **spec}}
    return binding_of(with_type_meta(CLUSTER_BINDINGS, obj), "virtual")


BINDING = new_binding()


def new_object(resource: Resource, name: str, namespace: str = "shop", **content: Any) -> Object:
    metadata: Object = {"name": name, "uid": f"{resource.plural}-{name}", "resourceVersion": "1"}
    if resource.namespaced:
        metadata["namespace"] = namespace
    return with_type_meta(resource, {"metadata": metadata, **content})


def new_pod(name: str = "web", *, mapped: bool = True, **spec: Any) -> Object:
    condition = {"type": keys.MAPPED_CONDITION, "status": "True", "message": f"twin-of-{name}", "reason": "Mapped"}
    status = {"phase": "Running", "conditions": [condition] if mapped else []}
    container = {"name": "c", "image": "i"}
    pod = new_object(PODS, name, spec={"nodeName": NODE, "containers": [container], **spec})
    return virtual_pod({**pod, "status": status}).object


def physical_ref(obj: Object, uid: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": "1"}}


def new_twin(pod: Object) -> Object:
    return physical_ref(desired_twin(pod, BINDING, "n1"), f"twin-of-{name_of(pod)}")


CONFIG = new_object(CONFIGMAPS, "settings", data={"k": "v"})
SECRET = new_object(SECRETS, "password", data={"p": "eA=="})
MOUNTS = [
    {"name": "s", "configMap": {"name": "settings"}},
    {"name": "p", "secret": {"secretName": "password"}},
    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
    TOKEN,
]
WEB = new_pod(volumes=MOUNTS)
SERVICE = new_object(SERVICES, "front", spec={"ports": [{"port": 80}]})
SLICE = {
    **new_object(ENDPOINT_SLICES, "front-1", addressType="IPv4", endpoints=[{"addresses": ["10.0.0.7"]}], ports=[]),
}
SLICE["metadata"]["labels"] = {"kubernetes.io/service-name": "front"}
CLAIM = new_object(
    PERSISTENT_VOLUME_CLAIMS,
    "data",
    spec={"volumeName": "pv1", "accessModes": ["ReadWriteOnce"]},
    status={"phase": "Bound"},
)
VOLUME = new_object(
    PERSISTENT_VOLUMES,
    "pv1",
    spec={
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"uid": uid_of(CLAIM)},
        "csi": {"driver": "nfs.example", "volumeHandle": "h"},
    },
)


def new_lease(name: str = NODE, renewed: datetime = NOW) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"nodes-{name}"}
    lease = new_object(LEASES, name, "kube-node-lease", spec={"renewTime": micro_timestamp(renewed)})
    return {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}


def new_snapshot() -> Snapshot:
    """Return a snapshot of a pod with everything that a pod can have, and a Service."""
    stands = desired_objects(SERVICE, [SLICE], BINDING)
    served = {
        resource: [physical_ref(obj, name) for (each, name), obj in stands.items() if each is resource]
        for resource in (SERVICES, ENDPOINT_SLICES)
    }
    tokens = tokens_secret(WEB, BINDING, {"t.0": "secret"}, NOW + timedelta(hours=1))
    return Snapshot(
        binding=BINDING,
        now=NOW,
        nodes={NODE: new_object(NODES, NODE)},
        other_nodes=set(),
        pods={key_of(WEB): WEB},
        leases={NODE: new_lease()},
        virtual_objects={
            CONFIGMAPS: {key_of(CONFIG): digest_view(CONFIG)},
            SECRETS: {key_of(SECRET): digest_view(SECRET)},
            SERVICES: {key_of(SERVICE): SERVICE},
            ENDPOINT_SLICES: {key_of(SLICE): SLICE},
            PERSISTENT_VOLUME_CLAIMS: {key_of(CLAIM): CLAIM},
            PERSISTENT_VOLUMES: {key_of(VOLUME): VOLUME},
        },
        physical_objects={
            PODS: [new_twin(WEB)],
            CONFIGMAPS: [digest_view(physical_ref(desired_copy(CONFIG, BINDING), "c"))],
            SECRETS: [
                digest_view(physical_ref(desired_copy(SECRET, BINDING), "s")),
                digest_view(physical_ref(tokens, "t")),
            ],
            PERSISTENT_VOLUME_CLAIMS: [physical_ref(twin_claim(CLAIM, VOLUME, BINDING), "pvc")],
            PERSISTENT_VOLUMES: [physical_ref(twin_volume(CLAIM, VOLUME, BINDING), "pv")],
            **served,
        },
    )


def with_physical(snapshot: Snapshot, resource: Resource, *objects: Object) -> Snapshot:
    return replace(snapshot, physical_objects={**snapshot.physical_objects, resource: list(objects)})


def with_pods(snapshot: Snapshot, *pods: Object) -> Snapshot:
    return replace(snapshot, pods={key_of(pod): pod for pod in pods})


def changed(obj: Object, **metadata: Any) -> Object:
    """Return the object with other labels, annotations or names."""
    return {**obj, "metadata": apply_merge_patch(obj["metadata"], metadata)}


def single_finding(snapshot: Snapshot) -> Finding:
    (finding,) = findings(snapshot)
    return finding


SNAPSHOT = new_snapshot()
TWIN = SNAPSHOT.physical_objects[PODS][0]
KINDS = list(SNAPSHOT.physical_objects)


def test_consistent_state_has_no_findings() -> None:
    assert findings(SNAPSHOT) == []


# -- twins


def test_pod_without_twin_is_found() -> None:
    lost = single_finding(with_physical(SNAPSHOT, PODS))
    assert (lost.invariant, lost.side, lost.key) == (Invariant.TWINS, ClusterSide.VIRTUAL, "shop/web")
    assert (lost.message, lost.requeue) == ("its twin is gone", Requeue("pods", "shop/web"))
    fresh = with_pods(
        with_physical(replace(SNAPSHOT, physical_objects=NO_PHYSICAL_OBJECTS), PODS), new_pod(mapped=False)
    )
    assert [each.message for each in findings(fresh) if each.invariant is Invariant.TWINS] == ["it has no twin"]


NO_PHYSICAL_OBJECTS: dict[Resource, list[Object]] = {resource: [] for resource in KINDS}


def waiting(**condition: str) -> Object:
    pod = new_pod(mapped=False)
    return {**pod, "status": {**pod["status"], "conditions": [{"status": "False", "reason": "R", **condition}]}}


@pytest.mark.parametrize(
    "pod",
    [
        waiting(type=keys.MAPPED_CONDITION),
        waiting(type=keys.ACCEPTED_CONDITION),
        {**new_pod(), "status": {"phase": "Succeeded", "conditions": []}},
        changed(new_pod(mapped=False), deletionTimestamp="2026-03-02T12:00:00Z"),
        changed(new_pod(mapped=False), namespace="kube-system"),
        new_pod(mapped=False, nodeName="vnode-e1-2-n1"),
    ],
    ids=["waits", "refused", "ended", "going", "system", "another-bindings"],
)
def test_pod_that_need_not_run_needs_no_twin(pod: Object) -> None:
    snapshot = replace(
        with_pods(SNAPSHOT, pod),
        physical_objects=NO_PHYSICAL_OBJECTS,
        virtual_objects={each: {} for each in SNAPSHOT.virtual_objects},
    )
    assert findings(snapshot) == []


def test_twin_of_earlier_pod_is_found() -> None:
    again = changed(WEB, uid="another")
    found = [each for each in findings(with_pods(SNAPSHOT, again)) if each.resource is PODS]
    assert found[0].message.endswith("was created for another pod")
    assert found[0].requeue == Requeue("pods", "shop/web")


def test_replaced_twin_is_found() -> None:
    assert (
        "is not the one that it had" in single_finding(with_physical(SNAPSHOT, PODS, changed(TWIN, uid="new"))).message
    )


def test_deleting_twin_is_no_fault() -> None:
    going = changed(TWIN, uid="new", deletionTimestamp="2026-03-02T12:00:00Z")
    assert findings(with_physical(SNAPSHOT, PODS, going)) == []


@pytest.mark.parametrize("key", [keys.VIRTUAL_POD_NAME, keys.VIRTUAL_POD_NAMESPACE, keys.VIRTUAL_NODE_NAME])
def test_twin_with_changed_identity_is_restored(key: str) -> None:
    for value in (None, "somebody-elses"):
        finding = single_finding(with_physical(SNAPSHOT, PODS, changed(TWIN, annotations={key: value})))
        assert (finding.invariant, finding.side, finding.requeue) == (Invariant.TWINS, ClusterSide.PHYSICAL, None)
        assert finding.obj is not None
        assert finding.patch == {"metadata": {"annotations": {key: annotations_of(TWIN)[key]}}}


def test_owners_additions_to_twin_are_no_fault() -> None:
    added = changed(TWIN, labels={"owner": "x"}, annotations={"cni/ip": "1"})
    assert findings(with_physical(SNAPSHOT, PODS, added)) == []


# -- orphans


@pytest.mark.parametrize(
    ("resource", "controller", "key"),
    [
        (PODS, "pods", "shop/web"),
        (CONFIGMAPS, "unused-copies", "shop"),
        (PERSISTENT_VOLUME_CLAIMS, "volumes", "shop/data"),
        (PERSISTENT_VOLUMES, "volumes", "shop/data"),
    ],
)
def test_leftovers_of_deleted_pod_are_requeued(resource: Resource, controller: str, key: str) -> None:
    (finding,) = (each for each in findings(with_pods(SNAPSHOT)) if each.resource is resource)
    assert (finding.invariant, finding.side) == (Invariant.ORPHANS, ClusterSide.PHYSICAL)
    assert finding.requeue == Requeue(controller, key)
    assert finding.obj == SNAPSHOT.physical_objects[resource][0]


def test_secrets_of_deleted_pod_are_distinguished() -> None:
    asks = [each.requeue for each in findings(with_pods(SNAPSHOT)) if each.resource is SECRETS]
    assert asks == [Requeue("unused-copies", "shop"), Requeue("tokens", "shop/web")]


def test_twins_of_deleted_service_are_orphans() -> None:
    snapshot = replace(SNAPSHOT, virtual_objects={**SNAPSHOT.virtual_objects, SERVICES: {}})
    found = [(each.invariant, each.resource, each.requeue) for each in findings(snapshot)]
    ask = Requeue("services", "shop/front")
    assert found == [(Invariant.ORPHANS, SERVICES, ask), (Invariant.ORPHANS, ENDPOINT_SLICES, ask)]


@pytest.mark.parametrize("resource", [PODS, CONFIGMAPS, SECRETS, PERSISTENT_VOLUME_CLAIMS])
def test_copy_under_another_name_has_no_controller(resource: Resource) -> None:
    existing = SNAPSHOT.physical_objects[resource]
    double = changed(existing[0], name="double", uid="double")
    finding = single_finding(with_physical(SNAPSHOT, resource, *existing, double))
    assert (finding.invariant, finding.key, finding.requeue) == (Invariant.ORPHANS, f"{MOUNT}/double", None)
    assert finding.obj == double
    assert finding.patch is None


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_duplicate_does_not_replace_a_lost_twin(phase: str) -> None:
    conditions = WEB["status"]["conditions"]
    pod = {**WEB, "status": {"phase": phase, "conditions": conditions}}
    found = findings(with_pods(with_physical(SNAPSHOT, PODS, changed(TWIN, name="double", uid="double")), pod))
    removed = [each.key for each in found if each.resource is PODS and each.requeue is None]
    assert removed == [f"{MOUNT}/double"]


@pytest.mark.parametrize("resource", KINDS)
def test_object_without_source_is_found_unless_name_matches(resource: Resource) -> None:
    existing = SNAPSHOT.physical_objects[resource][0]
    silent = dict.fromkeys(annotations_of(existing))
    foreign = changed(existing, name="foreign", uid="foreign", annotations=silent)
    found = findings(with_physical(SNAPSHOT, resource, *SNAPSHOT.physical_objects[resource], foreign))
    assert [(each.invariant, each.requeue, name_of(each.obj or {})) for each in found] == [
        (Invariant.ORPHANS, None, "foreign")
    ]


@pytest.mark.parametrize("resource", KINDS)
def test_deleting_object_is_no_orphan(resource: Resource) -> None:
    going = changed(SNAPSHOT.physical_objects[resource][0], name="x", deletionTimestamp="2026-03-02T12:00:00Z")
    assert findings(with_physical(SNAPSHOT, resource, *SNAPSHOT.physical_objects[resource], going)) == []


# -- copies


def test_edited_or_outdated_copy_is_found() -> None:
    (copy,) = SNAPSHOT.physical_objects[CONFIGMAPS]
    edited = single_finding(with_physical(SNAPSHOT, CONFIGMAPS, {**copy, "digest": "other"}))
    assert (edited.invariant, edited.requeue) == (Invariant.COPIES, Requeue("copies", "configmaps/shop/settings"))
    unmarked = changed(copy, labels={keys.VIRTUAL_NAMESPACE: "elsewhere"})
    assert single_finding(with_physical(SNAPSHOT, CONFIGMAPS, unmarked)).requeue == edited.requeue


def test_missing_required_copy_is_found() -> None:
    finding = single_finding(with_physical(SNAPSHOT, CONFIGMAPS))
    assert (finding.side, finding.key) == (ClusterSide.VIRTUAL, "shop/settings")
    optional = [{"name": "s", "configMap": {"name": "settings", "optional": True}}, *MOUNTS[1:]]
    assert findings(with_pods(with_physical(SNAPSHOT, CONFIGMAPS), new_pod(volumes=optional))) == []


def test_copy_without_source_is_an_orphan() -> None:
    finding = single_finding(replace(SNAPSHOT, virtual_objects={**SNAPSHOT.virtual_objects, SECRETS: {}}))
    assert (finding.invariant, finding.requeue) == (Invariant.ORPHANS, Requeue("copies", "secrets/shop/password"))


def test_missing_or_outdated_tokens_are_found() -> None:
    copy, tokens = SNAPSHOT.physical_objects[SECRETS]
    missing = single_finding(with_physical(SNAPSHOT, SECRETS, copy))
    assert (missing.key, missing.requeue) == ("shop/web", Requeue("tokens", "shop/web"))
    earlier = changed(tokens, annotations={keys.VIRTUAL_POD_UID: "earlier"})
    assert single_finding(with_physical(SNAPSHOT, SECRETS, copy, earlier)).requeue == missing.requeue


def test_secret_of_a_volume_is_no_orphan() -> None:
    reference = {"name": "password", "namespace": "shop"}
    volume = apply_merge_patch(VOLUME, {"spec": {"csi": {"nodeStageSecretRef": reference}}})
    pod = new_pod(volumes=[each for each in MOUNTS if "secret" not in each])
    snapshot = with_pods(
        with_physical(SNAPSHOT, PERSISTENT_VOLUMES, physical_ref(twin_volume(CLAIM, volume, BINDING), "pv")), pod
    )
    snapshot = replace(snapshot, virtual_objects={**SNAPSHOT.virtual_objects, PERSISTENT_VOLUMES: {"pv1": volume}})
    assert findings(snapshot) == []
    copy, tokens = SNAPSHOT.physical_objects[SECRETS]
    silent = changed(copy, annotations=dict.fromkeys(annotations_of(copy)))
    assert not any(each.obj for each in findings(with_physical(snapshot, SECRETS, silent, tokens)))


def test_changed_or_missing_service_and_volume_are_found() -> None:
    (service,) = SNAPSHOT.physical_objects[SERVICES]
    edited = apply_merge_patch(service, {"spec": {"ports": []}})
    assert single_finding(with_physical(SNAPSHOT, SERVICES, edited)).requeue == Requeue("services", "shop/front")
    missing = single_finding(with_physical(SNAPSHOT, SERVICES))
    assert (missing.invariant, missing.side, missing.key) == (Invariant.COPIES, ClusterSide.VIRTUAL, "shop/front")
    (volume,) = SNAPSHOT.physical_objects[PERSISTENT_VOLUMES]
    edited = apply_merge_patch(volume, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    assert single_finding(with_physical(SNAPSHOT, PERSISTENT_VOLUMES, edited)).requeue == Requeue(
        "volumes", "shop/data"
    )


def test_claim_with_changed_identity_is_restored() -> None:
    (claim,) = SNAPSHOT.physical_objects[PERSISTENT_VOLUME_CLAIMS]
    silent = changed(claim, annotations={keys.VIRTUAL_NAME: None})
    finding = single_finding(with_physical(SNAPSHOT, PERSISTENT_VOLUME_CLAIMS, silent))
    assert finding.patch == {"metadata": {"annotations": {keys.VIRTUAL_NAME: "data"}}}


def test_uncached_claims_are_not_checked() -> None:
    actual = {
        kind: each
        for kind, each in SNAPSHOT.virtual_objects.items()
        if kind not in (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)
    }
    assert findings(replace(SNAPSHOT, virtual_objects=actual)) == []


# -- node leases


def test_virtual_node_without_lease_is_found() -> None:
    finding = single_finding(replace(SNAPSHOT, leases={}))
    assert (finding.invariant, finding.key, finding.requeue) == (
        Invariant.NODE_LEASES,
        NODE,
        Requeue("node-leases", NODE),
    )


LONG_AGO = NOW - timedelta(minutes=6)


def test_abandoned_lease_without_node_is_found() -> None:
    def with_lease(lease: Object, **more: Any) -> list[Finding]:
        return findings(replace(SNAPSHOT, leases={**SNAPSHOT.leases, name_of(lease): lease}, **more))

    (finding,) = with_lease(new_lease("vnode-e1-gone", LONG_AGO))
    assert (finding.side, finding.key, finding.requeue) == (ClusterSide.VIRTUAL, "kube-node-lease/vnode-e1-gone", None)
    assert with_lease(new_lease("vnode-e1-gone")) == []
    assert with_lease(new_lease("vnode-e1-2-n1", LONG_AGO), other_nodes={"vnode-e1-2-n1"}) == []
    assert with_lease(new_lease("vnode-west-n1", LONG_AGO)) == []
    unowned = changed(new_lease("vnode-e1-gone", LONG_AGO), ownerReferences=[])
    assert with_lease(unowned) == []


# -- properties


@given(st.data())
def test_needed_objects_are_never_removed(data: st.DataObject) -> None:
    """An object with the name of a twin or copy stays, whatever labels and annotations are changed."""
    texts = st.sampled_from([None, "", "web", "shop", "settings", "password", "data", "front", uid_of(WEB), "x"])
    marks = [each for each in vars(keys).values() if isinstance(each, str) and each.startswith(keys.PREFIX + "virtual")]

    def tampered(obj: Object) -> Object:
        words = data.draw(st.dictionaries(st.sampled_from(marks), texts, max_size=3))
        remaining = {keys.VIRTUAL_CLUSTER: obj["metadata"]["labels"][keys.VIRTUAL_CLUSTER]}
        return changed(obj, annotations=words, labels={**words, **remaining})

    tampered_objects = {kind: [tampered(obj) for obj in SNAPSHOT.physical_objects[kind]] for kind in KINDS}
    found = findings(replace(SNAPSHOT, physical_objects={**SNAPSHOT.physical_objects, **tampered_objects}))
    removed = [each for each in found if each.requeue is None and each.patch is None]
    assert removed == []


# -- the check of a running syncer

BETWEEN = SyncerConfig().check_seconds
MINUTE = 60.0


def counted(invariant: str, metric: str = "tapestry_findings") -> float:
    return REGISTRY.get_sample_value(metric, {"binding": "east", "invariant": invariant}) or 0.0


def run_in_world(story: Callable[[World], Any]) -> None:
    async def main() -> None:
        await story(await new_world())

    run(main())


async def duplicate_twin(world: World, name: str, number: int = 0) -> Object:
    """Create a duplicate of a pod's twin: our labels, under a name that we never gave."""
    existing = await world.twin(name)
    metadata = {field: existing["metadata"][field] for field in ("labels", "annotations")}
    place = {**metadata, "name": f"double-{number}", "namespace": MOUNT}
    return await world.physical.create(
        PODS, {"metadata": place, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )


def test_safety_rule_2_orphan_is_deleted_after_two_checks() -> None:
    async def story(world: World) -> None:
        mended = counted("Orphans", "tapestry_mended_total")
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            await duplicate_twin(world, "work")
            await asyncio.sleep(1.5 * BETWEEN)
            assert len(await world.twins()) == 2
            await asyncio.sleep(BETWEEN)
            assert counted("Orphans") == 1
            assert [name_of(twin) for twin in await world.twins()] == [name_of(await world.twin())]
            await asyncio.sleep(BETWEEN)
            assert counted("Orphans") == 0
            assert counted("Orphans", "tapestry_mended_total") == mended + 1

    run_in_world(story)


def test_safety_rule_1_foreign_objects_are_never_changed() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            double = await duplicate_twin(world, "work")
            foreign = {keys.CLUSTER_BINDING_UID: "another-binding"}
            await world.physical.patch(PODS, double, {"metadata": {"labels": foreign}})
            await asyncio.sleep(3 * BETWEEN)
            assert len(await world.twins()) == 2

    run_in_world(story)


def test_safety_rule_2_each_check_removes_few_objects() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            for number in range(MAX_REPAIRS + 5):
                await duplicate_twin(world, "work", number)
            await asyncio.sleep(2.5 * BETWEEN)
            assert len(await world.twins()) == 1 + 5
            await asyncio.sleep(BETWEEN)
            assert len(await world.twins()) == 1

    run_in_world(story)


def test_restored_twin_reports_its_status_again() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            await world.set_twin({"metadata": {"annotations": {keys.VIRTUAL_POD_NAME: None}}})
            await world.start()
            await asyncio.sleep(1.5 * BETWEEN)
            assert (await world.phase_and_reason())[0] != "Running"
            await world.wait_for_pod(phase("Running"), timeout=BETWEEN)
            assert annotations_of(await world.twin())[keys.VIRTUAL_POD_NAME] == "work"

    run_in_world(story)


def test_nothing_is_checked_while_cluster_is_unreachable() -> None:
    async def story(world: World) -> None:
        async with world.syncer(silence_seconds=20.0):
            await world.add_pod("work")
            await world.wait_for_twin()
            await duplicate_twin(world, "work")
            await asyncio.sleep(1.5 * BETWEEN)
            world.down.cut()
            await asyncio.sleep(3 * BETWEEN)
            assert len(await world.twins()) == 2

    run_in_world(story)


def test_requeued_controllers_exist() -> None:
    faults = [
        with_pods(SNAPSHOT),
        replace(SNAPSHOT, leases={}),
        replace(SNAPSHOT, virtual_objects={**SNAPSHOT.virtual_objects, SERVICES: {}}),
        with_physical(SNAPSHOT, CONFIGMAPS),
    ]
    requested = {each.requeue.controller for snapshot in faults for each in findings(snapshot) if each.requeue}
    assert len(requested) == 7

    async def story(world: World) -> None:
        async with world.syncer() as parts:
            assert requested <= {controller.name for controller in parts.manager.controllers}

    run_in_world(story)


def test_checks_can_be_disabled() -> None:
    async def story(world: World) -> None:
        async with world.syncer(check_seconds=0):
            await world.add_pod("work")
            await world.wait_for_twin()
            await duplicate_twin(world, "work")
            await asyncio.sleep(10 * BETWEEN)
            assert len(await world.twins()) == 2

    run_in_world(story)


def test_consistent_check_lists_only_node_leases() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            for number in range(5):
                await world.add_pod(f"work-{number}")
            await asyncio.sleep(MINUTE)
            world.up.requests.clear()
            world.down.requests.clear()
            await asyncio.sleep(BETWEEN)
            lists = [str(each) for each in (*world.up.requests, *world.down.requests) if each.method == "GET"]
            assert {each.split("?")[0] for each in lists} <= {
                "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
                "GET /version",
            }
            assert [counted(each) for each in Invariant] == [0, 0, 0, 0]

    run_in_world(story)
