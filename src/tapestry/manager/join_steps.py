"""Steps of `tapestry join` and `unjoin`: apply or delete one object and report the result."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tapestry.apis import keys
from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, namespace_of, uid_of, with_type_meta
from tapestry.kube.resources import NAMESPACES, Resource

OWNER_LABELS = (keys.MANAGED_BY, keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING)
"""Labels that identify the owner of an object."""


class JoinError(Exception):
    """An error of `join` or `unjoin` with its remedy, as one line for users."""


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
    """The result of one step in one of the clusters."""

    result: StepResult
    cluster: str
    subject: str
    note: str = ""


@dataclass(frozen=True)
class Cluster:
    """One of two clusters, with administrator access."""

    role: str
    """`virtual` or `physical`; for tenants `management` or `host`."""
    client: Client
    report: Callable[[Step], None]

    async def identity(self) -> str:
        """Return the UID of kube-system, which identifies a cluster."""
        return uid_of(await self.client.get(NAMESPACES, IDENTITY_NAMESPACE))

    async def find(self, resource: Resource, like: Object) -> Object | None:
        return await self.client.find(resource, name_of(like), namespace_of(like))

    async def wait_for_stable(self, resource: Resource, like: Object) -> Object | None:
        """Return the object with the name of `like`, or None.  If it is terminating, wait until it is deleted."""
        current = await self.find(resource, like)
        if current is None or not is_deleting(current):
            return current
        subject, place = f"{resource.kind} {key_of(like)}", namespace_of(like)
        self.report(Step(StepResult.WAITING, self.role, subject, "it is being deleted"))
        try:
            return await wait_for(self.client, resource, name_of(like), place, until=is_not_deleting)
        except TimeoutError:
            raise JoinError(f"{subject} still exists in the {self.role} cluster; check its finalizers") from None

    async def apply(
        self, resource: Resource, desired: Object, *, shared: bool = False, adopt: bool = False, note: str = ""
    ) -> Object:
        """Create or update the object and report it.  A `shared` object without our labels is left unchanged.

        With `adopt`, it gets the labels.  Otherwise raise JoinError: the name is taken.
        """
        subject = f"{resource.kind} {key_of(desired)}"
        try:
            current = await self.wait_for_stable(resource, desired)
            if current is None:
                applied = await self.client.create(resource, with_type_meta(resource, desired))
                result = StepResult.CREATED
            elif adopt or has_owner_labels(current, desired):
                applied = await self.client.converge(resource, current, desired)
                result = StepResult.UNCHANGED if applied is current else StepResult.UPDATED
            elif shared:
                applied, result = current, StepResult.UNCHANGED
            else:
                raise JoinError(
                    f"{subject} in the {self.role} cluster was not created by Tapestry; delete it, or use another name"
                )
        except Forbidden as error:
            raise JoinError(
                f"{error.message}; use a kubeconfig of an administrator of the {self.role} cluster"
            ) from error
        self.report(Step(result, self.role, subject, note))
        return applied

    async def remove(self, resource: Resource, obj: Object) -> None:
        """Delete the object as it was read, and report it."""
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
    """Return the objects with these labels in all namespaces, or none if the server does not serve the kind."""
    try:
        return await cluster.client.list(resource, labels=labels)
    except NotFound:
        return []


def is_not_deleting(obj: Object | None) -> bool:
    return obj is None or not is_deleting(obj)


def has_owner_labels(obj: Object, desired: Object) -> bool:
    expected = labels_of(desired)
    return all(labels_of(obj).get(key) == expected[key] for key in OWNER_LABELS if key in expected)
