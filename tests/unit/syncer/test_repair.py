"""What a look at both clusters finds: nothing where everything is as we made it, and each fault by its name."""

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
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.consistency_check import MAX_REPAIRS
from tapestry.syncer.repair import ClusterSide, Finding, Invariant, Requeue, Snapshot, findings
from tapestry.syncer.topdown.services import desired_objects
from tapestry.syncer.translate.copies import desired_copy, digest_view, tokens_secret
from tapestry.syncer.translate.pod_status import reduced_status
from tapestry.syncer.translate.pods import desired_twin
from tapestry.syncer.translate.volumes import twin_claim, twin_volume

from .world import MOUNT, World, a_world, phase

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NODE = "vnode-e1-n1"
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


# -- a small world as it should be


def a_binding(**spec: Any) -> Binding:
    reference = {"name": "east", "namespace": keys.SYSTEM_NAMESPACE}
    allowed = {"drivers": ["nfs.example"]}
    given = {"clusterID": "e1", "secretRef": reference, "mountNamespace": MOUNT, "serviceNamespaces": ["shop"]}
    obj = {"metadata": {"name": "east", "uid": "uid-east"}, "spec": {**given, "allowedVolumes": allowed, **spec}}
    return binding_of(with_type_meta(CLUSTER_BINDINGS, obj), "virtual")


BINDING = a_binding()


def an_object(resource: Resource, name: str, namespace: str = "shop", **content: Any) -> Object:
    metadata: Object = {"name": name, "uid": f"{resource.plural}-{name}", "resourceVersion": "1"}
    if resource.namespaced:
        metadata["namespace"] = namespace
    return with_type_meta(resource, {"metadata": metadata, **content})


def a_pod(name: str = "web", *, mapped: bool = True, **spec: Any) -> Object:
    said = {"type": keys.MAPPED_CONDITION, "status": "True", "message": f"twin-of-{name}", "reason": "Mapped"}
    status = {"phase": "Running", "conditions": [said] if mapped else []}
    container = {"name": "c", "image": "i"}
    pod = an_object(PODS, name, spec={"nodeName": NODE, "containers": [container], **spec})
    return {**pod, "status": reduced_status(status)}


def below(obj: Object, uid: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": "1"}}


def a_twin(pod: Object) -> Object:
    return below(desired_twin(pod, BINDING, "n1"), f"twin-of-{name_of(pod)}")


CONFIG = an_object(CONFIGMAPS, "settings", data={"k": "v"})
SECRET = an_object(SECRETS, "password", data={"p": "eA=="})
MOUNTS = [
    {"name": "s", "configMap": {"name": "settings"}},
    {"name": "p", "secret": {"secretName": "password"}},
    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
    TOKEN,
]
WEB = a_pod(volumes=MOUNTS)
SERVICE = an_object(SERVICES, "front", spec={"ports": [{"port": 80}]})
SLICE = {
    **an_object(ENDPOINT_SLICES, "front-1", addressType="IPv4", endpoints=[{"addresses": ["10.0.0.7"]}], ports=[]),
}
SLICE["metadata"]["labels"] = {"kubernetes.io/service-name": "front"}
CLAIM = an_object(
    PERSISTENT_VOLUME_CLAIMS,
    "data",
    spec={"volumeName": "pv1", "accessModes": ["ReadWriteOnce"]},
    status={"phase": "Bound"},
)
VOLUME = an_object(
    PERSISTENT_VOLUMES,
    "pv1",
    spec={
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"uid": uid_of(CLAIM)},
        "csi": {"driver": "nfs.example", "volumeHandle": "h"},
    },
)


def a_lease(name: str = NODE, renewed: datetime = NOW) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"nodes-{name}"}
    lease = an_object(LEASES, name, "kube-node-lease", spec={"renewTime": micro_timestamp(renewed)})
    return {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}


