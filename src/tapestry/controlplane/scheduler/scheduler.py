"""The scheduler at work: pods that wait go to nodes, the most important first.

A decision is made in one go, on caches that are kept up to date change by change, and counts at once: the next pod sees
the room that this one takes, although the binding is still on its way.  Room is given back only if it is certain that
the binding did not come to be.  What could not be placed waits until something changes that might help.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager
from tapestry.controller.events import Recorder
from tapestry.controlplane.scheduler import volumes
from tapestry.controlplane.scheduler.asked import (
    DEFAULT_SCHEDULER,
    Asked,
    Unreadable,
    asked_by,
    is_for_us,
    shows_resources,
)
from tapestry.controlplane.scheduler.line import Line
from tapestry.controlplane.scheduler.placing import Choice, Wishes, choose
from tapestry.controlplane.scheduler.preemption import (
    ONGOING,
    REASON,
    Budget,
    Useless,
    Victims,
    is_pushed_aside,
    victims,
)
from tapestry.controlplane.scheduler.rooms import Rooms
from tapestry.controlplane.scheduler.verdicts import Verdicts
from tapestry.controlplane.scheduler.volumes import Storage, Stowage, Unready, claim_names, class_of, stowage_of
from tapestry.kube.conditions import find
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.pods import is_over
from tapestry.kube.quantity import QuantityError
from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import timestamp
from tapestry.process.logs import logger

log = logger(__name__)

WORKERS = 16
PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds between a change that might help and another look at the pods that wait: more where there are many."""
AT_ONCE = 200
"""Pods that wait of which all can be looked at once a second."""
PATIENCE = 300.0
"""Seconds after which they are looked at even if nothing seems to have changed."""
UNSCHEDULABLE, FAULTY, GATED = "Unschedulable", "SchedulerError", "SchedulingGated"
CLOSED = "Scheduling is blocked due to non-empty scheduling gates"
CLASS, CLAIM = "class", "claim"


