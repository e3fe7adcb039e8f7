"""Admission: rules that need to know more than the object itself, as steps of the pipeline.

They are those of a kube-apiserver that its clients notice when they are missing: a namespace has to be there, a
priority class has a value, a pod has an account, and tolerates a node that is away for a moment.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.spec_cache import memoized, memoized_and_interned
from tapestry.apiserver.storage.store import ObjectVersion, Store
from tapestry.apiserver.verbs import SUFFIX_LETTERS, WriteRequest
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, value_at, with_value
from tapestry.kube.quantity import QuantityError, ResourceList, parse_quantity
from tapestry.kube.resources import NAMESPACES

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
DEFAULT_TOLERATIONS = {"node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300}
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
ACCOUNT_TIMEOUT = 1.0
"""How long a pod waits for the account that every namespace gets."""
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME_PREFIX = "kube-api-access-"
"""What the names of volumes with tokens begin with."""


@dataclass(frozen=True)
class NamespaceLifecycle:
    """Nothing is made in a namespace that is not there, or is going."""

    store: Store

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if request.verb == "create" and request.target.namespace and not request.target.subresource:
            self.check_namespace(request)
        return new if new is not None else old or {}

    def check_namespace(self, request: WriteRequest) -> None:
        name = request.target.namespace
        version = self.store.get("namespaces", "", name)
        if version is None:
            raise api_errors.not_found(NAMESPACES, name)
        if b'"deletionTimestamp"' in version.raw and is_deleting(msgspec.json.decode(version.raw)):
            why = f"unable to create new content in namespace {name} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {name} is being terminated",
                "field": "metadata.namespace",
            }
            raise admission_forbidden(request, why, [cause])


async def protect_immortal_namespaces(request: WriteRequest, old: Object | None, new: Object | None) -> Object:
    """Some namespaces never go."""
    if new is None and request.target.name in IMMORTAL_NAMESPACES:
        raise admission_forbidden(request, "this namespace may not be deleted")
    return new if new is not None else old or {}


def admission_forbidden(request: WriteRequest, why: str, causes: list[Object] | None = None) -> Forbidden:
    resource, name = request.target.info.resource, request.target.name or request.name
    details = api_errors.status_details(resource, name) | ({"causes": causes} if causes else {})
    return Forbidden(403, "Forbidden", f'{resource.name} "{name}" is forbidden: {why}', details=details)


PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
GLOBAL_DEFAULT_JSON = b'"globalDefault":true'
"""As it is stored: few classes have it, and pods are many."""


class PriorityAdmission:
    """A pod's priority is that of its class, and nothing that its writer chooses."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._default, self._read = "", -1
        """The default class, and the revision at which it was."""

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None or request.verb != "create":
            return old or {} if new is None else new if old is None else with_old_priority(old, new)
        spec = new.get("spec") or {}
        name = spec.get("priorityClassName", "")
        if not name and (name := self.default_class()):
            spec = {**spec, "priorityClassName": name}
        value, policy = self.class_priority(request, name) if name else (0, "PreemptLowerPriority")
        if spec.get("priority") not in (None, value):
            why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            raise admission_forbidden(
                request, why + f"priority admission controller computed {value} from the given PriorityClass name"
            )
        if spec.get("preemptionPolicy") not in (None, policy):
            asked = spec["preemptionPolicy"]
            why = f"the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; "
            raise admission_forbidden(
                request, why + f"priority admission controller computed {policy} from the given PriorityClass name"
            )
        return {**new, "spec": with_priority(spec, value, policy)}

    def default_class(self) -> str:
        """The PriorityClass of pods that name none: of those that say they are the default, the lowest."""
        changed = self.store.changed_revision(PRIORITY_CLASSES)
        if changed != self._read:
            raws = [each.raw for each in self.store.list_objects(PRIORITY_CLASSES)]
            found: list[Object] = [msgspec.json.decode(raw) for raw in raws if GLOBAL_DEFAULT_JSON in raw]
            marked = [(each.get("value", 0), name_of(each)) for each in found if each.get("globalDefault")]
            self._default, self._read = min(marked)[1] if marked else "", changed
        return self._default

    def class_priority(self, request: WriteRequest, name: str) -> tuple[int, str]:
        version = self.store.get(PRIORITY_CLASSES, "", name)
        if version is not None:
            found: Any = msgspec.json.decode(version.raw)
            return found.get("value", 0), found.get("preemptionPolicy", "PreemptLowerPriority")
        if name in SYSTEM_PRIORITIES:
            return SYSTEM_PRIORITIES[name], "PreemptLowerPriority"
        raise admission_forbidden(request, f"no PriorityClass with name {name} was found")