def a_picture() -> Snapshot:
    """A pod with everything that a pod can have below, and a Service."""
    stands = desired_objects(SERVICE, [SLICE], BINDING)
    served = {
        resource: [below(obj, name) for (each, name), obj in stands.items() if each is resource]
        for resource in (SERVICES, ENDPOINT_SLICES)
    }
    tokens = tokens_secret(WEB, BINDING, {"t.0": "secret"}, NOW + timedelta(hours=1))
    return Snapshot(
        binding=BINDING,
        now=NOW,
        nodes={NODE: an_object(NODES, NODE)},
        other_nodes=set(),
        pods={key_of(WEB): WEB},
        leases={NODE: a_lease()},
        virtual_objects={
            CONFIGMAPS: {key_of(CONFIG): digest_view(CONFIG)},
            SECRETS: {key_of(SECRET): digest_view(SECRET)},
            SERVICES: {key_of(SERVICE): SERVICE},
            ENDPOINT_SLICES: {key_of(SLICE): SLICE},
            PERSISTENT_VOLUME_CLAIMS: {key_of(CLAIM): CLAIM},
            PERSISTENT_VOLUMES: {key_of(VOLUME): VOLUME},
        },
        physical_objects={
            PODS: [a_twin(WEB)],
            CONFIGMAPS: [digest_view(below(desired_copy(CONFIG, BINDING), "c"))],
            SECRETS: [digest_view(below(desired_copy(SECRET, BINDING), "s")), digest_view(below(tokens, "t"))],
            PERSISTENT_VOLUME_CLAIMS: [below(twin_claim(CLAIM, VOLUME, BINDING), "pvc")],
            PERSISTENT_VOLUMES: [below(twin_volume(CLAIM, VOLUME, BINDING), "pv")],
            **served,
        },
    )


def with_below(picture: Snapshot, resource: Resource, *objects: Object) -> Snapshot:
    return replace(picture, below={**picture.physical_objects, resource: list(objects)})


def with_pods(picture: Snapshot, *pods: Object) -> Snapshot:
    return replace(picture, pods={key_of(pod): pod for pod in pods})


def changed(obj: Object, **metadata: Any) -> Object:
    """The object with other labels, annotations or names."""
    return {**obj, "metadata": apply_merge_patch(obj["metadata"], metadata)}


def alone(picture: Snapshot) -> Finding:
    (finding,) = findings(picture)
    return finding


PICTURE = a_picture()
TWIN = PICTURE.physical_objects[PODS][0]
KINDS = list(PICTURE.physical_objects)


def test_where_everything_is_as_we_made_it_nothing_is_found() -> None:
    assert findings(PICTURE) == []


# -- twins


def test_a_pod_without_a_twin_is_found_whether_it_never_had_one_or_lost_it() -> None:
    lost = alone(with_below(PICTURE, PODS))
    assert (lost.invariant, lost.side, lost.key) == (Invariant.TWINS, ClusterSide.VIRTUAL, "shop/web")
    assert (lost.message, lost.requeue) == ("its twin is gone", Requeue("pods", "shop/web"))
    fresh = with_pods(with_below(replace(PICTURE, below=NOTHING_BELOW), PODS), a_pod(mapped=False))
    assert [each.message for each in findings(fresh) if each.invariant is Invariant.TWINS] == ["it has no twin"]


NOTHING_BELOW: dict[Resource, list[Object]] = {resource: [] for resource in KINDS}


def waiting(**condition: str) -> Object:
    pod = a_pod(mapped=False)
    return {**pod, "status": {**pod["status"], "conditions": [{"status": "False", "reason": "R", **condition}]}}


@pytest.mark.parametrize(
    "pod",
    [
        waiting(type=keys.MAPPED_CONDITION),
        waiting(type=keys.ACCEPTED_CONDITION),
        {**a_pod(), "status": reduced_status({"phase": "Succeeded"})},
        changed(a_pod(mapped=False), deletionTimestamp="2026-03-02T12:00:00Z"),
        changed(a_pod(mapped=False), namespace="kube-system"),
        a_pod(mapped=False, nodeName="vnode-e1-2-n1"),
    ],
    ids=["waits", "refused", "ended", "going", "system", "another-bindings"],
)
def test_a_pod_that_need_not_run_below_needs_no_twin(pod: Object) -> None:
    picture = replace(
        with_pods(PICTURE, pod), below=NOTHING_BELOW, above={each: {} for each in PICTURE.virtual_objects}
    )
    assert findings(picture) == []


