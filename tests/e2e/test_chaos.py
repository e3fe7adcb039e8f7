"""Random faults on two physical clusters while pods are created and deleted.

A fault kills or stops a process, blocks or resets connections, returns errors, or ends watches; see `chaos.proxies` and
`chaos.faults`. After the last fault, each pod has the only twin that it ever had and the same status as the twin.
Nothing else of ours is left in the physical clusters, and no foreign object has changed.

A seed determines the faults. It is reported with the result; set TAPESTRY_CHAOS_SEED to repeat a run.
"""

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from tapestry.apis import keys
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, key_of, name_of, namespace_of, object_named, uid_of, version_of
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, NODES, PODS, SECRETS, SERVICES
from tapestry.local.kubernetes import ControlPlane

from ..integration.bound_clusters import TAPESTRY, BoundClusters, bound_clusters, install_kinds, new_object, wait_until
from ..integration.pod_batches import wait_until_lent
from ..integration.processes import running
from .chaos.churn import DAY, NIGHT, Churn
from .chaos.faults import FaultInjector, Target
from .chaos.observer import Observer, binding_of_clusters, observing, phase_of
from .chaos.proxies import fault_proxy
from .chaos.replicas import Replica, running_replicas

CLUSTERS = {"east": 2, "west": 1}
"""Number of syncer replicas by physical cluster."""
NODES_EACH, CLOSING = 10, 2
"""Physical nodes of each cluster, and the number of those with a time window."""
WINDOW_SECONDS = 12.0
OWNERS = "owners"
"""A namespace of the physical clusters in which nothing is ours."""
FOREIGN = (PODS, CONFIGMAPS, SECRETS, SERVICES)


@dataclass(frozen=True)
class Scale:
    pods: int
    per_second: float
    faults: int
    interval_seconds: float
    """Seconds between the starts of two faults."""
    heal_seconds: float
    """Seconds within which 99% of the faults must heal."""
    agreement_seconds: float
    """Seconds within which both sides must agree after the last fault."""


QUICK = Scale(pods=60, per_second=4, faults=15, interval_seconds=2.5, heal_seconds=60, agreement_seconds=90)
"""Scale for shared machines: few faults and generous limits."""
FULL = Scale(pods=500, per_second=20, faults=120, interval_seconds=5, heal_seconds=15, agreement_seconds=60)


