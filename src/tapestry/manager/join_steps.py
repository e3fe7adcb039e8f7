"""The steps of joining and leaving: each looks at one object of a cluster, and says what it did about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tapestry.apis import keys
from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, namespace_of, uid_of, with_type_meta
from tapestry.kube.resources import NAMESPACES, Resource

OWNER_LABELS = (keys.MANAGED_BY, keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING)
"""The labels that say whose an object is."""


class JoinError(Exception):
    """Why clusters are not joined, or not parted, and what to do about it; one line for people."""


class StepResult(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    WAITING = "waiting"
    LEFT = "left"
    GRANTED = "granted"
    MISSING = "missing"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Step:
    """Something done, or found done, in one of the clusters."""

    result: StepResult
    cluster: str
    subject: str
    note: str = ""


@dataclass(frozen=True)
class Cluster:
    """One of the clusters that are joined or parted, opened by an administrator."""

    role: str
    """`virtual` or `physical`."""
    client: Client
    report: Callable[[Step], None]

    async def identity(self) -> str:
        """The UID of kube-system, which tells one cluster from another."""
        return uid_of(await self.client.get(NAMESPACES, IDENTITY_NAMESPACE))

    async def find(self, resource: Resource, like: Object) -> Object | None:
        """The object with the name of `like`, or None."""
        return await self.client.find(resource, name_of(like), namespace_of(like))

    async def wait_for_stable(self, resource: Resource, like: Object) -> Object | None:
        """The same, once it is not going any more: what is being deleted is as good as gone, in a while."""
        found = await self.find(resource, like)
        if found is None or not is_deleting(found):
            return found
        what, place = f"{resource.kind} {key_of(like)}", namespace_of(like)
        self.report(Step(StepResult.WAITING, self.role, what, "it is being deleted"))
        try:
            return await wait_for(self.client, resource, name_of(like), place, until=is_not_deleting)
        except TimeoutError:
            raise JoinError(f"{what} is still being deleted in the {self.role} cluster; see what holds it") from None

    async def apply(
        self, resource: Resource, wanted: Object, *, shared: bool = False, adopt: bool = False, note: str = ""
    ) -> Object:
        """Have the object as wanted, and tell.  One that lacks our marks is left as it is where it is shared.

        With `adopt` it gets them.  Without either, JoinError says that the name is taken.
        """
        what = f"{resource.kind} {key_of(wanted)}"
        try:
            current = await self.wait_for_stable(resource, wanted)
            if current is None:
                made, mark = await self.client.create(resource, with_type_meta(resource, wanted)), StepResult.CREATED
            elif adopt or has_owner_labels(current, wanted):
                made = await self.client.converge(resource, current, wanted)
                mark = StepResult.UNCHANGED if made is current else StepResult.UPDATED
            elif shared:
                made, mark = current, StepResult.UNCHANGED
            else:
                raise JoinError(
                    f"{what} in the {self.role} cluster was not made by join; delete it, or use another name"
                )
        except Forbidden as error:
            raise JoinError(
                f"{error.message}; use a kubeconfig of an administrator of the {self.role} cluster"
            ) from error
        self.report(Step(mark, self.role, what, note))
        return made

    async def remove(self, resource: Resource, obj: Object) -> None:
        """Delete the object as it was read, and tell."""
        try:
            await self.client.delete(resource, obj)
        except NotFound:
            return
        except Forbidden as error:
            raise JoinError(
                f"{error.message}; use a kubeconfig of an administrator of the {self.role} cluster"
            ) from error
        self.report(Step(StepResult.DELETED, self.role, f"{resource.kind} {key_of(obj)}"))


async def list_or_empty(cluster: Cluster, resource: Resource, labels: str) -> list[Object]:
    """The objects with these labels, in all namespaces; none where the server does not have the kind."""
    try:
        return await cluster.client.list(resource, labels=labels)
    except NotFound:
        return []


def is_not_deleting(obj: Object | None) -> bool:
    return obj is None or not is_deleting(obj)


def has_owner_labels(obj: Object, wanted: Object) -> bool:
    """Whether an object carries every mark of ownership that the wanted one does."""
    expected = labels_of(wanted)
    return all(labels_of(obj).get(key) == expected[key] for key in OWNER_LABELS if key in expected)