def test_a_twin_of_an_earlier_pod_of_the_name_is_found() -> None:
    again = changed(WEB, uid="another")
    found = [each for each in findings(with_pods(PICTURE, again)) if each.resource is PODS]
    assert found[0].message.endswith("was made for another pod")
    assert found[0].requeue == Requeue("pods", "shop/web")


def test_a_twin_that_took_the_place_of_the_one_there_was_is_found() -> None:
    assert "another one than it had" in alone(with_below(PICTURE, PODS, changed(TWIN, uid="new"))).message


def test_a_twin_on_its_way_out_is_no_fault() -> None:
    going = changed(TWIN, uid="new", deletionTimestamp="2026-03-02T12:00:00Z")
    assert findings(with_below(PICTURE, PODS, going)) == []


@pytest.mark.parametrize("key", [keys.VIRTUAL_POD_NAME, keys.VIRTUAL_POD_NAMESPACE, keys.VIRTUAL_NODE_NAME])
def test_a_twin_whose_marks_were_changed_is_known_by_its_name_and_gets_them_back(key: str) -> None:
    for value in (None, "somebody-elses"):
        finding = alone(with_below(PICTURE, PODS, changed(TWIN, annotations={key: value})))
        assert (finding.invariant, finding.side, finding.requeue) == (Invariant.TWINS, ClusterSide.PHYSICAL, None)
        assert finding.obj is not None
        assert finding.patch == {"metadata": {"annotations": {key: annotations_of(TWIN)[key]}}}


def test_what_the_owner_adds_to_a_twin_is_no_fault() -> None:
    added = changed(TWIN, labels={"owner": "x"}, annotations={"cni/ip": "1"})
    assert findings(with_below(PICTURE, PODS, added)) == []


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
def test_what_is_left_of_a_pod_that_is_gone_is_put_before_its_controller(
    resource: Resource, controller: str, key: str
) -> None:
    (finding,) = (each for each in findings(with_pods(PICTURE)) if each.resource is resource)
    assert (finding.invariant, finding.side) == (Invariant.ORPHANS, ClusterSide.PHYSICAL)
    assert finding.requeue == Requeue(controller, key)
    assert finding.obj == PICTURE.physical_objects[resource][0]


def test_secrets_of_a_pod_that_is_gone_are_told_apart() -> None:
    asks = [each.requeue for each in findings(with_pods(PICTURE)) if each.resource is SECRETS]
    assert asks == [Requeue("unused-copies", "shop"), Requeue("tokens", "shop/web")]


def test_what_stands_for_a_service_that_is_gone_is_an_orphan() -> None:
    picture = replace(PICTURE, above={**PICTURE.virtual_objects, SERVICES: {}})
    found = [(each.invariant, each.resource, each.requeue) for each in findings(picture)]
    ask = Requeue("services", "shop/front")
    assert found == [(Invariant.ORPHANS, SERVICES, ask), (Invariant.ORPHANS, ENDPOINT_SLICES, ask)]


@pytest.mark.parametrize("resource", [PODS, CONFIGMAPS, SECRETS, PERSISTENT_VOLUME_CLAIMS])
def test_a_copy_of_something_of_ours_under_another_name_is_nobodys_business(resource: Resource) -> None:
    there = PICTURE.physical_objects[resource]
    double = changed(there[0], name="double", uid="double")
    finding = alone(with_below(PICTURE, resource, *there, double))
    assert (finding.invariant, finding.key, finding.requeue) == (Invariant.ORPHANS, f"{MOUNT}/double", None)
    assert finding.obj == double
    assert finding.patch is None


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_double_of_a_twin_that_is_gone_does_not_pass_for_it(phase: str) -> None:
    conditions = WEB["status"]["conditions"]
    pod = {**WEB, "status": reduced_status({"phase": phase, "conditions": conditions})}
    found = findings(with_pods(with_below(PICTURE, PODS, changed(TWIN, name="double", uid="double")), pod))
    removed = [each.key for each in found if each.resource is PODS and each.requeue is None]
    assert removed == [f"{MOUNT}/double"]


