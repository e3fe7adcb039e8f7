"""Pods of a workload: names, creation, adoption, availability and deletion order.

Names are not random: they follow from the owner and a number. A reconcile that runs again because the cache lags finds
the name taken and creates no second pod.
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
from tapestry.kube.names import SUFFIX_LETTERS as LETTERS
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

SUFFIX_LENGTH = 5
MAX_BASE_LENGTH = 63 - SUFFIX_LENGTH - 1
BATCH_INTERVAL = 0.1
"""Seconds over which pod changes are batched, because each reconcile reads all pods of an owner."""
MAX_DELETED_NAMES = 10_000
"""Number of deleted pods whose names are remembered."""
BURST_REPLICAS = 500
"""Maximum number of pods created per reconcile, so that users can correct a wrong replica count."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def name_suffix(*parts: object) -> str:
    """Return five letters derived from `parts`."""
    number = int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:8])
    return "".join(LETTERS[number // len(LETTERS) ** position % len(LETTERS)] for position in range(SUFFIX_LENGTH))


def min_ready_time(owner: Object) -> timedelta:
    """Return how long a pod must be ready to be available."""
    return timedelta(seconds=value_at(owner, "spec", "minReadySeconds", default=0))


IsFree = Callable[[str], bool]
"""Return whether a pod can have a name."""


def pod_names(owner: Object, is_free: IsFree) -> Iterator[str]:
    base, used = name_of(owner)[:MAX_BASE_LENGTH], set()
    for number in itertools.count():
        name = f"{base}-{name_suffix(uid_of(owner), number)}"
        if name not in used and is_free(name):
            used.add(name)
            yield name


class DeletedPods:
    """Names of recently deleted pods, which are not reused.

    A client that waits for the deletion of a pod must not find another pod of that name. Old names may be reused.
    """

    def __init__(self, pods: Informer) -> None:
        self._pods = pods
        self._keys: dict[str, None] = {}
        pods.on_change(self._on_change)

    def name_check(self, owner: Object, own: Iterable[Object]) -> IsFree:
        """Return a predicate for names that are free for pods of `owner`, which is known to have `own`.

        The name of a pod of the owner that is missing in `own` counts as free: creating it finds the existing pod.
        """
        names = {name_of(pod) for pod in own}

        def is_free(name: str) -> bool:
            key = f"{namespace_of(owner)}/{name}"
            found = self._pods.store.get(key)
            return name not in names and key not in self._keys and (found is None or is_controlled_by(found, owner))

        return is_free

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is None:
            self._keys[key_of(old)] = None
            if len(self._keys) > MAX_DELETED_NAMES:
                del self._keys[next(iter(self._keys))]


def pod_from_template(template: Object, owner: Object, name: str) -> Object:
    metadata = template.get("metadata") or {}
    copied = {key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)}
    identity = {"name": name, "namespace": namespace_of(owner), "ownerReferences": [owner_reference(owner)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**copied, **identity}, "spec": template["spec"]}


def is_active(pod: Object) -> bool:
    """Return whether the pod is neither terminated nor being deleted."""
    return not is_pod_terminal(pod) and not is_deleting(pod)


def ready_since(pod: Object) -> datetime | None:
    condition = find_condition(value_at(pod, "status", "conditions"), "Ready")
    if condition is None or condition["status"] != "True":
        return None
    return parse_time(condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def is_ready(pod: Object) -> bool:
    return ready_since(pod) is not None


def available_at(pod: Object, min_ready: timedelta) -> datetime | None:
    """Return the time since which the pod is or will be available, or None if it is not ready."""
    since = ready_since(pod)
    return since + min_ready if since is not None else None


def is_available(pod: Object, min_ready: timedelta, now: datetime) -> bool:
    since = available_at(pod, min_ready)
    return since is not None and since <= now


def requeue_when_available(pods: Iterable[Object], min_ready: timedelta, now: datetime) -> Result | None:
    """Return a Result for the time at which the next ready pod becomes available."""
    times = [time for pod in pods if (time := available_at(pod, min_ready)) is not None and time > now]
    return Result(requeue_at=min(times)) if times else None


def deletion_order(pods: Iterable[Object], related_pods: Iterable[Object] = ()) -> list[Object]:
    """Return pods in the order in which to delete them on scale-down.

    Of two otherwise equal pods, the one whose node has more of `pods` and `related_pods` is deleted first.
    """
    pods = list(pods)
    pods_per_node = Counter(value_at(pod, "spec", "nodeName") for pod in (*pods, *related_pods))

    def rank(pod: Object) -> tuple[object, ...]:
        ready = ready_since(pod)
        return (
            bool(value_at(pod, "spec", "nodeName")),
            PHASE_ORDER.get(value_at(pod, "status", "phase", default="Pending"), 0),
            ready is not None,
            deletion_cost(pod),
            -pods_per_node[value_at(pod, "spec", "nodeName")],
            -ready.timestamp() if ready is not None else 0.0,
            -restarts(pod),
            -parse_time(pod["metadata"]["creationTimestamp"]).timestamp(),
            name_of(pod),
        )

    return sorted(pods, key=rank)


PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Object) -> int:
    try:
        return int(annotations_of(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def restarts(pod: Object) -> int:
    return sum(each.get("restartCount", 0) for each in value_at(pod, "status", "containerStatuses", default=()))


# -- ownership


def owner_uid(obj: Object) -> Iterable[str]:
    owner = controller_of(obj)
    return [owner["uid"]] if owner is not None else []


def orphan_namespace(obj: Object) -> Iterable[str]:
    return own_namespace(obj) if controller_of(obj) is None else []


OWNER_INDEXERS: dict[str, Indexer] = {"owner": owner_uid, "orphans": orphan_namespace}
"""Indexes of a cache of owned objects."""


def candidates(owned: Informer, owner: Object) -> list[Object]:
    """Return the objects of the owner and those without a controller in its namespace."""
    return [*owned.store.by("owner", uid_of(owner)), *owned.store.by("orphans", namespace_of(owner) or "")]


def selector_of(owner: Object) -> LabelSelector:
    spec = value_at(owner, "spec", "selector")
    return label_selector({"matchLabels": spec} if owner.get("kind") == REPLICATION_CONTROLLERS.kind else spec)


def matching_owner_keys(owners: Informer, resource: Resource) -> Callable[[Object], Iterable[str]]:
    """Return a function from an object to the keys of owners that have or may adopt it. `owners` are by namespace."""
    by_owner = controller_key(resource)

    def owner_keys(obj: Object) -> Iterable[str]:
        if controller_of(obj) is not None:
            return by_owner(obj)
        return [
            key_of(each)
            for each in owners.store.by("namespace", namespace_of(obj) or "")
            if selector_of(each).matches(labels_of(obj))
        ]

    return owner_keys


# -- creating and adopting


async def create_pod(client: Client, pod: Object, owner: Object) -> Object | None:
    """Create a pod of the owner. Return None if another pod has the name."""
    try:
        return await client.create(PODS, pod)
    except AlreadyExists:
        existing = await client.find(PODS, name_of(pod), namespace_of(pod))
        return existing if existing is not None and is_controlled_by(existing, owner) else None


def is_controlled_by(obj: Object, owner: Object) -> bool:
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
    """Return the owner's objects in `found`. Adopt matching objects without a controller, release the others."""
    own, orphans = [], []
    for obj in found:
        matches = selector.matches(labels_of(obj))
        if is_controlled_by(obj, owner):
            if matches or is_deleting(obj):
                own.append(obj)
            else:
                await release(client, object_resource, obj, owner)
        elif matches and controller_of(obj) is None and not is_deleting(obj):
            orphans.append(obj)
    if orphans and not is_deleting(owner) and await can_adopt(client, owner_resource, owner):
        own += [adopted for obj in orphans if (adopted := await adopt(client, object_resource, obj, owner)) is not None]
    return own


async def can_adopt(client: Client, resource: Resource, owner: Object) -> bool:
    """Return whether the owner exists and is not being deleted, according to a live read."""
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
