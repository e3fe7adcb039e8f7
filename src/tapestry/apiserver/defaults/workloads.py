"""Controllers of pods: Deployments, Jobs and their like."""

from tapestry.apiserver.defaults.filling import each, within
from tapestry.apiserver.defaults.others import claim
from tapestry.apiserver.defaults.pods import template
from tapestry.kube.objects import Object, labels_of, value_at, with_value


def deployment(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}, **found}
        return within(within(found, "strategy", strategy), "template", template)

    return within(obj, "spec", spec)


def strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {
        **found,
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%", **(found.get("rollingUpdate") or {})},
    }


def replica_set(obj: Object) -> Object:
    return within(obj, "spec", lambda spec: within({"replicas": 1, **spec}, "template", template))


def replication_controller(obj: Object) -> Object:
    """It selects, and is labelled, by what its pods are labelled with."""
    labels = value_at(obj, "spec", "template", "metadata", "labels", default={})
    if labels and not labels_of(obj):
        obj = with_value(obj, ("metadata", "labels"), labels)

    def spec(found: Object) -> Object:
        found = {"replicas": 1, **({"selector": labels} if labels else {}), **found}
        return within(found, "template", template)

    return within(obj, "spec", spec)


def stateful_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            **found,
        }
        found = within(found, "updateStrategy", stateful_strategy)
        found = within(found, "volumeClaimTemplates", each(claim_template))
        return within(found, "template", template)

    return within(obj, "spec", spec)


def claim_template(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim(obj)}


def stateful_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"partition": 0, **(found.get("rollingUpdate") or {})}}


def daemon_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = within({"revisionHistoryLimit": 10, "updateStrategy": {}, **found}, "updateStrategy", daemon_strategy)
        return within(found, "template", template)

    return within(obj, "spec", spec)


def daemon_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0, **(found.get("rollingUpdate") or {})}}


def job(obj: Object) -> Object:
    return within(obj, "spec", job_spec)


def job_spec(spec: Object) -> Object:
    found = {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False, **spec}
    if "completions" not in spec and "parallelism" not in spec:
        found |= {"completions": 1, "parallelism": 1}
    found.setdefault("parallelism", 1)
    if "podReplacementPolicy" not in found:
        found["podReplacementPolicy"] = "Failed" if found.get("podFailurePolicy") else "TerminatingOrFailed"
    return within(found, "template", template)


def cron_job(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
            **found,
        }
        return within(found, "jobTemplate", lambda made: within(made, "spec", cron_spec))

    return within(obj, "spec", spec)


def cron_spec(spec: Object) -> Object:
    """A job that is yet to be made gets its own defaults then; its pods get theirs here."""
    return within(spec, "template", template)
