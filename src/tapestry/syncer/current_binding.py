"""Current state of a syncer's binding, with the limits that the owner sets on its mount namespace."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from msgspec import structs

from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.mount_labels import enforced_level, stricter_level
from tapestry.controller import ObjectCache
from tapestry.kube.objects import Object, is_deleting
from tapestry.syncer.identity import Identity

T = TypeVar("T")


class IdentityMemo(Generic[T]):
    """The last computed value. Cached objects are never modified, so the same ones give the same value."""

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], T] | None = None

    def get(self, sources: tuple[object, ...], compute: Callable[[], T]) -> T:
        """Return `compute()`, or the known value if `sources` are the same objects as last time.

        A new value that equals the known one is not returned; the known object is. Our own status writes change the
        sources every second, and callers need not recompute what they derived from the value.
        """
        known = self._last
        if known is None or list(map(id, known[0])) != list(map(id, sources)):
            computed = compute()
            known = self._last = (sources, known[1] if known is not None and known[1] == computed else computed)
        return known[1]


@dataclass(frozen=True)
class CurrentBinding:
    """The cached binding, as long as it is the one that the syncer was started for."""

    identity: Identity
    bindings: ObjectCache
    mount_namespaces: ObjectCache
    memo: IdentityMemo[Binding] = field(default_factory=IdentityMemo)

    def object(self) -> Object | None:
        obj = self.bindings.store.get(self.identity.binding_name)
        return obj if obj is not None and obj["metadata"]["uid"] == self.identity.binding_uid else None

    def get(self) -> Binding | None:
        """Return the current binding; None if it is deleted or another object has its name. Raises InvalidSpec."""
        obj, mount = self.object(), self.mount_namespace()
        return self.memo.get((obj, mount), lambda: self.effective_binding(obj, mount)) if obj else None

    def effective_binding(self, obj: Object, mount: Object | None) -> Binding:
        """Return the binding with the stricter Pod Security level of its own and the owner's."""
        binding = binding_of(obj, self.identity.virtual_cluster_uid, self.identity.manager_namespace)
        level = stricter_level(binding.spec.pod_security, enforced_level(mount))
        if level == binding.spec.pod_security:
            return binding
        return replace(binding, spec=structs.replace(binding.spec, pod_security=level))

    def mount_namespace(self) -> Object | None:
        return self.mount_namespaces.store.get(self.identity.mount_namespace)

    @property
    def is_unbinding(self) -> bool:
        obj = self.object()
        return obj is None or is_deleting(obj)
