"""Validation of Deployments, ReplicaSets, ReplicationControllers, StatefulSets and DaemonSets."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    forbidden_field,
    format_validator,
    invalid_value,
    required_value,
    struct_validator,
    unsupported_value,
    validate_immutable_field,
    validate_nonnegative,
)
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.apiserver.validation import pods
from tapestry.apiserver.validation.storage import validate_claim_spec
from tapestry.kube.objects import Object, value_at
from tapestry.kube.selectors import SelectorError
from tapestry.kube.selectors import label_selector as selector_of

SELECTOR_MISMATCH_MESSAGE = "`selector` does not match template `labels`"
STATEFUL_SET_MUTABLE_FIELDS = (
    *("replicas", "template", "updateStrategy", "minReadySeconds", "ordinals", "revisionHistoryLimit"),
    "persistentVolumeClaimRetentionPolicy",
)
STATEFUL_SET_UPDATE_MESSAGE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)

# -- numbers or percentages


def validate_int_or_percent(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, str):
        yield from format_validator(names.percent_errors)(value, path)
    else:
        yield from validate_nonnegative(value, path)


def validate_at_most_100_percent(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, str) and not names.percent_errors(value) and float(value[:-1]) > 100:
        yield invalid_value(path, value, "must not be greater than 100%")


def int_or_percent_value(value: Any) -> int:
    if isinstance(value, str):
        return int(min(float(value[:-1]), 2**31)) if not names.percent_errors(value) else 0
    return value or 0


# -- selectors and templates


def selector_validator(noun: str) -> Validator:
    """Return a validator for a spec whose selector must be set, not empty and match the pod template."""

    def faults(spec: Any, path: str) -> Iterator[Fault]:
        selector = spec.get("selector")
        if selector is None:
            yield required_value(f"{path}.selector")
            return
        yield from validate_label_selector(selector, f"{path}.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            yield invalid_value(f"{path}.selector", selector, f"empty selector is invalid for {noun}")

    return faults


def validate_selector_matches_template(spec: Any, path: str) -> Iterator[Fault]:
    """Yield a fault if the selector does not match the labels of the pod template."""
    labels = value_at(spec, "template", "metadata", "labels", default={})
    try:
        is_match = spec.get("selector") is not None and selector_of(spec["selector"]).matches(labels)
    except SelectorError:
        yield invalid_value(f"{path}.selector", spec["selector"], "invalid label selector")
        return
    if not is_match:
        yield invalid_value(f"{path}.template.metadata.labels", labels or None, SELECTOR_MISMATCH_MESSAGE)


def restart_always_validator(noun: str) -> Validator:
    """Return a validator for a spec whose pods must have the restart policy Always."""

    def faults(spec: Any, path: str) -> Iterator[Fault]:
        pod_spec = value_at(spec, "template", "spec", default={})
        policy = pod_spec.get("restartPolicy", "")
        if policy != "Always":
            yield unsupported_value(f"{path}.template.spec.restartPolicy", policy, ("Always",))
        if pod_spec.get("activeDeadlineSeconds") is not None:
            msg = f"activeDeadlineSeconds in {noun} is not Supported"
            yield forbidden_field(f"{path}.template.spec.activeDeadlineSeconds", msg)

    return faults


def validate_template_field(spec: Any, path: str) -> Iterator[Fault]:
    return pods.validate_pod_template(spec.get("template") or {}, f"{path}.template")


# -- deployments and replica sets


def validate_deployment_rolling_update(value: Any, path: str) -> Iterator[Fault]:
    unavailable, surge = value.get("maxUnavailable", 0), value.get("maxSurge", 0)
    yield from validate_int_or_percent(unavailable, f"{path}.maxUnavailable")
    yield from validate_int_or_percent(surge, f"{path}.maxSurge")
    if not int_or_percent_value(unavailable) and not int_or_percent_value(surge):
        yield invalid_value(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0")
    yield from validate_at_most_100_percent(unavailable, f"{path}.maxUnavailable")


def validate_deployment_strategy(value: Any, path: str) -> Iterator[Fault]:
    match value.get("type"):
        case "Recreate":
            if value.get("rollingUpdate") is not None:
                yield forbidden_field(
                    f"{path}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"
                )
        case "RollingUpdate":
            yield from validate_deployment_rolling_update(value.get("rollingUpdate") or {}, f"{path}.rollingUpdate")
        case other:
            reported = {"Type": other or "", "RollingUpdate": value.get("rollingUpdate")}
            yield unsupported_value(path, reported, ("Recreate", "RollingUpdate"))


def validate_progress_deadline(spec: Any, path: str) -> Iterator[Fault]:
    seconds = spec.get("progressDeadlineSeconds")
    if seconds is not None:
        yield from validate_nonnegative(seconds, f"{path}.progressDeadlineSeconds")
        if seconds <= spec.get("minReadySeconds", 0):
            yield invalid_value(f"{path}.progressDeadlineSeconds", seconds, "must be greater than minReadySeconds")


validate_deployment_spec = struct_validator(
    ("replicas", validate_nonnegative),
    ("", selector_validator("deployment")),
    ("", validate_selector_matches_template),
    ("", validate_template_field),
    ("", restart_always_validator("ReplicaSet")),
    ("strategy", validate_deployment_strategy),
    ("minReadySeconds", validate_nonnegative),
    ("revisionHistoryLimit", validate_nonnegative),
    ("", validate_progress_deadline),
)
validate_replica_set_spec = struct_validator(
    ("replicas", validate_nonnegative),
    ("minReadySeconds", validate_nonnegative),
    ("", selector_validator("deployment")),
    ("", validate_selector_matches_template),
    ("", validate_template_field),
    ("", restart_always_validator("ReplicaSet")),
)


def validate_replication_controller_template(spec: Any, path: str) -> Iterator[Fault]:
    """Validate the template of a ReplicationController, whose selector is a map of labels."""
    selector, labels = spec.get("selector") or {}, value_at(spec, "template", "metadata", "labels", default={})
    if not selector:
        yield required_value(f"{path}.selector")
    if spec.get("replicas") is not None:
        yield from validate_nonnegative(spec["replicas"], f"{path}.replicas")
    if not spec.get("template"):
        yield required_value(f"{path}.template")
        return
    if any(labels.get(key) != value for key, value in selector.items()):
        yield invalid_value(f"{path}.template.metadata.labels", labels or None, SELECTOR_MISMATCH_MESSAGE)
    yield from validate_template_field(spec, path)
    yield from restart_always_validator("ReplicationController")(spec, path)


validate_replication_controller_spec = struct_validator(
    ("minReadySeconds", validate_nonnegative), ("", validate_replication_controller_template)
)


# -- stateful sets


def validate_pod_management_policy(spec: Any, path: str) -> Iterator[Fault]:
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        yield invalid_value(f"{path}.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")


def validate_stateful_set_strategy(value: Any, path: str) -> Iterator[Fault]:
    update = value.get("rollingUpdate")
    match value.get("type"):
        case "OnDelete":
            if update is not None:
                rolling = {"Partition": update.get("partition", 0), "MaxUnavailable": update.get("maxUnavailable")}
                yield invalid_value(f"{path}.rollingUpdate", rolling, "only allowed for updateStrategy 'RollingUpdate'")
        case "RollingUpdate":
            yield from struct_validator(("partition", validate_nonnegative))(update or {}, f"{path}.rollingUpdate")
        case other:
            strategy = {"Type": other or "", "RollingUpdate": update}
            yield invalid_value(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")


def validate_claim_retention_policy(value: Any, path: str) -> Iterator[Fault]:
    for field in ("whenDeleted", "whenScaled"):
        if value.get(field) not in ("Retain", "Delete"):
            yield unsupported_value(f"{path}.{field}", value.get(field, ""), ("Retain", "Delete"))


def validate_volume_claim_templates(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        yield from validate_claim_spec(each.get("spec") or {}, f"{path}[{number}].spec")


def validate_stateful_set_template(spec: Any, path: str) -> Iterator[Fault]:
    """Validate the template of a StatefulSet with its claim templates added as volumes."""
    template = spec.get("template") or {}
    claim_names = [value_at(each, "metadata", "name", default="") for each in spec.get("volumeClaimTemplates") or ()]
    if claim_names:
        claim_volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claim_names]
        volumes = value_at(template, "spec", "volumes", default=[])
        all_volumes = [*claim_volumes, *(each for each in volumes if each.get("name") not in claim_names)]
        template = {**template, "spec": {**(template.get("spec") or {}), "volumes": all_volumes}}
    return pods.validate_pod_template(template, f"{path}.template")


STATEFUL_SET_VALIDATORS = (
    ("persistentVolumeClaimRetentionPolicy", validate_claim_retention_policy),
    ("replicas", validate_nonnegative),
    ("minReadySeconds", validate_nonnegative),
    ("ordinals", struct_validator(("start", validate_nonnegative))),
    ("", selector_validator("statefulset")),
    ("", validate_selector_matches_template),
    ("", validate_stateful_set_template),
    ("", restart_always_validator("StatefulSet")),
)
validate_stateful_set_spec = struct_validator(
    ("", validate_pod_management_policy),
    ("updateStrategy", validate_stateful_set_strategy),
    STATEFUL_SET_VALIDATORS[0],
    ("volumeClaimTemplates", validate_volume_claim_templates),
    *STATEFUL_SET_VALIDATORS[1:4],
    ("serviceName", format_validator(names.dns_label_errors)),
    *STATEFUL_SET_VALIDATORS[4:],
)
validate_updated_stateful_set_spec = struct_validator(
    ("", validate_pod_management_policy), ("updateStrategy", validate_stateful_set_strategy), *STATEFUL_SET_VALIDATORS
)


def validate_stateful_set_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_updated_stateful_set_spec(new["spec"], "spec")
    before, after = (
        {key: value for key, value in each["spec"].items() if key not in STATEFUL_SET_MUTABLE_FIELDS}
        for each in (old, new)
    )
    if before != after:
        yield forbidden_field("spec", STATEFUL_SET_UPDATE_MESSAGE)


# -- daemon sets


def validate_daemon_set_rolling_update(value: Any, path: str) -> Iterator[Fault]:
    unavailable, surge = value.get("maxUnavailable", 0), value.get("maxSurge", 0)
    for rule in (validate_int_or_percent, validate_at_most_100_percent):
        yield from rule(unavailable, f"{path}.maxUnavailable")
        yield from rule(surge, f"{path}.maxSurge")
    if int_or_percent_value(unavailable) and int_or_percent_value(surge):
        yield invalid_value(f"{path}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")
    elif not int_or_percent_value(unavailable) and not int_or_percent_value(surge):
        yield required_value(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")


def validate_daemon_set_strategy(value: Any, path: str) -> Iterator[Fault]:
    match value.get("type"):
        case "OnDelete":
            return
        case "RollingUpdate":
            yield from validate_daemon_set_rolling_update(value.get("rollingUpdate") or {}, f"{path}.rollingUpdate")
        case other:
            reported = {"Type": other or "", "RollingUpdate": value.get("rollingUpdate")}
            yield unsupported_value(path, reported, ("RollingUpdate", "OnDelete"))


def validate_daemon_set_selector(spec: Any, path: str) -> Iterator[Fault]:
    yield from validate_label_selector(spec.get("selector") or {}, f"{path}.selector")
    yield from validate_selector_matches_template(spec, path)
    selector = spec.get("selector")
    if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid_value(f"{path}.selector", selector, "empty selector is invalid for daemonset")


validate_daemon_set_spec = struct_validator(
    ("", validate_daemon_set_selector),
    ("", validate_template_field),
    ("", restart_always_validator("DaemonSet")),
    ("minReadySeconds", validate_nonnegative),
    ("updateStrategy", validate_daemon_set_strategy),
    ("revisionHistoryLimit", validate_nonnegative),
)


def immutable_selector_validator(validator: Validator) -> Callable[[Object, Object], Iterator[Fault]]:
    """Return an update validator that applies `validator` and requires an unchanged selector."""

    def faults(old: Object, new: Object) -> Iterator[Fault]:
        yield from validator(new["spec"], "spec")
        yield from validate_immutable_field(old["spec"].get("selector"), new["spec"].get("selector"), "spec.selector")

    return faults


# -- status


def counter_validator(*counters: str, upper_bounds: tuple[tuple[str, str], ...] = ()) -> Validator:
    """Return a validator for a status: counters are not negative and some have an upper bound."""

    def faults(status: Any, path: str) -> Iterator[Fault]:
        for each in counters:
            yield from validate_nonnegative(status.get(each, 0), f"{path}.{each}")
        for small, large in upper_bounds:
            if status.get(small, 0) > status.get(large, 0):
                bound_name = f"status.{large}" if large == "replicas" else large
                yield invalid_value(f"{path}.{small}", status[small], f"cannot be greater than {bound_name}")

    return faults
