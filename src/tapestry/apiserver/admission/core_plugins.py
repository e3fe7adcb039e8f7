"""Built-in admission plugins and the preparation of objects for storage, as steps of the pipeline.

They are the plugins of kube-apiserver that clients rely on: NamespaceLifecycle, Priority, ServiceAccount and
DefaultTolerationSeconds.
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
"""Seconds that a new pod waits for the default service account of its namespace."""
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME_PREFIX = "kube-api-access-"
"""Prefix of the names of token volumes."""


@dataclass(frozen=True)
class NamespaceLifecycle:
    """Rejects creates in a namespace that does not exist or is being deleted."""

    store: Store

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb == "create" and request.target.namespace and not request.target.subresource:
            self.check_namespace(request)
        return new

    async def validate_delete(self, request: WriteRequest, _: Object) -> None:
        """Reject the deletion of namespaces that must always exist."""
        if request.target.info.storage == "namespaces" and request.target.name in IMMORTAL_NAMESPACES:
            raise admission_forbidden(request, "this namespace may not be deleted")

    def check_namespace(self, request: WriteRequest) -> None:
        name = request.target.namespace
        version = self.store.get("namespaces", "", name)
        if version is None:
            raise api_errors.not_found(NAMESPACES, name)
        if b'"deletionTimestamp"' in version.raw and is_deleting(msgspec.json.decode(version.raw)):
            reason = f"unable to create new content in namespace {name} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {name} is being terminated",
                "field": "metadata.namespace",
            }
            raise admission_forbidden(request, reason, [cause])


def admission_forbidden(request: WriteRequest, reason: str, causes: list[Object] | None = None) -> Forbidden:
    resource, name = request.target.info.resource, request.target.name or request.name
    details = api_errors.status_details(resource, name) | ({"causes": causes} if causes else {})
    return Forbidden(403, "Forbidden", f'{resource.name} "{name}" is forbidden: {reason}', details=details)


PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
GLOBAL_DEFAULT_JSON = b'"globalDefault":true'
"""The encoded field, to decode only the few classes that have it."""


class PriorityAdmission:
    """Sets a pod's priority from its PriorityClass and rejects any other value."""

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


async def default_toleration_seconds(request: WriteRequest, _: Object | None, new: Object) -> Object:
    """Tolerate not-ready and unreachable nodes for five minutes unless the pod has its own tolerations."""
    if request.target.subresource:
        return new
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
    """Sets a pod's service account and mounts its token unless the pod or the account opts out."""

    store: Store
    random: Random

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create" or MIRROR_POD_ANNOTATION in annotations_of(new):
            return new
        spec = new["spec"]
        name = spec.get("serviceAccountName") or "default"
        version = await self.find_account(request.target.namespace, name)
        if version is None:
            reason = (
                f'error looking up service account {request.target.namespace}/{name}: serviceaccount "{name}" not found'
            )
            raise admission_forbidden(request, reason)
        account = decoded_account(version.raw)
        spec = with_account_name(spec, name)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec = {**spec, "imagePullSecrets": account["imagePullSecrets"]}
        automount = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        return {**new, "spec": with_token_volume(spec, self.random) if automount else spec}

    async def find_account(self, namespace: str, name: str) -> ObjectVersion | None:
        """Return the account. Wait for the default account, which is created shortly after its namespace."""
        account = self.store.get("serviceaccounts", namespace, name)
        if account is not None or name != "default":
            return account
        subscription = self.store.watch("serviceaccounts", namespace, name)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCOUNT_TIMEOUT):
                    await subscription.next_events()
        finally:
            self.store.unwatch("serviceaccounts", subscription)
        return self.store.get("serviceaccounts", namespace, name)


@lru_cache(maxsize=128)
def decoded_account(raw: bytes) -> Object:
    """Decode an account. The result is cached, because many pods share an account."""
    account: Object = msgspec.json.decode(raw)
    return account


@memoized_and_interned
def with_account_name(spec: Object, name: str) -> Object:
    return {**spec, "serviceAccountName": name, "serviceAccount": name}


