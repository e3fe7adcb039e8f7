"""The pods of a controller: which are its own, what they are called, how they fare, which of them go first.

Names are not drawn by lot: a pod's name follows from its owner and its number.  A pass that is made twice, because a
cache had yet to see what the first one did, finds the name taken and makes nothing twice.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256

from tapestry.client.client import Client
from tapestry.controller import Informer, Result
from tapestry.controller.controller import controller_key, own_namespace
from tapestry.controller.store import Indexer
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PODS, REPLICATION_CONTROLLERS, Resource
from tapestry.kube.selectors import LabelSelector, label_selector
from tapestry.kube.times import parse_time

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5
MAX_BASE_LENGTH = 63 - SUFFIX_LENGTH - 1
BATCH_INTERVAL = 0.1
"""Seconds in which changes of pods are looked at together: each look is at all pods of an owner."""
MAX_DELETED_NAMES = 10_000
"""Pods that are gone."""
BURST_REPLICAS = 500
"""Pods that one pass makes: who has typed three zeros too many gets to take them back."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def name_suffix(*parts: object) -> str:
    """Five letters that follow from `parts`."""
    number = int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:8])
    return "".join(LETTERS[number // len(LETTERS) ** place % len(LETTERS)] for place in range(SUFFIX_LENGTH))


IsFree = Callable[[str], bool]
"""Whether a name can be given to a pod."""


def pod_names(owner: Object, is_free: IsFree) -> Iterator[str]:
    """Names for pods of the owner, without end."""
    base, given = name_of(owner)[:MAX_BASE_LENGTH], set()
    for number in itertools.count():
        name = f"{base}-{name_suffix(uid_of(owner), number)}"
        if name not in given and is_free(name):
            given.add(name)
            yield name


class DeletedPods:
    """Pods that are gone, as far as we remember: whoever waits for the end of one must not find another in its place.

    What is forgotten is given again, which does no harm.
    """

    def __init__(self, pods: Informer) -> None:
        self._pods = pods
        self._keys: dict[str, None] = {}
        pods.on_change(self._on_change)

    def name_check(self, owner: Object, own: Iterable[Object]) -> IsFree:
        """Which names are free for pods of an owner that was seen to have `own`.

        A pod of its that has come since is not among them, and is counted as missing: its name is given again, so that
        it is found instead of made twice.
        """
        names = {name_of(pod) for pod in own}

        def is_free(name: str) -> bool:
            key = f"{namespace_of(owner)}/{name}"
            held = self._pods.store.get(key)
            return name not in names and key not in self._keys and (held is None or is_controlled_by(held, owner))

        return is_free

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is None:
            self._keys[key_of(old)] = None
            if len(self._keys) > MAX_DELETED_NAMES:
                del self._keys[next(iter(self._keys))]


def pod_from_template(template: Object, owner: Object, name: str) -> Object:
    """A pod as the owner's template has it."""
    metadata = template.get("metadata") or {}
    kept = {key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)}
    place = {"name": name, "namespace": namespace_of(owner), "ownerReferences": [owner_reference(owner)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, **place}, "spec": template["spec"]}


def is_active(pod: Object) -> bool:
    """Whether the pod counts: it has not ended and is not going."""
    return not is_pod_terminal(pod) and not is_deleting(pod)


def ready_since(pod: Object) -> datetime | None:
    found = find_condition(value_at(pod, "status", "conditions"), "Ready")
    if found is None or found["status"] != "True":
        return None
    return parse_time(found.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def is_ready(pod: Object) -> bool:
    return ready_since(pod) is not None


def available_at(pod: Object, min_ready: timedelta) -> datetime | None:
    """When the pod has been ready for long enough, or will have been; None where it is not ready."""
    since = ready_since(pod)
    return since + min_ready if since is not None else None


def is_available(pod: Object, min_ready: timedelta, now: datetime) -> bool:
    moment = available_at(pod, min_ready)
    return moment is not None and moment <= now


def requeue_when_available(pods: Iterable[Object], min_ready: timedelta, now: datetime) -> Result | None:
    """When the next pod that is ready has been so for long enough."""
    moments = [moment for pod in pods if (moment := available_at(pod, min_ready)) is not None and moment > now]
    return Result(requeue_at=min(moments)) if moments else None


def deletion_order(pods: Iterable[Object], related_pods: Iterable[Object] = ()) -> list[Object]:
    """Pods in the order in which they are let go: those that are worth least first.

    `beside` are others of their kind: of two pods, the one whose node has more of them goes first.
    """
    pods = list(pods)
    crowd = Counter(value_at(pod, "spec", "nodeName") for pod in (*pods, *related_pods))

    def worth(pod: Object) -> tuple[object, ...]:
        ready = ready_since(pod)
        return (
            bool(value_at(pod, "spec", "nodeName")),
            PHASE_ORDER.get(value_at(pod, "status", "phase", default="Pending"), 0),
            ready is not None,
            deletion_cost(pod),
            -crowd[value_at(pod, "spec", "nodeName")],
            -ready.timestamp() if ready is not None else 0.0,
            -restarts(pod),
            -parse_time(pod["metadata"]["creationTimestamp"]).timestamp(),
            name_of(pod),
        )

    return sorted(pods, key=worth)


PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Object) -> int:
    try:
        return int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def restarts(pod: Object) -> int:
    return sum(each.get("restartCount", 0) for each in value_at(pod, "status", "containerStatuses", default=()))


# -- whose they are


def owner_uid(obj: Object) -> Iterable[str]:
    owner = controller_of(obj)
    return [owner["uid"]] if owner is not None else []


def orphan_namespace(obj: Object) -> Iterable[str]:
    return own_namespace(obj) if controller_of(obj) is None else []


OWNER_INDEXERS: dict[str, Indexer] = {"owner": owner_uid, "orphans": orphan_namespace}
"""How a cache of what controllers own is indexed."""


def candidates(owned: Informer, owner: Object) -> list[Object]:
    """What is the owner's, and what is nobody's: the pods of others in its namespace may be many."""
    return [*owned.store.by("owner", uid_of(owner)), *owned.store.by("orphans", namespace_of(owner) or "")]


def selector_of(owner: Object) -> LabelSelector:
    """What an owner's own are chosen by."""
    spec = value_at(owner, "spec", "selector")
    return label_selector({"matchLabels": spec} if owner.get("kind") == REPLICATION_CONTROLLERS.kind else spec)


def matching_owner_keys(owners: Informer, resource: Resource) -> Callable[[Object], Iterable[str]]:
    """The owner of an object; for one that is nobody's, those that may take it.  `owners` are by namespace."""
    by_owner = controller_key(resource)

    def keepers(obj: Object) -> Iterable[str]:
        if controller_of(obj) is not None:
            return by_owner(obj)
        return [
            key_of(each)
            for each in owners.store.by("namespace", namespace_of(obj) or "")
            if selector_of(each).matches(labels_of(obj))
        ]

    return keepers


# -- making and letting go


async def create_pod(client: Client, pod: Object, owner: Object) -> Object | None:
    """Create a pod of the owner's; None where somebody else has the name."""
    try:
        return await client.create(PODS, pod)
    except AlreadyExists:
        held = await client.find(PODS, name_of(pod), namespace_of(pod))
        return held if held is not None and is_controlled_by(held, owner) else None


def is_controlled_by(obj: Object, owner: Object) -> bool:
    """Whether the owner controls the object."""
    reference = controller_of(obj)
    return reference is not None and reference["uid"] == uid_of(owner)


async def claim_objects(
    client: Client,
    owner_resource: Resource,
    owner: Object,
    selector: LabelSelector,
    found: Iterable[Object],
    object_resource: Resource,
) -> list[Object]:
    """Those of `found` that are the owner's: what fits and is nobody's is taken, what fits no more is left."""
    own, strays = [], []
    for obj in found:
        fits = selector.matches(labels_of(obj))
        if is_controlled_by(obj, owner):
            if fits or is_deleting(obj):
                own.append(obj)
            else:
                await release(client, object_resource, obj, owner)
        elif fits and controller_of(obj) is None and not is_deleting(obj):
            strays.append(obj)
    if strays and not is_deleting(owner) and await can_adopt(client, owner_resource, owner):
        own += [taken for obj in strays if (taken := await adopt(client, object_resource, obj, owner)) is not None]
    return own


async def can_adopt(client: Client, resource: Resource, owner: Object) -> bool:
    """Whether the owner is there and stays: one that is about to go must not take anything."""
    live = await client.find(resource, name_of(owner), namespace_of(owner))
    return live is not None and uid_of(live) == uid_of(owner) and not is_deleting(live)


async def adopt(client: Client, resource: Resource, obj: Object, owner: Object) -> Object | None:
    owners = [*(obj["metadata"].get("ownerReferences") or ()), owner_reference(owner)]
    try:
        return await client.patch(resource, obj, {"metadata": {"ownerReferences": owners}})
    except NotFound:
        return None


async def release(client: Client, resource: Resource, obj: Object, owner: Object) -> None:
    owners = [each for each in obj["metadata"]["ownerReferences"] if each["uid"] != uid_of(owner)]
    try:
        await client.patch(resource, obj, {"metadata": {"ownerReferences": owners}})
    except NotFound:
        return
