"""Defaults of workloads: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs."""

from tapestry.apiserver.defaults.field_updates import map_items, with_field
from tapestry.apiserver.defaults.other_kinds import default_claim
from tapestry.apiserver.defaults.pods import default_template
from tapestry.kube.objects import Object, labels_of, value_at, with_value


def default_deployment(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}, **spec}
        return with_field(with_field(spec, "strategy", default_strategy), "template", default_template)

    return with_field(obj, "spec", default_spec)


def default_strategy(obj: Object) -> Object:
    strategy = {"type": "RollingUpdate", **obj}
    if strategy["type"] != "RollingUpdate":
        return strategy
    return {
        **strategy,
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%", **(strategy.get("rollingUpdate") or {})},
    }


def default_replica_set(obj: Object) -> Object:
    return with_field(obj, "spec", lambda spec: with_field({"replicas": 1, **spec}, "template", default_template))


def default_replication_controller(obj: Object) -> Object:
    """Default the selector and the labels to the labels of the pod template."""
    labels = value_at(obj, "spec", "template", "metadata", "labels", default={})
    if labels and not labels_of(obj):
        obj = with_value(obj, ("metadata", "labels"), labels)

    def default_spec(spec: Object) -> Object:
        spec = {"replicas": 1, **({"selector": labels} if labels else {}), **spec}
        return with_field(spec, "template", default_template)

    return with_field(obj, "spec", default_spec)


def default_stateful_set(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = {
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {},
            "persistentVolumeClaimRetentionPolicy": {},
            **spec,
        }
        spec = with_field(spec, "persistentVolumeClaimRetentionPolicy", default_retention_policy)
        spec = with_field(spec, "updateStrategy", default_stateful_strategy)
        spec = with_field(spec, "volumeClaimTemplates", map_items(default_claim_template))
        return with_field(spec, "template", default_template)

    return with_field(obj, "spec", default_spec)


def default_retention_policy(policy: Object) -> Object:
    return {**policy, **{each: policy.get(each) or "Retain" for each in ("whenDeleted", "whenScaled")}}


def default_claim_template(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **default_claim(obj)}


def default_stateful_strategy(obj: Object) -> Object:
    strategy = {"type": "RollingUpdate", **obj}
    if strategy["type"] != "RollingUpdate":
        return strategy
    return {**strategy, "rollingUpdate": {"partition": 0, **(strategy.get("rollingUpdate") or {})}}


def default_daemon_set(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = with_field(
            {"revisionHistoryLimit": 10, "updateStrategy": {}, **spec}, "updateStrategy", default_daemon_strategy
        )
        return with_field(spec, "template", default_template)

    return with_field(obj, "spec", default_spec)


def default_daemon_strategy(obj: Object) -> Object:
    strategy = {"type": "RollingUpdate", **obj}
    if strategy["type"] != "RollingUpdate":
        return strategy
    return {**strategy, "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0, **(strategy.get("rollingUpdate") or {})}}


def default_job(obj: Object) -> Object:
    return with_field(obj, "spec", default_job_spec)


def default_job_spec(spec: Object) -> Object:
    job_spec = {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False, **spec}
    if "completions" not in spec and "parallelism" not in spec:
        job_spec |= {"completions": 1, "parallelism": 1}
    job_spec.setdefault("parallelism", 1)
    if "podReplacementPolicy" not in job_spec:
        job_spec["podReplacementPolicy"] = "Failed" if job_spec.get("podFailurePolicy") else "TerminatingOrFailed"
    return with_field(job_spec, "template", default_template)


def default_cron_job(obj: Object) -> Object:
    def default_spec(spec: Object) -> Object:
        spec = {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
            **spec,
        }
        return with_field(spec, "jobTemplate", lambda job: with_field(job, "spec", default_job_template_spec))

    return with_field(obj, "spec", default_spec)


def default_job_template_spec(spec: Object) -> Object:
    """Set only the defaults of the pod template. The job gets its own defaults when it is created."""
    return with_field(spec, "template", default_template)