def with_old_priority(old: Object, new: Object) -> Object:
    """A pod that is written again without its priority keeps it: whoever wrote it may not know of it."""
    was, spec = old.get("spec") or {}, new.get("spec") or {}
    kept = {key: was[key] for key in ("priority", "preemptionPolicy") if key in was and spec.get(key) is None}
    return {**new, "spec": {**spec, **kept}} if kept else new


@memoized_and_interned
def with_priority(spec: Object, value: int, policy: str) -> Object:
    return {**spec, "priority": value, "preemptionPolicy": policy}


async def default_toleration_seconds(request: WriteRequest, old: Object | None, new: Object | None) -> Object:
    """A pod stays for five minutes on a node that is not ready or out of reach, unless it says otherwise."""
    if new is None or request.target.subresource:
        return new if new is not None else old or {}
    return {**new, "spec": with_default_tolerations(new.get("spec") or {})}


@memoized_and_interned
def with_default_tolerations(spec: Object) -> Object:
    tolerations: list[Object] = list(spec.get("tolerations") or ())
    for key, seconds in DEFAULT_TOLERATIONS.items():
        if not any(tolerates_key(each, key) for each in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
    return {**spec, "tolerations": tolerations}


def tolerates_key(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


@dataclass(frozen=True)
class ServiceAccountAdmission:
    """A pod runs as an account of its namespace, and has a token of it mounted unless somebody does not want that."""

    store: Store
    random: Random

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object | None) -> Object:
        if new is None or request.verb != "create":
            return new if new is not None else old or {}
        if MIRROR_POD_ANNOTATION in annotations_of(new):
            return new
        spec = new["spec"]
        name = spec.get("serviceAccountName") or "default"
        version = await self.find_account(request.target.namespace, name)
        if version is None:
            why = (
                f'error looking up service account {request.target.namespace}/{name}: serviceaccount "{name}" not found'
            )
            raise admission_forbidden(request, why)
        account = decoded_account(version.raw)
        spec = with_account_name(spec, name)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec = {**spec, "imagePullSecrets": account["imagePullSecrets"]}
        wanted = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        return {**new, "spec": with_token_volume(spec, self.random) if wanted else spec}

    async def find_account(self, namespace: str, name: str) -> ObjectVersion | None:
        """The account; where the namespace has just come, its default one may still be on its way."""
        found = self.store.get("serviceaccounts", namespace, name)
        if found is not None or name != "default":
            return found
        coming = self.store.watch("serviceaccounts", namespace, name)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCOUNT_TIMEOUT):
                    await coming.next_events()
        finally:
            self.store.unwatch("serviceaccounts", coming)
        return self.store.get("serviceaccounts", namespace, name)


@lru_cache(maxsize=128)
def decoded_account(raw: bytes) -> Object:
    """An account, of which many pods are."""
    found: Object = msgspec.json.decode(raw)
    return found


@memoized_and_interned
def with_account_name(spec: Object, name: str) -> Object:
    return {**spec, "serviceAccountName": name, "serviceAccount": name}


@memoized_and_interned
def with_token_volume(spec: Object, random: Random) -> Object:
    """The spec with a volume that has a token, under a name that nothing else in it has."""
    fields = ("initContainers", "containers")
    lacking = [each for field in fields for each in spec.get(field) or () if not has_token_mount(each)]
    if not lacking:
        return spec
    volumes = spec.get("volumes") or []
    had = [
        each["name"] for each in volumes if each["name"].startswith(TOKEN_VOLUME_PREFIX)
    ]  # a webhook added a container
    volume = had[0] if had else TOKEN_VOLUME_PREFIX + "".join(random.choices(SUFFIX_LETTERS, k=5))
    mount = {"name": volume, "readOnly": True, "mountPath": TOKEN_MOUNT_PATH}
    found = {**spec, "volumes": volumes if had else [*volumes, token_volume(volume)]}
    for field in fields:
        if spec.get(field):
            found[field] = [
                each if has_token_mount(each) else {**each, "volumeMounts": [*(each.get("volumeMounts") or ()), mount]}
                for each in spec[field]
            ]
    return found


def has_token_mount(container: Object) -> bool:
    return any(each.get("mountPath") == TOKEN_MOUNT_PATH for each in container.get("volumeMounts") or ())


def token_volume(name: str) -> Object:
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
            ],
        },
    }


# -- what a kind makes of itself


async def prepare_for_write(request: WriteRequest, old: Object | None, new: Object | None) -> Object:
    """What some kinds add to their objects when these are made."""
    if new is None:
        return old or {}
    change = PREPARE_BY_RESOURCE.get(request.target.info.storage)
    return change(new, old) if change is not None else new