@pytest.mark.parametrize("resource", KINDS)
def test_what_says_nothing_of_what_it_stands_for_is_found_unless_its_name_tells(resource: Resource) -> None:
    there = PICTURE.physical_objects[resource][0]
    silent = dict.fromkeys(annotations_of(there))
    stranger = changed(there, name="stranger", uid="stranger", annotations=silent)
    found = findings(with_below(PICTURE, resource, *PICTURE.physical_objects[resource], stranger))
    assert [(each.invariant, each.requeue, name_of(each.obj or {})) for each in found] == [
        (Invariant.ORPHANS, None, "stranger")
    ]


@pytest.mark.parametrize("resource", KINDS)
def test_what_is_going_already_is_no_orphan(resource: Resource) -> None:
    going = changed(PICTURE.physical_objects[resource][0], name="x", deletionTimestamp="2026-03-02T12:00:00Z")
    assert findings(with_below(PICTURE, resource, *PICTURE.physical_objects[resource], going)) == []


# -- copies


def test_a_copy_that_was_edited_or_never_followed_its_source_is_found() -> None:
    (copy,) = PICTURE.physical_objects[CONFIGMAPS]
    edited = alone(with_below(PICTURE, CONFIGMAPS, {**copy, "digest": "other"}))
    assert (edited.invariant, edited.requeue) == (Invariant.COPIES, Requeue("copies", "configmaps/shop/settings"))
    unmarked = changed(copy, labels={keys.VIRTUAL_NAMESPACE: "elsewhere"})
    assert alone(with_below(PICTURE, CONFIGMAPS, unmarked)).requeue == edited.requeue


def test_a_copy_that_a_running_pod_needs_and_has_not_is_found_and_an_optional_one_is_not() -> None:
    finding = alone(with_below(PICTURE, CONFIGMAPS))
    assert (finding.side, finding.key) == (ClusterSide.VIRTUAL, "shop/settings")
    optional = [{"name": "s", "configMap": {"name": "settings", "optional": True}}, *MOUNTS[1:]]
    assert findings(with_pods(with_below(PICTURE, CONFIGMAPS), a_pod(volumes=optional))) == []


def test_a_copy_without_a_source_is_an_orphan_even_where_pods_need_it() -> None:
    finding = alone(replace(PICTURE, above={**PICTURE.virtual_objects, SECRETS: {}}))
    assert (finding.invariant, finding.requeue) == (Invariant.ORPHANS, Requeue("copies", "secrets/shop/password"))


def test_tokens_that_are_missing_or_of_an_earlier_pod_are_found() -> None:
    copy, tokens = PICTURE.physical_objects[SECRETS]
    missing = alone(with_below(PICTURE, SECRETS, copy))
    assert (missing.key, missing.requeue) == ("shop/web", Requeue("tokens", "shop/web"))
    earlier = changed(tokens, annotations={keys.VIRTUAL_POD_UID: "earlier"})
    assert alone(with_below(PICTURE, SECRETS, copy, earlier)).requeue == missing.requeue


def test_a_secret_that_only_a_volume_needs_is_no_orphan() -> None:
    reference = {"name": "password", "namespace": "shop"}
    volume = apply_merge_patch(VOLUME, {"spec": {"csi": {"nodeStageSecretRef": reference}}})
    pod = a_pod(volumes=[each for each in MOUNTS if "secret" not in each])
    picture = with_pods(with_below(PICTURE, PERSISTENT_VOLUMES, below(twin_volume(CLAIM, volume, BINDING), "pv")), pod)
    picture = replace(picture, above={**PICTURE.virtual_objects, PERSISTENT_VOLUMES: {"pv1": volume}})
    assert findings(picture) == []
    copy, tokens = PICTURE.physical_objects[SECRETS]
    silent = changed(copy, annotations=dict.fromkeys(annotations_of(copy)))
    assert not any(each.obj for each in findings(with_below(picture, SECRETS, silent, tokens)))