@memoized_and_interned
def with_token_volume(spec: Object, random: Random) -> Object:
    """Return the spec with a token volume, mounted in all containers that have no token mount."""
    fields = ("initContainers", "containers")
    unmounted = [each for field in fields for each in spec.get(field) or () if not has_token_mount(each)]
    if not unmounted:
        return spec
    volumes = spec.get("volumes") or []
    existing = [
        each["name"] for each in volumes if each["name"].startswith(TOKEN_VOLUME_PREFIX)
    ]  # if a webhook added a container
    volume = existing[0] if existing else TOKEN_VOLUME_PREFIX + "".join(random.choices(SUFFIX_LETTERS, k=5))
    mount = {"name": volume, "readOnly": True, "mountPath": TOKEN_MOUNT_PATH}
    result = {**spec, "volumes": volumes if existing else [*volumes, token_volume(volume)]}
    for field in fields:
        if spec.get(field):
            result[field] = [
                each if has_token_mount(each) else {**each, "volumeMounts": [*(each.get("volumeMounts") or ()), mount]}
                for each in spec[field]
            ]
    return result


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


# -- preparation of objects for storage, as in the strategies of kube-apiserver


async def prepare_for_write(request: WriteRequest, old: Object | None, new: Object) -> Object:
    """Set the fields that the server manages for some kinds."""
    prepare = PREPARE_BY_RESOURCE.get(request.target.info.storage)
    return prepare(new, old) if prepare is not None else new


def prepare_namespace(obj: Object, old: Object | None) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": name_of(obj)}
    named = {**obj, "metadata": {**obj["metadata"], "labels": labels}}
    if old is None:
        finalizers = value_at(obj, "spec", "finalizers", default=[])
        spec = {**(obj.get("spec") or {}), "finalizers": list(dict.fromkeys([*finalizers, "kubernetes"]))}
        return {**named, "spec": spec, "status": {"phase": "Active"}}
    return {**named, "status": {**(named.get("status") or {}), "phase": "Terminating"}} if is_deleting(obj) else named


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
    timestamp: str = obj["metadata"]["creationTimestamp"]
    return timestamp


@memoized
def qos_class(spec: Object) -> str:
    """The quality of service class of a pod, from the requests and limits of its containers.

    Zero amounts do not count. Pod-level resources replace those of the containers.
    """
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    resources = [spec["resources"]] if spec.get("resources") else [item.get("resources") or {} for item in containers]
    requests, limits = ([positive_amounts(item.get(kind)) for item in resources] for kind in ("requests", "limits"))
    if not any(requests) and not any(limits):
        return "BestEffort"
    is_limited = all(len(item) == len(COMPUTE_RESOURCES) for item in limits)
    return "Guaranteed" if is_limited and sum(requests, ResourceList()) == sum(limits, ResourceList()) else "Burstable"


COMPUTE_RESOURCES = ("cpu", "memory")


def positive_amounts(amounts: Object | None) -> ResourceList:
    """The amounts of cpu and memory above zero. Validation rejects invalid quantities elsewhere."""
    result = ResourceList()
    for resource in COMPUTE_RESOURCES:
        with suppress(QuantityError):
            if amount := parse_quantity((amounts or {}).get(resource, "0")):
                result[resource] = amount
    return result


def prepare_job(obj: Object, old: Object | None) -> Object:
    """Give a job a selector and labels with its own uid."""
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
    labeled_template = {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}
    given = obj["spec"].get("selector") or {}
    match_labels = {**(given.get("matchLabels") or {}), "batch.kubernetes.io/controller-uid": uid}
    selector = {**given, "matchLabels": match_labels}
    job = {**obj, "spec": {**obj["spec"], "selector": selector, "template": labeled_template}}
    return job if labels_of(obj) else with_value(job, ("metadata", "labels"), labeled_template["metadata"]["labels"])


def prepare_claim(obj: Object, old: Object | None) -> Object:
    return obj if old is not None else {**obj, "status": {"phase": "Pending"}}


def prepare_persistent_volume(obj: Object, old: Object | None) -> Object:
    if old is not None:
        return obj
    return {**obj, "status": {"phase": "Pending", "lastPhaseTransitionTime": creation_time(obj)}}


def prepare_daemon_set(obj: Object, old: Object | None) -> Object:
    """Count the changes of the pod template in an annotation."""
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


async def merge_string_data(_: WriteRequest, __: Object | None, new: Object) -> Object:
    """Merge a Secret's `stringData` into its `data`."""
    if "stringData" not in new:
        return new
    data = {**(new.get("data") or {}), **{key: base64_text(text) for key, text in new["stringData"].items()}}
    return {**{key: value for key, value in new.items() if key != "stringData"}, "data": data}


def base64_text(text: str) -> str:
    encoded: str = msgspec.json.decode(msgspec.json.encode(text.encode()))  # msgspec encodes bytes as base64
    return encoded