@pytest.mark.timeout(420)
def test_random_faults_lose_and_leak_nothing(
    kube_assets: Path, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    errors = errors_after_faults(QUICK, kube_assets, tmp_path, record_property)
    assert not errors, "\n".join(errors)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_ten_minutes_of_faults_lose_and_leak_nothing(
    kube_assets: Path, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    errors = errors_after_faults(FULL, kube_assets, tmp_path, record_property)
    assert not errors, "\n".join(errors)


def errors_after_faults(
    scale: Scale, assets: Path, folder: Path, record_property: Callable[[str, str], None]
) -> list[str]:
    """Inject faults, record the figures, and return the errors found."""
    seed = os.environ.get("TAPESTRY_CHAOS_SEED") or secrets.token_hex(4)
    with ExitStack() as stack:
        planes = [ControlPlane(folder / name, assets, fsync=False) for name in ("virtual", *CLUSTERS)]
        for plane in planes:
            stack.enter_context(plane)
        try:
            figures, errors = uvloop.run(inject_faults(scale, planes[0], planes[1:], folder, seed))
        except BaseException as error:
            error.add_note(f"TAPESTRY_CHAOS_SEED={seed}")
            raise
    record_property("figure", f"chaos, seed {seed}: {figures}")
    return [*errors, f"TAPESTRY_CHAOS_SEED={seed}: {figures}"] if errors else []


async def inject_faults(
    scale: Scale, virtual: ControlPlane, physical: Sequence[ControlPlane], folder: Path, seed: str
) -> tuple[str, list[str]]:
    """Inject faults and return the figures and the errors found."""
    for plane in (virtual, *physical):
        await install_kinds(plane)
    async with AsyncExitStack() as stack:
        targets = [
            await open_target(stack, virtual, plane, folder / name, count, seed)
            for plane, (name, count) in zip(physical, CLUSTERS.items(), strict=True)
        ]
        cluster_pairs = [target.clusters for target in targets]
        above = cluster_pairs[0].virtual
        before = [await foreign_versions(clusters) for clusters in cluster_pairs]
        replicas = [replica for target in targets for replica in target.replicas]
        async with running_replicas(replicas), observing(above, cluster_pairs) as observer:
            for clusters in cluster_pairs:
                await wait_until_lent(clusters, NODES_EACH)
            nodes = [
                clusters.above(f"{clusters.name}-{number}")
                for clusters in cluster_pairs
                for number in range(NODES_EACH)
            ]
            churn = Churn(above, random.Random(f"churn {seed}"), cluster_pairs, nodes, scale.pods, scale.per_second)
            injector = FaultInjector(
                targets, observer, random.Random(f"faults {seed}"), scale.interval_seconds, folder / "story.log"
            )
            seconds, disagreements_left = await run_until_agreement(scale, churn, injector)
            leftovers = [line for clusters in cluster_pairs for line in await asyncio.to_thread(repairs, clusters)]
        changed = [
            line
            for clusters, was in zip(cluster_pairs, before, strict=True)
            for line in foreign_changes(was, await foreign_versions(clusters))
        ]
    crashes = [f"a syncer of {each.binding} ended by itself with {code}" for each in replicas for code in each.crashes]
    tracebacks = [line for each in replicas for line in each.tracebacks()]
    errors = [*disagreements_left, *observed_errors(observer), *leftovers, *changed, *crashes, *tracebacks]
    if injector.healed_within(0.99) > scale.heal_seconds:
        errors.append(f"99 of 100 should heal in {scale.heal_seconds:g} s: {sorted(injector.healed)[-5:]}")
    return figures_of(scale, churn, injector, seconds, sum(map(len, before))), errors


async def open_target(
    stack: AsyncExitStack, virtual: ControlPlane, physical: ControlPlane, folder: Path, replicas: int, seed: str
) -> Target:
    """Create a binding with its own physical cluster and foreign objects in it. Its syncers do not run yet."""
    rng = random.Random(f"gates {seed}")
    clusters = await stack.enter_async_context(
        bound_clusters(virtual, physical, folder, name=folder.name, directScheduling=True, disableNodeDefaultTaint=True)
    )
    stack.enter_context(
        running([sys.executable, "-m", "tests.integration.kubelet", physical.kubeconfig], folder / "kubelet.log")
    )
    below = await stack.enter_async_context(fault_proxy(physical, rng))
    await clusters.set_kubeconfig(below.kubeconfig)
    for number in range(NODES_EACH):
        policy = DAY if number < NODES_EACH - CLOSING else NIGHT
        await clusters.add_node(f"{clusters.name}-{number}", labels={"policy": policy}, cpu="32", memory="256Gi")
    reclaim: Object = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 1}
    for policy, terms in {DAY: {}, NIGHT: reclaim}.items():
        only = {"matchExpressions": [{"key": "policy", "operator": "In", "values": [policy]}]}
        await clusters.add_policy(policy, nodeSelector={"nodeSelectorTerms": [only]}, **terms)
    await add_foreign(clusters)
    syncers = []
    for number in range(replicas):
        proxy = await stack.enter_async_context(fault_proxy(virtual, rng))
        name = f"syncer-{number}"
        syncers.append(Replica(clusters.name, proxy, folder / f"{name}.kubeconfig", folder / f"{name}.log"))
    open_nodes = [clusters.above(f"{clusters.name}-{number}") for number in range(NODES_EACH - CLOSING)]
    return Target(clusters, below, syncers, open_nodes)


async def run_until_agreement(scale: Scale, churn: Churn, injector: FaultInjector) -> tuple[float, list[str]]:
    """Inject all faults. Return the seconds until both sides agreed, and the disagreements left after a timeout."""
    observer = injector.observer
    observer.above.on_change(churn.record)
    async with asyncio.TaskGroup() as group:
        finishing = group.create_task(finish_twins(observer, churn.cluster_pairs))
        await churn.prepare()
        assert await observer.wait_for_agreement(scale.agreement_seconds), observer.disagreements()[:20]
        tasks = [group.create_task(churn.run()), group.create_task(churn.toggle_windows(WINDOW_SECONDS))]
        await injector.run(scale.faults)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await churn.set_closed(False)
        started = time.monotonic()
        await observer.wait_for_agreement(scale.agreement_seconds)
        finishing.cancel()
    return time.monotonic() - started, observer.disagreements()


async def finish_twins(observer: Observer, cluster_pairs: Sequence[BoundClusters]) -> None:
    """Report twins that should finish as succeeded, as a kubelet would."""
    clients = {clusters.name: clusters.physical for clusters in cluster_pairs}
    while True:
        binding_name, twin = await observer.to_finish.get()
        done = [{**each, "ready": False, "state": {"terminated": {"exitCode": 0}}} for each in statuses(twin)]
        patch = {"metadata": {"uid": uid_of(twin)}, "status": {"phase": "Succeeded", "containerStatuses": done}}
        try:
            await clients[binding_name].patch(
                PODS, object_named(name_of(twin), namespace_of(twin)), patch, subresource="status"
            )
        except (NotFound, Conflict):  # deleted, or another pod has its name
            continue


def statuses(pod: Object) -> list[Object]:
    found: list[Object] = pod["status"]["containerStatuses"]
    return found


def observed_errors(observer: Observer) -> list[str]:
    """Return observed violations. Pods may fail only on nodes whose windows close, because they are reclaimed there."""
    closing_nodes = tuple(str(number) for number in range(NODES_EACH - CLOSING, NODES_EACH))
    failed = [message for node, message in observer.failed.values() if not node.endswith(closing_nodes)]
    missed = (
        [f"{observer.restarted_watches()} watches of the observer restarted"] if observer.restarted_watches() else []
    )
    return [*observer.duplicate_twins(), *observer.resurrected, *failed, *missed]


def figures_of(scale: Scale, churn: Churn, injector: FaultInjector, seconds: float, foreign_count: int) -> str:
    heals = [f"{name} {injector.healed_within(share):.1f} s" for name, share in (("p50", 0.5), ("p99", 0.99))]
    worst, after = max(injector.healed)
    return (
        f"{scale.faults} faults in {scale.faults * scale.interval_seconds:g} s on {scale.pods} pods, "
        f"{churn.created} created, {churn.deleted} deleted; "
        f"healed {', '.join(heals)}, at worst {worst:.1f} s ({after}), of {len(injector.healed)}; "
        f"at rest {seconds:.1f} s after; of {foreign_count} foreign objects none changed"
    )


# -- foreign objects


async def add_foreign(clusters: BoundClusters) -> None:
    """Create objects of the owner, some with labels that resemble ours."""
    await clusters.physical.create(NAMESPACES, new_object("Namespace", {"name": OWNERS}))
    ours = (await binding_of_clusters(clusters)).owner_labels()
    label_sets: list[dict[str, str]] = [{}, {keys.MANAGED_BY: keys.TAPESTRY}, {**ours, keys.VIRTUAL_CLUSTER: "another"}]
    for namespace in (clusters.mount, OWNERS):
        for number, labels in enumerate(label_sets):
            annotations = {keys.VIRTUAL_POD_NAMESPACE: "default", keys.VIRTUAL_POD_NAME: f"pod-{number}"}
            metadata: Object = {
                "name": f"owners-{number}",
                "namespace": namespace,
                "labels": labels,
                "annotations": annotations,
            }
            await clusters.physical.create(CONFIGMAPS, new_object("ConfigMap", metadata, data={"key": "owner's"}))
            await clusters.physical.create(SECRETS, new_object("Secret", metadata, stringData={"key": "owner's"}))
            service = {"ports": [{"port": 80}], "selector": {"app": "owners"}}
            await clusters.physical.create(SERVICES, new_object("Service", metadata, spec=service))
            container = {"name": "c", "image": "images.example/busybox:1"}
            spec = {"nodeName": f"{clusters.name}-{number}", "containers": [container]}
            await clusters.physical.create(PODS, new_object("Pod", metadata, spec=spec))
            await wait_until(
                clusters.physical, PODS, metadata["name"], lambda pod: phase_of(pod) == "Running", namespace
            )


async def foreign_versions(clusters: BoundClusters) -> dict[str, tuple[str, str]]:
    """Return UID and resourceVersion of every object that is not ours."""
    binding = await binding_of_clusters(clusters)
    found = {}
    for kind in (*FOREIGN, NODES, NAMESPACES):
        for namespace in (clusters.mount, OWNERS) if kind in FOREIGN else (None,):
            for obj in await clusters.physical.list(kind, namespace):
                if not binding.owns(obj):
                    found[f"{clusters.name}: {kind.plural} {key_of(obj)}"] = uid_of(obj), version_of(obj)
    return found


def foreign_changes(before: dict[str, tuple[str, str]], after: dict[str, tuple[str, str]]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [f"{name} is not ours, and changed" for name in names if before.get(name) != after.get(name)]


def repairs(clusters: BoundClusters) -> list[str]:
    """Return the actions that `tapestry repair` would take."""
    environ = {**os.environ, "KUBECONFIG": str(clusters.virtual_plane.kubeconfig)}
    command = [str(TAPESTRY), "repair", clusters.name, "--dry-run", "-o", "json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return [done.stderr] if done.stderr else [f"repair: {each}" for each in json.loads(done.stdout)]
