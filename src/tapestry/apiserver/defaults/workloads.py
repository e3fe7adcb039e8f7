"""Controllers of pods: Deployments, Jobs and their like."""

from tapestry.apiserver.defaults.field_updates import map_items, with_field
from tapestry.apiserver.defaults.other_kinds import default_claim
from tapestry.apiserver.defaults.pods import default_template
from tapestry.kube.objects import Object, labels_of, value_at, with_value


def default_deployment(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}, **found}
        return with_field(with_field(found, "strategy", default_strategy), "template", default_template)

    return with_field(obj, "spec", spec)


def default_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {
        **found,
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%", **(found.get("rollingUpdate") or {})},
    }


def default_replica_set(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field({"replicas": 1, **spec}, "template", default_template))


def default_replication_controller(obj: Object) -> Object:
    """It selects, and is labelled, by what its pods are labelled with."""
    labels = value_at(obj, "spec", "template", "metadata", "labels", default={})
    if labels and not labels_of(obj):
        obj = with_value(obj, ("metadata", "labels"), labels)

    def spec(found: Object) -> Object:
        found = {"replicas": 1, **({"selector": labels} if labels else {}), **found}
        return with_field(found, "template", default_template)

    return with_field(obj, "spec", spec)


def default_stateful_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            **found,
        }
        found = with_field(found, "updateStrategy", default_stateful_strategy)
        found = with_field(found, "volumeClaimTemplates", map_items(default_claim_template))
        return with_field(found, "template", default_template)

    return with_field(obj, "spec", spec)


def default_claim_template(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **default_claim(obj)}


def default_stateful_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"partition": 0, **(found.get("rollingUpdate") or {})}}


def default_daemon_set(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = with_field(
            {"revisionHistoryLimit": 10, "updateStrategy": {}, **found}, "updateStrategy", default_daemon_strategy
        )
        return with_field(found, "template", default_template)

    return with_field(obj, "spec", spec)


def default_daemon_strategy(obj: Object) -> Object:
    found = {"type": "RollingUpdate", **obj}
    if found["type"] != "RollingUpdate":
        return found
    return {**found, "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0, **(found.get("rollingUpdate") or {})}}


def default_job(obj: Object) -> Object:
    return with_field(obj, "spec", default_job_spec)


def default_job_spec(spec: Object) -> Object:
    found = {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False, **spec}
    if "completions" not in spec and "parallelism" not in spec:
        found |= {"completions": 1, "parallelism": 1}
    found.setdefault("parallelism", 1)
    if "podReplacementPolicy" not in found:
        found["podReplacementPolicy"] = "Failed" if found.get("podFailurePolicy") else "TerminatingOrFailed"
    return with_field(found, "template", default_template)


def default_cron_job(obj: Object) -> Object:
    def spec(found: Object) -> Object:
        found = {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
            **found,
        }
        return with_field(found, "jobTemplate", lambda made: with_field(made, "spec", default_job_template_spec))

    return with_field(obj, "spec", spec)


def default_job_template_spec(spec: Object) -> Object:
    """A job that is yet to be made gets its own defaults then; its pods get theirs here."""
    return with_field(spec, "template", default_template)
