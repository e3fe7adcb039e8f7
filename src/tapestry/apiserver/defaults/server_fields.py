"""Fields that the server itself sets before it stores an object, like PrepareForCreate in kube-apiserver."""

from collections.abc import Callable

import msgspec

from tapestry.apiserver.core.requests import WriteRequest
from tapestry.apiserver.core.spec_cache import memoized
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, value_at, with_value
from tapestry.kube.pods import qos_class

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
SCHEDULING_GATED = {
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


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
        return {**named, "spec": spec, "status": created_status(obj, phase="Active")}
    return {**named, "status": {**(named.get("status") or {}), "phase": "Terminating"}} if is_deleting(obj) else named


def prepare_pod(obj: Object, old: Object | None) -> Object:
    if old is not None:
        return obj
    spec = obj["spec"]
    status: Object = {"phase": "Pending", "qosClass": memoized_qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [{"type": "PodScheduled", **SCHEDULING_GATED, "lastTransitionTime": creation_time(obj)}]
    status.update(obj.get("status") or {})  # only with `unrestricted_update`
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec = {**spec, "terminationGracePeriodSeconds": 1}
    return {**obj, "spec": spec, "status": status}


memoized_qos_class = memoized(qos_class)


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
    return obj if old is not None else {**obj, "status": created_status(obj, phase="Pending")}


def prepare_persistent_volume(obj: Object, old: Object | None) -> Object:
    if old is not None:
        return obj
    status = created_status(obj, phase="Pending", lastPhaseTransitionTime=creation_time(obj))
    return {**obj, "status": status}


def prepare_daemon_set(obj: Object, old: Object | None) -> Object:
    """Count the changes of the pod template in an annotation."""
    count = int(annotations_of(old).get(TEMPLATE_GENERATION) or 0) if old is not None else 0
    changed = old is None or value_at(old, "spec", "template") != value_at(obj, "spec", "template")
    if not changed and not count:
        return obj
    return with_value(obj, ("metadata", "annotations", TEMPLATE_GENERATION), str(count + changed))


def created_status(obj: Object, **initial: str) -> Object:
    """Return the initial status of a new object, and the given one, which it has only with `unrestricted_update`."""
    return {**initial, **(obj.get("status") or {})}


def creation_time(obj: Object) -> str:
    timestamp: str = obj["metadata"]["creationTimestamp"]
    return timestamp


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
