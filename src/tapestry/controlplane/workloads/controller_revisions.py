"""ControllerRevisions: the history of pod templates of StatefulSets and DaemonSets.

A revision is named after the hash of its content. The one with the highest number is current. A rollback to an older
template gives its revision the highest number.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from tapestry.client.client import Client
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import (
    Object,
    annotations_of,
    digest_of,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    owned_object,
    value_at,
)
from tapestry.kube.resources import CONTROLLER_REVISIONS, Resource
from tapestry.kube.selectors import LabelSelector

CONTROLLER_REVISION_HASH = "controller-revision-hash"
CONTENT_HASH = "controller.kubernetes.io/hash"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DEFAULT_HISTORY_LIMIT = 10
MAX_BASE_LENGTH = 223


def revision_data(owner: Object) -> Object:
    """Return a strategic merge patch that restores the owner's current template."""
    return {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}


def template_in(revision: Object) -> Object:
    return {key: value for key, value in revision["data"]["spec"]["template"].items() if key != "$patch"}


def hash_of(revision: Object) -> str:
    return labels_of(revision).get(CONTROLLER_REVISION_HASH, name_of(revision))


def new_revision(owner: Object, number: int, collisions: int) -> Object:
    data = revision_data(owner)
    digest = digest_of([data, collisions])[:10]
    sorted_data = msgspec.json.decode(msgspec.json.encode(data, order="sorted"))  # kubectl compares bytes
    base = owned_object(
        owner,
        CONTROLLER_REVISIONS,
        {"data": sorted_data, "revision": number},
        name=f"{name_of(owner)[:MAX_BASE_LENGTH]}-{digest}",
    )
    labels = {**labels_of(owner["spec"]["template"]), CONTROLLER_REVISION_HASH: digest, CONTENT_HASH: digest}
    copied = {key: value for key, value in annotations_of(owner).items() if key != LAST_APPLIED}
    return {**base, "metadata": {**base["metadata"], "labels": labels, **({"annotations": copied} if copied else {})}}


def split_revisions(owner: Object, revisions: Iterable[Object]) -> tuple[Object | None, list[Object]]:
    """Return the revision of the owner's current template, and the others in ascending order."""
    by_number = sorted(revisions, key=lambda each: (each["revision"], name_of(each)))
    data = revision_data(owner)
    current = next((each for each in reversed(by_number) if each["data"] == data), None)
    return current, [each for each in by_number if each is not current]


def surplus_revisions(owner: Object, others: Sequence[Object], live: Collection[str]) -> list[Object]:
    """Return unused revisions over the history limit. `live` has names and hashes that pods still use."""
    unused = [each for each in others if name_of(each) not in live and hash_of(each) not in live]
    return unused[: max(len(unused) - owner["spec"].get("revisionHistoryLimit", DEFAULT_HISTORY_LIMIT), 0)]


# -- I/O


async def claim_revisions(
    client: Client, resource: Resource, owner: Object, selector: LabelSelector, found: Iterable[Object]
) -> list[Object]:
    """Return the revisions in `found` that belong to the owner and are not being deleted."""
    own = await owned_pods.claim_objects(client, resource, owner, selector, found, CONTROLLER_REVISIONS)
    return [each for each in own if not is_deleting(each)]


async def ensure_current_revision(
    client: Client, resource: Resource, owner: Object, revisions: Iterable[Object]
) -> Object | None:
    """Return the revision of the owner's current template with the highest number, or None on a name collision."""
    current, others = split_revisions(owner, revisions)
    number = max((each["revision"] for each in others), default=0) + 1
    if current is None:
        return await create_revision(client, resource, owner, number)
    if current["revision"] < number:
        return await client.patch(CONTROLLER_REVISIONS, current, {"revision": number})
    return current


async def create_revision(client: Client, resource: Resource, owner: Object, number: int) -> Object | None:
    collisions = value_at(owner, "status", "collisionCount", default=0)
    desired = new_revision(owner, number, collisions)
    try:
        return await client.create(CONTROLLER_REVISIONS, desired)
    except AlreadyExists:
        existing = await client.get(CONTROLLER_REVISIONS, name_of(desired), namespace_of(desired))
        if owned_pods.is_controlled_by(existing, owner) and existing["data"] == desired["data"]:
            return existing
        await client.patch(resource, owner, {"status": {"collisionCount": collisions + 1}}, subresource="status")
        return None


async def delete_revisions(client: Client, revisions: Iterable[Object]) -> None:
    for each in revisions:
        await client.delete_if_exists(CONTROLLER_REVISIONS, each)