@dataclass
class Scheduler:
    """Places whatever is ready, the most important first, whatever key it is called with."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    pods: Informer
    budgets: Informer
    storage: Storage
    call: Callable[[str], None] = lambda _: None
    """Has `reconcile` called."""
    rooms: Rooms = field(default_factory=Rooms)
    verdicts: Verdicts = field(default_factory=Verdicts)
    line: Line = field(default_factory=Line)
    waiting: set[str] = field(default_factory=set)
    """Pods that there was no room for."""
    assumed: dict[str, str] = field(default_factory=dict)
    """Pods whose binding is on its way, and where to: they count as being there."""
    nominated: dict[str, tuple[Asked, str]] = field(default_factory=dict)
    """Pods for whom others were pushed aside, and where."""
    start: int = 0
    woken: asyncio.TimerHandle | None = None

    # -- what happens

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None or is_over(new):
            pod = new or old
            assert pod is not None
            self.forget(key_of(pod))
        elif node := new["spec"].get("nodeName"):
            if old is None or is_other_pod(old, new):
                self.settle(new, node)
        elif new["spec"].get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
            return
        elif is_deleting(new):
            self.forget(key_of(new))
        elif old is None or is_other_pod(old, new):
            self.nominate(new)
            self.add(new)

    def forget(self, key: str) -> None:
        """The pod is over: there is room for others."""
        self.waiting.discard(key)
        self.assumed.pop(key, None)
        was_nominated = self.nominated.pop(key, None) is not None
        if self.rooms.remove(key) or was_nominated:
            self.soon()

    def settle(self, pod: Object, node: str) -> None:
        """The pod is on that node."""
        key = key_of(pod)
        self.waiting.discard(key)
        self.assumed.pop(key, None)
        self.nominated.pop(key, None)
        try:
            self.rooms.add(asked_by(pod), node)
        except Unreadable as error:
            log.warning("pod is not counted", pod=key, node=node, error=str(error))
        self.soon()

    def nominate(self, pod: Object) -> None:
        """Whoever pushed others aside before this process began still has a right to the room."""
        node = value_at(pod, "status", "nominatedNodeName")
        if node and key_of(pod) not in self.nominated:
            try:
                self.nominated[key_of(pod)] = asked_by(pod), node
            except Unreadable:
                return  # it is told when its turn comes

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self.rooms.remove_node(name_of(old))
        elif old is None or is_other_room(old, new):
            try:
                self.rooms.set_node(new)
            except QuantityError as error:
                log.warning("node is not used", node=name_of(new), error=str(error))
                self.rooms.remove_node(name_of(new))
        else:
            return
        self.soon()

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self.rooms.spaces[name_of(new)] = labels_of(new)
        elif old is not None:
            self.rooms.spaces.pop(name_of(old), None)
        self.soon()

    def storage_changed(self, _old: Object | None, _new: Object | None) -> None:
        for key in self.assumed:  # it may have waited for its volumes
            if (pod := self.pods.store.get(key)) is not None:
                self.add(pod)
        self.soon()

    def soon(self) -> None:
        """Something may help pods that wait."""
        self.look_again(min(LONGEST_PAUSE, max(PAUSE, len(self.waiting) / AT_ONCE)))

    def look_again(self, seconds: float) -> None:
        """Look at pods that wait in so many seconds, or sooner if that was asked for."""
        if not self.waiting:
            return
        loop = asyncio.get_running_loop()
        if self.woken is not None:
            if self.woken.when() <= loop.time() + seconds:
                return
            self.woken.cancel()
        self.woken = loop.call_later(seconds, self.wake)

    def wake(self) -> None:
        self.woken = None
        waiting, self.waiting = self.waiting, set()
        for key in waiting:
            if (pod := self.pods.store.get(key)) is not None:
                self.add(pod)

    def add(self, pod: Object) -> None:
        self.line.add(pod)
        self.call(key_of(pod))

    # -- one pod after the other

    async def reconcile(self, _key: str) -> None:
        """Places all that is ready: what one call finds, another need not."""
        while (key := self.line.take()) is not None:
            pod = self.unplaced(key)
            try:
                if pod is not None:
                    await self.place(pod)
            except NotFound:
                self.forget(key)
            except BaseException:
                if pod is not None:
                    self.line.add(pod)  # and whoever calls next tries again
                raise
            finally:
                self.line.done(key)

    def unplaced(self, key: str) -> Object | None:
        pod = self.pods.store.get(key)
        if pod is None or pod["spec"].get("nodeName") or is_deleting(pod):
            return None
        return pod if key in self.assumed or self.rooms.place_of(key) is None else None

    async def place(self, pod: Object) -> None:
        key = key_of(pod)
        self.waiting.discard(key)
        if not is_for_us(pod):
            await self.tell(pod, CLOSED, reason=GATED)
            return
        try:
            asked = asked_by(pod)
        except Unreadable as error:
            await self.tell(pod, str(error), reason=FAULTY)
            return
        node = self.assumed.get(key)
        try:
            wishes = Wishes(asked, stowage_of(pod, self.storage), self.kept_from(asked))
            choice = Choice(node) if node is not None else self.choose(wishes)
        except Unready as error:
            if node is not None and await self.place_of(pod) is None:
                self.release(pod)
            if node is not None:
                return
            wishes, choice = Wishes(asked), Choice(barred=str(error))
        if choice.node is None:
            await self.push_aside(wishes, choice)
            return
        self.assumed[key] = choice.node
        self.rooms.add(asked, choice.node)
        if await self.stow(pod, wishes.stowage, choice.node):
            await self.bind(pod, choice.node)

    def kept_from(self, asked: Asked) -> dict[str, list[Asked]]:
        """Those at least as important who have a right to a room, by node."""
        found: dict[str, list[Asked]] = {}
        for each, node in self.nominated.values():
            if each.priority >= asked.priority and each.key != asked.key and each.key not in self.rooms.places:
                found.setdefault(node, []).append(each)
        return found

    def choose(self, wishes: Wishes) -> Choice:
        kept = self.nominated.get(wishes.asked.key)
        choice = choose(wishes, self.rooms, self.verdicts, self.start, kept[1] if kept is not None else None)
        self.start = (self.start + choice.asked) % max(len(self.rooms), 1)
        return choice

    async def stow(self, pod: Object, stowage: Stowage, node: str) -> bool:
        """Have the pod's claims bound for the node; whether they are.  Their change brings us back."""
        if not stowage.waiting:
            return True
        room = self.rooms.rooms.get(node)
        plan = stowage.plan(room) if room is not None else None
        if plan is None:  # somebody else has taken what was there
            self.release(pod)
            return False
        try:
            for volume, claim in plan.bound:
                if not value_at(volume, "spec", "claimRef", "uid"):
                    await self.client.patch(PERSISTENT_VOLUMES, volume, volumes.given_to(claim))
            for claim in plan.made:
                if volumes.SELECTED_NODE not in annotations_of(claim):
                    await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, volumes.made_for(node))
        except NotFound:
            self.release(pod)
        return False

    def release(self, pod: Object) -> None:
        """The pod is not going where it was to go: it needs another place, and others may have this one."""
        self.assumed.pop(key_of(pod), None)
        self.rooms.remove(key_of(pod))
        self.soon()
        self.add(pod)

    async def bind(self, pod: Object, node: str) -> None:
        metadata = {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self.client.create(PODS, binding, subresource="binding")
        except Conflict:
            found = await self.place_of(pod)
            if found is None:
                raise
            node = found
        self.assumed.pop(key_of(pod), None)
        self.nominated.pop(key_of(pod), None)
        self.events.normal(pod, "Scheduled", f"Successfully assigned {key_of(pod)} to {node}")

    async def place_of(self, pod: Object) -> str | None:
        """The node that the pod went to after all, as an answer that was lost would have said."""
        live = await self.client.get(PODS, name_of(pod), namespace_of(pod))
        if uid_of(live) != uid_of(pod) or is_deleting(live):
            raise NotFound(404, "NotFound", f"pod {key_of(pod)} is gone")
        node: str | None = value_at(live, "spec", "nodeName")
        if node:
            self.settle(live, node)
        return node

    # -- no room

    async def push_aside(self, wishes: Wishes, choice: Choice) -> None:
        """Make room where others are less important; say why the pod waits."""
        asked = wishes.asked
        message = choice.message(len(self.rooms))
        kept = self.nominated.get(asked.key)
        node = kept[1] if kept is not None else None
        if not self.rooms or choice.barred:
            await self.wait(asked.pod, message, node)
            return
        try:
            if node is not None and self.is_being_cleared(asked, node, choice):
                raise Useless(ONGOING)
            found = victims(wishes, choice, self.rooms, self.budgets_now())
        except Useless as error:
            if error.args[0] != ONGOING and self.nominated.pop(asked.key, None) is not None:
                node = None
                self.soon()
            await self.wait(asked.pod, f"{message} {error}", node)
            return
        self.nominated[asked.key] = asked, found.node
        await self.wait(asked.pod, message, found.node)
        self.denominate(asked, found.node)
        await self.remove(asked, found)

    def is_being_cleared(self, asked: Asked, node: str, choice: Choice) -> bool:
        """Whether pods are on their way out for this one."""
        room, refusal = self.rooms.rooms.get(node), choice.refusals.get(node)
        if room is None or (refusal is not None and refusal.is_final):
            return False
        return any(each.priority < asked.priority and is_pushed_aside(each) for each in room.pods.values())

    def denominate(self, asked: Asked, node: str) -> None:
        """Those who are less important lose the right to a room there, and look elsewhere."""
        for each, where in list(self.nominated.values()):
            if where == node and each.priority < asked.priority:
                del self.nominated[each.key]
                if (pod := self.pods.store.get(each.key)) is not None:
                    self.add(pod)

    def budgets_now(self) -> Sequence[Budget]:
        return [budget_of(each) for each in self.budgets.store.list()]

    async def remove(self, asked: Asked, found: Victims) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": REASON,
            "message": f"{DEFAULT_SCHEDULER}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": timestamp(self.now()),
        }
        for each in found.pods:
            pod = self.pods.store.get(each.key)
            if pod is None or is_deleting(pod):
                continue
            try:
                patch = {"status": {"conditions": [condition]}}
                marked = await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
                await self.client.delete(PODS, marked)
            except NotFound:
                continue
            self.events.normal(pod, "Preempted", f"Preempted by pod {uid_of(asked.pod)} on node {found.node}")

    async def wait(self, pod: Object, message: str, nominated: str | None = None) -> None:
        """Say why the pod waits, once, and look again when something changes."""
        self.waiting.add(key_of(pod))
        self.look_again(PATIENCE)
        await self.tell(pod, message, nominated)

    async def tell(self, pod: Object, message: str, nominated: str | None = None, reason: str = UNSCHEDULABLE) -> None:
        told = find(value_at(pod, "status", "conditions"), "PodScheduled") or {}
        is_told = told.get("message") == message and told.get("reason") == reason
        if is_told and value_at(pod, "status", "nominatedNodeName") == nominated:
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if generation := pod["metadata"].get("generation"):
            condition["observedGeneration"] = generation
        if told.get("status") != "False":
            condition["lastTransitionTime"] = timestamp(self.now())
        status: Object = {"conditions": [condition], "nominatedNodeName": nominated}
        await self.client.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")
        if reason != GATED and not is_told:
            self.events.warning(pod, "FailedScheduling", message)


