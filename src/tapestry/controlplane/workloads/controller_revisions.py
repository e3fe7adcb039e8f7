"""Revisions: every template that a set has had, kept so that one can go back to it.

StatefulSets and DaemonSets keep theirs in ControllerRevisions, named by what is in them.  The one with the highest
number is the present one; going back to an older template gives that one the highest number.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from tapestry.client.client import Client
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.digests import digest_of
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import (
    Object,
    annotations_of,
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
    """A strategic merge patch that takes the owner back to its present template."""
    return {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}


def template_in(revision: Object) -> Object:
    return {key: value for key, value in revision["data"]["spec"]["template"].items() if key != "$patch"}


def hash_of(revision: Object) -> str:
    return labels_of(revision).get(CONTROLLER_REVISION_HASH, name_of(revision))


def new_revision(owner: Object, number: int, collisions: int) -> Object:
    data = revision_data(owner)
    mark = digest_of([data, collisions])[:10]
    in_order = msgspec.json.decode(msgspec.json.encode(data, order="sorted"))  # kubectl compares bytes
    made = owned_object(
        owner,
        CONTROLLER_REVISIONS,
        {"data": in_order, "revision": number},
        name=f"{name_of(owner)[:MAX_BASE_LENGTH]}-{mark}",
    )
    labels = {**labels_of(owner["spec"]["template"]), CONTROLLER_REVISION_HASH: mark, CONTENT_HASH: mark}
    said = {key: value for key, value in annotations_of(owner).items() if key != LAST_APPLIED}
    return {**made, "metadata": {**made["metadata"], "labels": labels, **({"annotations": said} if said else {})}}


def split_revisions(owner: Object, revisions: Iterable[Object]) -> tuple[Object | None, list[Object]]:
    """The revision with the owner's present template, and the others from the first to the last."""
    by_number = sorted(revisions, key=lambda each: (each["revision"], name_of(each)))
    data = revision_data(owner)
    present = next((each for each in reversed(by_number) if each["data"] == data), None)
    return present, [each for each in by_number if each is not present]


def surplus_revisions(owner: Object, others: Sequence[Object], live: Collection[str]) -> list[Object]:
    """Revisions beyond those that are kept to go back to; `live` are names and hashes that pods still have."""
    unused = [each for each in others if name_of(each) not in live and hash_of(each) not in live]
    return unused[: max(len(unused) - owner["spec"].get("revisionHistoryLimit", DEFAULT_HISTORY_LIMIT), 0)]


# -- keeping them


async def claim_revisions(
    client: Client, resource: Resource, owner: Object, selector: LabelSelector, found: Iterable[Object]
) -> list[Object]:
    """The owner's revisions among those `found`."""
    own = await owned_pods.claim_objects(client, resource, owner, selector, found, CONTROLLER_REVISIONS)
    return [each for each in own if not is_deleting(each)]


async def ensure_current_revision(
    client: Client, resource: Resource, owner: Object, revisions: Iterable[Object]
) -> Object | None:
    """The revision of the owner's present template, with the highest number; None where its name is another's."""
    present, others = split_revisions(owner, revisions)
    number = max((each["revision"] for each in others), default=0) + 1
    if present is None:
        return await create_revision(client, resource, owner, number)
    if present["revision"] < number:
        return await client.patch(CONTROLLER_REVISIONS, present, {"revision": number})
    return present


async def create_revision(client: Client, resource: Resource, owner: Object, number: int) -> Object | None:
    collisions = value_at(owner, "status", "collisionCount", default=0)
    wanted = new_revision(owner, number, collisions)
    try:
        return await client.create(CONTROLLER_REVISIONS, wanted)
    except AlreadyExists:
        held = await client.get(CONTROLLER_REVISIONS, name_of(wanted), namespace_of(wanted))
        if owned_pods.is_controlled_by(held, owner) and held["data"] == wanted["data"]:
            return held
        await client.patch(resource, owner, {"status": {"collisionCount": collisions + 1}}, subresource="status")
        return None


async def delete_revisions(client: Client, revisions: Iterable[Object]) -> None:
    for each in revisions:
        await client.delete_if_exists(CONTROLLER_REVISIONS, each)
