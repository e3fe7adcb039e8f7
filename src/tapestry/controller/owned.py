"""Creation of objects that are owned by another object, under deterministic names."""

from tapestry.client.client import Client
from tapestry.controller.errors import Terminal
from tapestry.controller.informer import Informer
from tapestry.kube.objects import Object, is_owned_by, key_of, owned_object


async def ensure_owned(
    client: Client, informer: Informer, owner: Object, content: Object, *, name: str | None = None
) -> Object:
    """Return the cached object that `owner` controls, created from `content` if missing.

    A second call creates nothing: while the cache lags, the name leads to a Conflict.  Raise Terminal if an object of
    another owner has the name.
    """
    desired = owned_object(owner, informer.resource, content, name=name)
    existing = informer.store.get(key_of(desired))
    if existing is None:
        return await client.create(informer.resource, desired)
    if not is_owned_by(existing, owner):
        kind, key = informer.resource.kind, key_of(desired)
        raise Terminal("NameTaken", f"{kind} {key} has another owner; rename or delete {owner['kind']} {key_of(owner)}")
    return existing
