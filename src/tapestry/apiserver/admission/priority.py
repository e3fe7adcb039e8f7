"""Priority admission: the priority of a pod from its PriorityClass."""

from typing import Any

import msgspec

from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.spec_cache import memoized_and_interned
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, name_of

PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
GLOBAL_DEFAULT_JSON = b'"globalDefault":true'
"""The encoded field, to decode only the few classes that have it."""


class PriorityAdmission:
    """Set a pod's priority from its PriorityClass and reject any other value."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._default, self._read = "", -1
        """The default class, and the revision of the classes at which it was read."""

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if request.verb != "create":
            return new if old is None else with_old_priority(old, new)
        spec = new.get("spec") or {}
        name = spec.get("priorityClassName", "")
        if not name and (name := self.default_class()):
            spec = {**spec, "priorityClassName": name}
        value, policy = self.class_priority(request, name) if name else (0, "PreemptLowerPriority")
        if spec.get("priority") not in (None, value):
            reason = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            raise admission_forbidden(
                request, reason + f"priority admission controller computed {value} from the given PriorityClass name"
            )
        if spec.get("preemptionPolicy") not in (None, policy):
            preemption = spec["preemptionPolicy"]
            reason = f"the string value of PreemptionPolicy ({preemption}) must not be provided in pod spec; "
            raise admission_forbidden(
                request, reason + f"priority admission controller computed {policy} from the given PriorityClass name"
            )
        return {**new, "spec": with_priority(spec, value, policy)}

    def default_class(self) -> str:
        """The PriorityClass of pods that name none: the lowest class that is marked as the default."""
        changed = self.store.changed_revision(PRIORITY_CLASSES)
        if changed != self._read:
            raws = [each.raw for each in self.store.list_objects(PRIORITY_CLASSES)]
            classes: list[Object] = [msgspec.json.decode(raw) for raw in raws if GLOBAL_DEFAULT_JSON in raw]
            defaults = [(each.get("value", 0), name_of(each)) for each in classes if each.get("globalDefault")]
            self._default, self._read = min(defaults)[1] if defaults else "", changed
        return self._default

    def class_priority(self, request: WriteRequest, name: str) -> tuple[int, str]:
        version = self.store.get(PRIORITY_CLASSES, "", name)
        if version is not None:
            priority_class: Any = msgspec.json.decode(version.raw)
            return priority_class.get("value", 0), priority_class.get("preemptionPolicy", "PreemptLowerPriority")
        if name in SYSTEM_PRIORITIES:
            return SYSTEM_PRIORITIES[name], "PreemptLowerPriority"
        raise admission_forbidden(request, f"no PriorityClass with name {name} was found")


def with_old_priority(old: Object, new: Object) -> Object:
    """Keep the priority of a pod if an update omits it, because the client may not know the field."""
    before, spec = old.get("spec") or {}, new.get("spec") or {}
    missing = {key: before[key] for key in ("priority", "preemptionPolicy") if key in before and spec.get(key) is None}
    return {**new, "spec": {**spec, **missing}} if missing else new


@memoized_and_interned
def with_priority(spec: Object, value: int, policy: str) -> Object:
    return {**spec, "priority": value, "preemptionPolicy": policy}