def test_a_service_or_volume_that_was_changed_or_is_missing_below_is_found() -> None:
    (service,) = PICTURE.physical_objects[SERVICES]
    edited = apply_merge_patch(service, {"spec": {"ports": []}})
    assert alone(with_below(PICTURE, SERVICES, edited)).requeue == Requeue("services", "shop/front")
    missing = alone(with_below(PICTURE, SERVICES))
    assert (missing.invariant, missing.side, missing.key) == (Invariant.COPIES, ClusterSide.VIRTUAL, "shop/front")
    (volume,) = PICTURE.physical_objects[PERSISTENT_VOLUMES]
    edited = apply_merge_patch(volume, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    assert alone(with_below(PICTURE, PERSISTENT_VOLUMES, edited)).requeue == Requeue("volumes", "shop/data")


def test_a_claim_that_lost_its_marks_gets_them_back() -> None:
    (claim,) = PICTURE.physical_objects[PERSISTENT_VOLUME_CLAIMS]
    silent = changed(claim, annotations={keys.VIRTUAL_NAME: None})
    finding = alone(with_below(PICTURE, PERSISTENT_VOLUME_CLAIMS, silent))
    assert finding.patch == {"metadata": {"annotations": {keys.VIRTUAL_NAME: "data"}}}


def test_of_claims_that_a_cache_does_not_have_nothing_is_said() -> None:
    shown = {
        kind: each
        for kind, each in PICTURE.virtual_objects.items()
        if kind not in (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)
    }
    assert findings(replace(PICTURE, above=shown)) == []


# -- node leases


def test_a_virtual_node_without_a_lease_is_found() -> None:
    finding = alone(replace(PICTURE, leases={}))
    assert (finding.invariant, finding.key, finding.requeue) == (
        Invariant.NODE_LEASES,
        NODE,
        Requeue("node-leases", NODE),
    )


LONG_AGO = NOW - timedelta(minutes=6)


def test_a_lease_without_a_node_is_found_once_nobody_renews_it() -> None:
    def with_lease(lease: Object, **more: Any) -> list[Finding]:
        return findings(replace(PICTURE, leases={**PICTURE.leases, name_of(lease): lease}, **more))

    (finding,) = with_lease(a_lease("vnode-e1-gone", LONG_AGO))
    assert (finding.side, finding.key, finding.requeue) == (ClusterSide.VIRTUAL, "kube-node-lease/vnode-e1-gone", None)
    assert with_lease(a_lease("vnode-e1-gone")) == []
    assert with_lease(a_lease("vnode-e1-2-n1", LONG_AGO), other_nodes={"vnode-e1-2-n1"}) == []
    assert with_lease(a_lease("vnode-west-n1", LONG_AGO)) == []
    unowned = changed(a_lease("vnode-e1-gone", LONG_AGO), ownerReferences=[])
    assert with_lease(unowned) == []


# -- whatever happens


@given(st.data())
def test_what_is_removed_is_never_what_something_above_needs(data: st.DataObject) -> None:
    """Whatever annotations and labels somebody below changes, what has the name of a twin or a copy stays."""
    texts = st.sampled_from([None, "", "web", "shop", "settings", "password", "data", "front", uid_of(WEB), "x"])
    marks = [each for each in vars(keys).values() if isinstance(each, str) and each.startswith(keys.PREFIX + "virtual")]

    def spoiled(obj: Object) -> Object:
        words = data.draw(st.dictionaries(st.sampled_from(marks), texts, max_size=3))
        kept = {keys.VIRTUAL_CLUSTER: obj["metadata"]["labels"][keys.VIRTUAL_CLUSTER]}
        return changed(obj, annotations=words, labels={**words, **kept})

    spoiled_below = {kind: [spoiled(obj) for obj in PICTURE.physical_objects[kind]] for kind in KINDS}
    found = findings(replace(PICTURE, below={**PICTURE.physical_objects, **spoiled_below}))
    removed = [each for each in found if each.requeue is None and each.patch is None]
    assert removed == []


# -- the check of a syncer at work

BETWEEN = SyncerConfig().check_seconds
MINUTE = 60.0


def counted(invariant: str, metric: str = "tapestry_findings") -> float:
    return REGISTRY.get_sample_value(metric, {"binding": "east", "invariant": invariant}) or 0.0


def in_a_world(story: Callable[[World], Any]) -> None:
    async def main() -> None:
        await story(await a_world())

    run(main())


async def a_double(world: World, name: str, number: int = 0) -> Object:
    """What somebody makes below of the twin of a pod: our labels, and a name that we never gave."""
    there = await world.twin(name)
    metadata = {field: there["metadata"][field] for field in ("labels", "annotations")}
    place = {**metadata, "name": f"double-{number}", "namespace": MOUNT}
    return await world.physical.create(
        PODS, {"metadata": place, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )


def test_safety_2_a_stray_goes_after_two_checks_and_what_it_was_copied_from_stays() -> None:
    async def story(world: World) -> None:
        mended = counted("Orphans", "tapestry_mended_total")
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            await a_double(world, "work")
            await asyncio.sleep(1.5 * BETWEEN)
            assert len(await world.twins()) == 2
            await asyncio.sleep(BETWEEN)
            assert counted("Orphans") == 1
            assert [name_of(twin) for twin in await world.twins()] == [name_of(await world.twin())]
            await asyncio.sleep(BETWEEN)
            assert counted("Orphans") == 0
            assert counted("Orphans", "tapestry_mended_total") == mended + 1

    in_a_world(story)


def test_safety_1_what_is_foreign_is_never_touched_whatever_it_says() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            double = await a_double(world, "work")
            foreign = {keys.CLUSTER_BINDING_UID: "another-binding"}
            await world.physical.patch(PODS, double, {"metadata": {"labels": foreign}})
            await asyncio.sleep(3 * BETWEEN)
            assert len(await world.twins()) == 2

    in_a_world(story)


def test_safety_2_no_check_removes_more_than_a_few() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            for number in range(MAX_REPAIRS + 5):
                await a_double(world, "work", number)
            await asyncio.sleep(2.5 * BETWEEN)
            assert len(await world.twins()) == 1 + 5
            await asyncio.sleep(BETWEEN)
            assert len(await world.twins()) == 1

    in_a_world(story)


def test_a_twin_that_lost_its_marks_gets_them_back_and_tells_its_status_again() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            await world.add_pod("work")
            await world.wait_for_twin()
            await world.set_twin({"metadata": {"annotations": {keys.VIRTUAL_POD_NAME: None}}})
            await world.start()
            await asyncio.sleep(1.5 * BETWEEN)
            assert (await world.ended())[0] != "Running"
            await world.wait_for_pod(phase("Running"), timeout=BETWEEN)
            assert annotations_of(await world.twin())[keys.VIRTUAL_POD_NAME] == "work"

    in_a_world(story)


def test_while_the_physical_cluster_does_not_answer_nothing_is_checked() -> None:
    async def story(world: World) -> None:
        async with world.syncer(silence_seconds=20.0):
            await world.add_pod("work")
            await world.wait_for_twin()
            await a_double(world, "work")
            await asyncio.sleep(1.5 * BETWEEN)
            world.down.cut()
            await asyncio.sleep(3 * BETWEEN)
            assert len(await world.twins()) == 2

    in_a_world(story)


def test_whoever_is_asked_to_mend_something_is_there() -> None:
    faults = [
        with_pods(PICTURE),
        replace(PICTURE, leases={}),
        replace(PICTURE, above={**PICTURE.virtual_objects, SERVICES: {}}),
        with_below(PICTURE, CONFIGMAPS),
    ]
    asked = {each.requeue.controller for picture in faults for each in findings(picture) if each.requeue}
    assert len(asked) == 7

    async def story(world: World) -> None:
        async with world.syncer() as site:
            assert asked <= {controller.name for controller in site.manager.controllers}

    in_a_world(story)


def test_checks_can_be_switched_off() -> None:
    async def story(world: World) -> None:
        async with world.syncer(check_seconds=0):
            await world.add_pod("work")
            await world.wait_for_twin()
            await a_double(world, "work")
            await asyncio.sleep(10 * BETWEEN)
            assert len(await world.twins()) == 2

    in_a_world(story)


def test_where_all_is_well_a_check_reads_no_list_but_that_of_node_leases() -> None:
    async def story(world: World) -> None:
        async with world.syncer():
            for number in range(5):
                await world.add_pod(f"work-{number}")
            await asyncio.sleep(MINUTE)
            world.up.asked.clear()
            world.down.asked.clear()
            await asyncio.sleep(BETWEEN)
            lists = [str(each) for each in (*world.up.asked, *world.down.asked) if each.method == "GET"]
            assert {each.split("?")[0] for each in lists} <= {
                "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
                "GET /version",
            }
            assert [counted(each) for each in Invariant] == [0, 0, 0, 0]

    in_a_world(story)