def is_other_pod(old: Object, new: Object) -> bool:
    """Whether a pod changed in a way that matters to its place, or to others'."""
    return bool(
        old["spec"] != new["spec"]
        or labels_of(old) != labels_of(new)
        or is_deleting(old) != is_deleting(new)
        or shows_resources(old) != shows_resources(new)
    )


def is_other_room(old: Object, new: Object) -> bool:
    """Whether a node changed in a way that matters to pods that wait."""
    return bool(
        old.get("spec") != new.get("spec")
        or labels_of(old) != labels_of(new)
        or value_at(old, "status", "allocatable") != value_at(new, "status", "allocatable")
    )


def budget_of(budget: Object) -> Budget:
    status = budget.get("status") or {}
    selector = label_selector(value_at(budget, "spec", "selector"))
    taken = frozenset(status.get("disruptedPods") or ())
    return Budget(namespace_of(budget) or "", selector, status.get("disruptionsAllowed") or 0, taken)


def classes(volume: Object) -> Iterable[str]:
    return (class_of(volume),)


def claims_on_nodes(pod: Object) -> Iterable[str]:
    """The claims that a pod uses, once it is on a node and until it is over."""
    if not value_at(pod, "spec", "nodeName") or is_over(pod):
        return ()
    return [f"{namespace_of(pod)}/{name}" for name, _ in claim_names(pod)]


