"""Continuous creation and deletion of pods whose names are reused, as in a StatefulSet.

Some pods mount a shared ConfigMap or Secret, some a token, and some a ConfigMap that is created after them. Some finish
by themselves. Some are force-deleted: a pod with the same name may be created before the twin is deleted. Labels and
ConfigMaps change from time to time, and a window closes on some nodes and reclaims their pods. All requests bypass the
proxies: only syncers are affected by faults.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tapestry.client.client import Client
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, PODS, SECRETS, SERVICE_ACCOUNTS

from ...integration.bound_clusters import BoundClusters, give, new_object

KIND = "kind-of-pod"
"""Label of all pods of this module and of their twins."""
COLOUR = "colour"
"""Label whose value changes."""
PREFIX = "pod-"
FINISHING, PLAIN, SETTINGS, PASSWORD, TOKEN, LATE = "finishing", "plain", "settings", "password", "token", "late"
WEIGHTS = {PLAIN: 50, FINISHING: 15, SETTINGS: 12, PASSWORD: 12, TOKEN: 5, LATE: 6}
NIGHT = "night"
"""Policy whose window closes from time to time, and the label of its nodes."""
DAY = "day"
SHARED = 20
"""Number of shared ConfigMaps, and of shared Secrets."""
FORCED_SHARE = 0.2
WORKERS = 4


@dataclass
class Churn:
    """Keep about `target` pods and replace `per_second` of them each second."""

    client: Client
    rng: random.Random
    cluster_pairs: Sequence[BoundClusters]
    nodes: Sequence[str]
    """Names of virtual nodes."""
    target: int
    per_second: float
    pods: dict[str, Object] = field(default_factory=dict)
    """Latest state of the pods that are not being deleted, by name."""
    free: deque[str] = field(default_factory=deque)
    """Names that no pod has."""
    created: int = 0
    deleted: int = 0

    def __post_init__(self) -> None:
        self.free.extend(f"{PREFIX}{number}" for number in range(2 * self.target))

    def record(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a virtual pod."""
        pod = new or old
        assert pod is not None
        name = name_of(pod)
        if not name.startswith(PREFIX):
            return
        if new is None:
            self.free.appendleft(name)  # the next pod reuses it
        if new is None or is_deleting(new):
            self.pods.pop(name, None)
        else:
            self.pods[name] = new

    async def prepare(self) -> None:
        """Create the objects that pods refer to, and the initial pods."""
        account = {"name": "default", "namespace": "default"}
        await self.client.create(SERVICE_ACCOUNTS, new_object("ServiceAccount", account))
        for number in range(SHARED):
            await self.client.create(CONFIGMAPS, settings(f"settings-{number}", "0"))
            place = {"name": f"password-{number}", "namespace": "default"}
            await self.client.create(SECRETS, new_object("Secret", place, stringData={"key": f"secret {number}"}))
        for _ in range(self.target):
            await self.create()

    async def run(self) -> None:
        """Replace pods until cancelled."""
        started, numbers = time.monotonic(), iter(range(1 << 30))

        async def replace_some() -> None:
            for number in numbers:
                await asyncio.sleep(max(0.0, started + number / self.per_second - time.monotonic()))
                await self.create()
                if len(self.pods) > self.target:
                    await self.delete()
                await self.change(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(replace_some())

    async def create(self) -> None:
        if not self.free:  # all pods are being deleted
            return
        name, kind = self.free.popleft(), self.rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        pod = new_pod(name, self.rng.choice(self.nodes), kind, self.rng.randrange(SHARED))
        self.pods[name] = await self.client.create(PODS, pod)
        self.created += 1
        if kind == LATE:
            await give(self.client, CONFIGMAPS, settings(name, "0"))

    async def delete(self) -> None:
        pod = self.pods.pop(self.rng.choice([*self.pods]))
        reference = {"metadata": {"name": name_of(pod), "namespace": "default", "uid": uid_of(pod)}}
        grace = 0 if self.rng.random() < FORCED_SHARE else None
        try:
            await self.client.delete(PODS, reference, grace_seconds=grace)
        except (NotFound, Conflict):  # already deleted; another pod may have its name
            return
        self.deleted += 1

    async def change(self, number: int) -> None:
        """Change a label or a ConfigMap for every second number."""
        if number % 4 == 1 and self.pods:
            name = self.rng.choice([*self.pods])
            try:
                await self.client.patch(
                    PODS, object_named(name, "default"), {"metadata": {"labels": {COLOUR: str(number)}}}
                )
            except NotFound:
                return
        elif number % 4 == 3:
            name = f"settings-{self.rng.randrange(SHARED)}"
            await self.client.patch(CONFIGMAPS, object_named(name, "default"), {"data": {"key": str(number)}})

    async def toggle_windows(self, seconds: float) -> None:
        """Close and open the window of the NIGHT policy every `seconds` until cancelled."""
        while True:
            for closed in (True, False):
                await asyncio.sleep(seconds)
                await self.set_closed(closed)

    async def set_closed(self, closed: bool) -> None:
        for clusters in self.cluster_pairs:
            await clusters.set_policy(NIGHT, timeWindows=[closed_window()] if closed else None)


def closed_window() -> Object:
    """Return a window that is closed now and for the next six hours."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return {"start": f"{start:%H:%M}", "end": f"{start + timedelta(hours=1):%H:%M}"}


def settings(name: str, value: str) -> Object:
    return new_object("ConfigMap", {"name": name, "namespace": "default"}, data={"key": value})


def new_pod(name: str, node: str, kind: str, number: int) -> Object:
    container: Object = {"name": "c", "image": "images.example/busybox:1"}
    spec: Object = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    match kind:
        case "settings":
            spec["volumes"] = [{"name": "v", "configMap": {"name": f"settings-{number}"}}]
        case "late":
            spec["volumes"] = [{"name": "v", "configMap": {"name": name}}]
        case "password":
            source = {"secretKeyRef": {"name": f"password-{number}", "key": "key"}}
            container = {**container, "env": [{"name": "PASSWORD", "valueFrom": source}]}
        case "token":
            spec["serviceAccountName"] = "default"
            spec["volumes"] = [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
    labels = {KIND: kind, COLOUR: "0"}
    return new_object(
        "Pod", {"name": name, "namespace": "default", "labels": labels}, spec={**spec, "containers": [container]}
    )
