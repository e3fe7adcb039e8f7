"""Objects that a reconciler makes for another: one each, under a name that the next pass finds again."""

from tapestry.client.client import Client
from tapestry.controller.errors import Terminal
from tapestry.controller.informer import Informer
from tapestry.kube.objects import Object, is_owned_by, key_of, owned_object


async def ensure_owned(
    client: Client, informer: Informer, owner: Object, content: Object, *, name: str | None = None
) -> Object:
    """The object that `owner` controls, as the cache has it; made from `content` where there is none.

    A second call creates nothing: while the cache lags, the name makes it a Conflict.  Raises Terminal if the name
    belongs to somebody else's object.
    """
    wanted = owned_object(owner, informer.resource, content, name=name)
    found = informer.store.get(key_of(wanted))
    if found is None:
        return await client.create(informer.resource, wanted)
    if not is_owned_by(found, owner):
        kind, key = informer.resource.kind, key_of(wanted)
        raise Terminal("NameTaken", f"{kind} {key} is not ours; rename {owner['kind']} {key_of(owner)} or delete it")
    return found
