"""Time until the first pod of a namespace has a twin, compared with the next one.

The first pod has to wait until the manager has granted the syncer the rights that it needs: a Secret, ConfigMaps and a
token. Manager and syncer run with the tokens of their own accounts, as installed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec
from tests.integration.bound_clusters import TAPESTRY, BoundClusters, new_object, wait_until
from tests.integration.processes import running

from benchmarks.table import Row, say
from tapestry.apis import keys
from tapestry.apis.names import syncer_name
from tapestry.controller import Informer
from tapestry.kube.objects import Object, labels_of, object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from tapestry.local.kubernetes import ControlPlane
from tapestry.local.world import install_manager

NAMESPACE_COUNT = 20
POD = "pod"
"""Label of the pods and their twins: namespace and number."""
FLAGS = ("--leader-elect=false", "--allow-loopback", "--metrics-bind-address=", "--health-probe-bind-address=")

Delays = list[tuple[float, float]]
"""Seconds from binding to twin of the first and of the next pod of each namespace."""


async def account_kubeconfig(clusters: BoundClusters, plane: ControlPlane, account: str) -> Path:
    """Return a kubeconfig with a token of an account in the manager's namespace."""
    await wait_until(clusters.virtual, SERVICE_ACCOUNTS, account, bool, keys.SYSTEM_NAMESPACE)
    config = msgspec.json.decode(plane.kubeconfig.read_bytes())
    token = await clusters.virtual.request_token(account, keys.SYSTEM_NAMESPACE, seconds=3600)
    config["users"][0]["user"] = {"token": token["token"]}
    file = clusters.folder / f"{account}.kubeconfig"
    file.write_bytes(msgspec.json.encode(config))
    return file


@asynccontextmanager
async def installed(clusters: BoundClusters, plane: ControlPlane) -> AsyncIterator[None]:
    """Run the manager, and the syncer of the clusters, with the rights of their accounts."""
    await install_manager(clusters.virtual)
    manager = await account_kubeconfig(clusters, plane, "tapestry-manager")
    with running([TAPESTRY, "manager", "--kubeconfig", manager, *FLAGS], clusters.folder / "manager.log"):
        syncer = await account_kubeconfig(clusters, plane, syncer_name(clusters.name))
        command = [TAPESTRY, "syncer", "--binding", clusters.name, "--kubeconfig", syncer, *FLAGS]
        with running(command, clusters.folder / "restricted-syncer.log"):
            yield


async def first_pod_delays(clusters: BoundClusters, plane: ControlPlane, node: str) -> Delays:
    twins: dict[str, float] = {}
    seen = asyncio.Event()

    def see_twin(_: Object | None, twin: Object | None) -> None:
        if twin is not None and POD in labels_of(twin):
            twins.setdefault(labels_of(twin)[POD], time.monotonic())
            seen.set()

    informer = Informer(clusters.physical, PODS, namespace=clusters.mount, labels=POD)
    informer.on_change(see_twin)
    delays: Delays = []
    async with installed(clusters, plane), asyncio.TaskGroup() as group:
        following = group.create_task(informer.run())
        await informer.synced.wait()
        for number in range(-1, NAMESPACE_COUNT):  # the first one waits for the syncer
            namespace = f"first-{number}" if number >= 0 else "warm-up"
            await prepare(clusters, namespace)
            pair: list[float] = []
            for which in ("first", "next"):
                label, started = f"{namespace}-{which}", time.monotonic()
                await clusters.virtual.create(PODS, new_pod(namespace, which, label, node))
                async with asyncio.timeout(60):
                    while label not in twins:
                        seen.clear()
                        await seen.wait()
                pair.append(twins[label] - started)
            if number >= 0:
                delays.append((pair[0], pair[1]))
        following.cancel()
    say(f"sync: first pods of {NAMESPACE_COUNT} namespaces: {median(first for first, _ in delays) * 1000:.0f} ms")
    return delays


async def prepare(clusters: BoundClusters, namespace: str) -> None:
    """Create a namespace with what its pods use."""
    await clusters.virtual.create(NAMESPACES, object_named(namespace))
    await clusters.virtual.create(SECRETS, {**object_named("password", namespace), "stringData": {"p": "v"}})
    await wait_until(clusters.virtual, SERVICE_ACCOUNTS, "default", bool, namespace)
    await wait_until(clusters.virtual, CONFIGMAPS, "kube-root-ca.crt", bool, namespace)


def new_pod(namespace: str, name: str, label: str, node: str) -> Object:
    return new_object(
        "Pod",
        {"name": name, "namespace": namespace, "labels": {POD: label}},
        spec={
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "images.example/busybox:1"}],
            "volumes": [{"name": "secret", "secret": {"secretName": "password"}}],
        },
    )


def first_pod_rows(delays: Delays) -> Iterator[Row]:
    later = median(first - following for first, following in delays) * 1000
    first, following = (median(each[index] for each in delays) * 1000 for index in (0, 1))
    detail = f"{first:.3g} ms, next {following:.3g} ms, {NAMESPACE_COUNT} namespaces"
    yield Row("first pod of a namespace: twin later than the next, p50", later, "ms", at_most=500, detail=detail)