def prepare_namespace(obj: Object, old: Object | None) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name_of(obj)}
    found = {**obj, "metadata": {**obj["metadata"], "labels": labels}}
    if old is None:
        finalizers = value_at(obj, "spec", "finalizers", default=[])
        spec = {**(obj.get("spec") or {}), "finalizers": list(dict.fromkeys([*finalizers, "kubernetes"]))}
        return {**found, "spec": spec, "status": {"phase": "Active"}}
    return {**found, "status": {**(found.get("status") or {}), "phase": "Terminating"}} if is_deleting(obj) else found


def prepare_pod(obj: Object, old: Object | None) -> Object:
    if old is not None:
        return obj
    spec = obj["spec"]
    status: Object = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [{"type": "PodScheduled", **SCHEDULING_GATED, "lastTransitionTime": creation_time(obj)}]
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec = {**spec, "terminationGracePeriodSeconds": 1}
    return {**obj, "spec": spec, "status": status}


SCHEDULING_GATED = {
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def creation_time(obj: Object) -> str:
    found: str = obj["metadata"]["creationTimestamp"]
    return found


@memoized
def qos_class(spec: Object) -> str:
    """How a pod is treated when its node runs out: by whether it says what it needs, and means it.

    Amounts of zero count as none.  Resources of the whole pod count instead of those of its containers.
    """
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    asked = [spec["resources"]] if spec.get("resources") else [each.get("resources") or {} for each in containers]
    requests, limits = ([positive_amounts(each.get(kind)) for each in asked] for kind in ("requests", "limits"))
    if not any(requests) and not any(limits):
        return "BestEffort"
    is_limited = all(len(each) == len(COMPUTE_RESOURCES) for each in limits)
    return "Guaranteed" if is_limited and sum(requests, ResourceList()) == sum(limits, ResourceList()) else "Burstable"


COMPUTE_RESOURCES = ("cpu", "memory")


def positive_amounts(amounts: Object | None) -> ResourceList:
    """The amounts of cpu and memory that are above zero; what is no quantity is refused elsewhere."""
    found = ResourceList()
    for resource in COMPUTE_RESOURCES:
        with suppress(QuantityError):
            if amount := parse_quantity((amounts or {}).get(resource, "0")):
                found[resource] = amount
    return found


def prepare_job(obj: Object, old: Object | None) -> Object:
    """A job selects its own pods, by a label that no other has."""
    if old is not None or value_at(obj, "spec", "manualSelector"):
        return obj
    uid, name = obj["metadata"]["uid"], name_of(obj)
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template = obj["spec"].get("template") or {}
    metadata = template.get("metadata") or {}
    made = {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}
    chosen = obj["spec"].get("selector") or {}
    own = {**(chosen.get("matchLabels") or {}), "batch.kubernetes.io/controller-uid": uid}
    selector = {**chosen, "matchLabels": own}
    found = {**obj, "spec": {**obj["spec"], "selector": selector, "template": made}}
    return found if labels_of(obj) else with_value(found, ("metadata", "labels"), made["metadata"]["labels"])


def prepare_claim(obj: Object, old: Object | None) -> Object:
    return obj if old is not None else {**obj, "status": {"phase": "Pending"}}


def prepare_persistent_volume(obj: Object, old: Object | None) -> Object:
    if old is not None:
        return obj
    return {**obj, "status": {"phase": "Pending", "lastPhaseTransitionTime": creation_time(obj)}}


def prepare_daemon_set(obj: Object, old: Object | None) -> Object:
    """An annotation counts the changes of what its pods look like."""
    count = int(annotations_of(old).get(TEMPLATE_GENERATION) or 0) if old is not None else 0
    changed = old is None or value_at(old, "spec", "template") != value_at(obj, "spec", "template")
    if not changed and not count:
        return obj
    return with_value(obj, ("metadata", "annotations", TEMPLATE_GENERATION), str(count + changed))


PREPARE_BY_RESOURCE: dict[str, Callable[[Object, Object | None], Object]] = {
    "namespaces": prepare_namespace,
    "pods": prepare_pod,
    "jobs.batch": prepare_job,
    "persistentvolumeclaims": prepare_claim,
    "persistentvolumes": prepare_persistent_volume,
    "daemonsets.apps": prepare_daemon_set,
}


async def merge_string_data(_: WriteRequest, old: Object | None, new: Object | None) -> Object:
    """What a Secret has in plain text goes where everything else of it is."""
    if new is None or "stringData" not in new:
        return new if new is not None else old or {}
    data = {**(new.get("data") or {}), **{key: base64_text(text) for key, text in new["stringData"].items()}}
    return {**{key: value for key, value in new.items() if key != "stringData"}, "data": data}


def base64_text(text: str) -> str:
    found: str = msgspec.json.decode(msgspec.json.encode(text.encode()))  # bytes are base64 in JSON
    return found
