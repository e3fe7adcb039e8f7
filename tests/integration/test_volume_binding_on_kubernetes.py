"""Volume binding: our binder and kube-controller-manager reach the same state from the same objects."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES

from .planes import Plane

SECONDS = 30.0
RESERVED = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}


@dataclass(frozen=True)
class Situation:
    """Volumes, then claims, then deletions; and the phases and bindings to which they lead."""

    volumes: Sequence[Object]
    claims: Sequence[Object]
    claim_states: dict[str, str]
    """Phase and volume of each claim, as `Bound v`."""
    volume_states: dict[str, str] = field(default_factory=dict)
    """Phase of each volume."""
    reason: str = ""
    """Reason of an event about the first claim."""
    deleted_claims: Sequence[str] = ()
    storage_class: Object | None = None


def volume(name: str, size: str = "1Gi", labels: Object | None = None, **spec: Any) -> Object:
    source = {} if "csi" in spec else {"hostPath": {"path": "/nowhere"}}
    whole = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], **source, **spec}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": whole}


def claim(name: str = "c", size: str = "1Gi", **spec: Any) -> Object:
    requests = {"resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], **requests, **spec}}


def mode(binding: str, provisioner: str = "maker.example.com") -> Object:
    return {"provisioner": provisioner, "volumeBindingMode": binding}


CSI = {"csi": {"driver": "maker.example.com", "volumeHandle": "h"}}
SITUATIONS = {
    "smallest": Situation(
        [volume("a", "1Gi"), volume("b", "9Gi"), volume("d", "3Gi")],
        [claim(size="2Gi")],
        {"c": "Bound d"},
        {"a": "Available", "b": "Available", "d": "Bound"},
    ),
    "access-modes": Situation([volume("a", accessModes=["ReadOnlyMany"])], [claim()], {"c": "Pending"}),
    "volume-mode": Situation([volume("a", volumeMode="Block")], [claim()], {"c": "Pending"}),
    "selector": Situation(
        [volume("a"), volume("b", "9Gi", {"tier": "gold"})],
        [claim(selector={"matchLabels": {"tier": "gold"}})],
        {"c": "Bound b"},
    ),
    "named": Situation([volume("a"), volume("b", "9Gi")], [claim(volumeName="b")], {"c": "Bound b"}),
    "named-but-small": Situation(
        [volume("a")], [claim(size="2Gi", volumeName="a")], {"c": "Pending a"}, {"a": "Available"}, "VolumeMismatch"
    ),
    "named-but-missing": Situation([], [claim(volumeName="a")], {"c": "Pending a"}),
    "reserved": Situation(
        [volume("a"), volume("b", "9Gi", claimRef={**RESERVED, "name": "c"})],
        [claim(), claim("other")],
        {"c": "Bound b", "other": "Bound a"},
    ),
    "reserved-for-other": Situation(
        [volume("a", claimRef={**RESERVED, "name": "other"})], [claim()], {"c": "Pending"}, {"a": "Available"}
    ),
    "named-by-two": Situation(
        [volume("a", claimRef={**RESERVED, "name": "d"})],
        [claim(volumeName="a"), claim("d", volumeName="a")],
        {"c": "Pending a", "d": "Bound a"},
        {"a": "Bound"},
        "FailedBinding",
    ),
    "first-consumer": Situation(
        [volume("a")],
        [claim()],
        {"c": "Pending"},
        {"a": "Available"},
        "WaitForFirstConsumer",
        storage_class=mode("WaitForFirstConsumer"),
    ),
    "provisioned": Situation(
        [], [claim()], {"c": "Pending"}, {}, "ExternalProvisioning", storage_class=mode("Immediate")
    ),
    "no-provisioner": Situation(
        [],
        [claim()],
        {"c": "Pending"},
        {},
        "ProvisioningFailed",
        storage_class=mode("Immediate", "kubernetes.io/no-provisioner"),
    ),
    "retain": Situation([volume("a")], [claim()], {}, {"a": "Released"}, deleted_claims=["c"]),
    "delete": Situation(
        [volume("a", persistentVolumeReclaimPolicy="Delete", **CSI)],
        [claim()],
        {},
        {"a": "Released"},
        deleted_claims=["c"],
    ),
}


@pytest.fixture
async def client(attended_plane: Plane) -> AsyncIterator[Client]:
    async with Client(HttpTransport(load_access([attended_plane.kubeconfig], environ={}))) as client:
        yield client


async def test_claims_and_volumes_reach_the_same_phases(client: Client) -> None:
    for name, situation in SITUATIONS.items():
        if situation.storage_class is not None:
            await client.create(STORAGE_CLASSES, {"metadata": {"name": f"binding-{name}"}, **situation.storage_class})
    for with_volumes in (True, False):  # the first ones take until the storage classes are in all caches
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for name, situation in SITUATIONS.items():
                if bool(situation.volumes) == with_volumes:
                    group.create_task(check(client, f"binding-{name}", situation), name=name)


async def check(client: Client, prefix: str, situation: Situation) -> None:
    """Create the objects with names and a storage class of their own, and wait for the expected state."""
    in_class = {"storageClassName": prefix}
    for each in situation.volumes:
        spec = {**each["spec"], **in_class}
        if reference := spec.get("claimRef"):
            spec["claimRef"] = {**reference, "namespace": "default", "name": f"{prefix}-{reference['name']}"}
        made = {"metadata": {**each["metadata"], "name": f"{prefix}-{name_of(each)}"}, "spec": spec}
        await client.create(PERSISTENT_VOLUMES, made)
    for each in situation.volumes:
        await wait_for_state(client, object_named(f"{prefix}-{name_of(each)}"), "Available")
    for each in situation.claims:
        spec = {**each["spec"], **in_class}
        if wanted := spec.get("volumeName"):
            spec["volumeName"] = f"{prefix}-{wanted}"
        metadata = {"name": f"{prefix}-{name_of(each)}", "namespace": "default"}
        await client.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": spec})
    for name in situation.deleted_claims:
        bound = await wait_for_state(client, object_named(f"{prefix}-{name}", "default"), "Bound")
        await client.delete(PERSISTENT_VOLUME_CLAIMS, object_named(name_of(bound), "default"))
    if situation.reason:
        await wait_for_event(client, f"{prefix}-{name_of(situation.claims[0])}", situation.reason)
    for name, state in situation.claim_states.items():
        phase, _, bound_to = state.partition(" ")
        found = await wait_for_state(client, object_named(f"{prefix}-{name}", "default"), phase)
        assert found["spec"].get("volumeName") == (f"{prefix}-{bound_to}" if bound_to else None)
    for name, phase in situation.volume_states.items():
        await wait_for_state(client, object_named(f"{prefix}-{name}"), phase)


async def wait_for_state(client: Client, obj: Object, phase: str) -> Object:
    namespace = obj["metadata"].get("namespace")
    found = await wait_for(
        client,
        PERSISTENT_VOLUME_CLAIMS if namespace else PERSISTENT_VOLUMES,
        name_of(obj),
        namespace,
        until=lambda each: value_at(each, "status", "phase") == phase,
        timeout=SECONDS,
    )
    assert found is not None
    return found


async def wait_for_event(client: Client, claim: str, reason: str) -> None:
    fields = f"involvedObject.name={claim},reason={reason}"
    async with aclosing(Watch(client, EVENTS, "default", "", fields).events()) as events:
        async for event in events:
            match event:
                case ListPage([_, *_]) | Changes([_, *_]):
                    return