def install(manager: Manager) -> None:
    """Have pods scheduled by this manager."""
    pods, nodes = manager.informer(PODS, indexers={CLAIM: claims_on_nodes}), manager.informer(NODES)
    claims, storage_classes = manager.informer(PERSISTENT_VOLUME_CLAIMS), manager.informer(STORAGE_CLASSES)
    persistent = manager.informer(PERSISTENT_VOLUMES, indexers={CLASS: classes})
    storage = Storage(
        claims.store.get,
        persistent.store.get,
        lambda name: persistent.store.by(CLASS, name),
        storage_classes.store.get,
        lambda key: [key_of(each) for each in pods.store.by(CLAIM, key)],
    )
    events = Recorder(manager.client, DEFAULT_SCHEDULER, manager.identity, manager.now)
    manager.while_working("scheduler events", events.run)
    scheduler = Scheduler(manager.client, events, manager.now, pods, manager.informer(DISRUPTION_BUDGETS), storage)
    controller = manager.controller("scheduler", scheduler.reconcile, workers=WORKERS)
    scheduler.call = controller.queue.add
    pods.on_change(scheduler.pod_changed)
    nodes.on_change(scheduler.node_changed)
    manager.informer(NAMESPACES).on_change(scheduler.namespace_changed)
    for informer in (claims, persistent, storage_classes):
        informer.on_change(scheduler.storage_changed)
