"""Workloads: sets of pods made from a template, which they find again by a selector."""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names, pods
from tapestry.apiserver.validation.faults import (
    Rule,
    forbidden,
    invalid,
    matching,
    nonnegative,
    required,
    struct,
    unchanged,
    unsupported,
)
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.apiserver.validation.storage import claim_spec
from tapestry.kube.objects import Object, value_at
from tapestry.kube.selectors import SelectorError
from tapestry.kube.selectors import label_selector as selector_of

MISMATCH = "`selector` does not match template `labels`"
STATEFUL_FIELDS = (
    *("replicas", "template", "updateStrategy", "minReadySeconds", "ordinals", "revisionHistoryLimit"),
    "persistentVolumeClaimRetentionPolicy",
)
STATEFUL_FIXED = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)

# -- numbers that may be shares


def int_or_percent(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, str):
        yield from matching(names.percent)(value, path)
    else:
        yield from nonnegative(value, path)


def at_most_all(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, str) and not names.percent(value) and float(value[:-1]) > 100:
        yield invalid(path, value, "must not be greater than 100%")


def amount(value: Any) -> int:
    if isinstance(value, str):
        return int(min(float(value[:-1]), 2**31)) if not names.percent(value) else 0
    return value or 0


# -- selectors and templates


def selection(noun: str) -> Rule:
    """A rule for a spec: its selector is there, chooses something, and chooses the pods of its template."""

    def faults(spec: Any, path: str) -> Iterator[Fault]:
        selector = spec.get("selector")
        if selector is None:
            yield required(f"{path}.selector")
            return
        yield from label_selector(selector, f"{path}.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            yield invalid(f"{path}.selector", selector, f"empty selector is invalid for {noun}")

    return faults


def mismatched(spec: Any, path: str) -> Iterator[Fault]:
    """A fault where the selector does not choose the template."""
    labels = value_at(spec, "template", "metadata", "labels", default={})
    try:
        chooses = spec.get("selector") is not None and selector_of(spec["selector"]).matches(labels)
    except SelectorError:
        yield invalid(f"{path}.selector", spec["selector"], "invalid label selector")
        return
    if not chooses:
        yield invalid(f"{path}.template.metadata.labels", labels or None, MISMATCH)


def forever(noun: str) -> Rule:
    """A rule for a spec: its pods never end."""

    def faults(spec: Any, path: str) -> Iterator[Fault]:
        found = value_at(spec, "template", "spec", default={})
        policy = found.get("restartPolicy", "")
        if policy != "Always":
            yield unsupported(f"{path}.template.spec.restartPolicy", policy, ("Always",))
        if found.get("activeDeadlineSeconds") is not None:
            why = f"activeDeadlineSeconds in {noun} is not Supported"
            yield forbidden(f"{path}.template.spec.activeDeadlineSeconds", why)

    return faults


def pod_template(spec: Any, path: str) -> Iterator[Fault]:
    return pods.template(spec.get("template") or {}, f"{path}.template")


# -- deployments and replica sets


def rolling(value: Any, path: str) -> Iterator[Fault]:
    unavailable, surge = value.get("maxUnavailable", 0), value.get("maxSurge", 0)
    yield from int_or_percent(unavailable, f"{path}.maxUnavailable")
    yield from int_or_percent(surge, f"{path}.maxSurge")
    if not amount(unavailable) and not amount(surge):
        yield invalid(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0")
    yield from at_most_all(unavailable, f"{path}.maxUnavailable")


def strategy(value: Any, path: str) -> Iterator[Fault]:
    match value.get("type"):
        case "Recreate":
            if value.get("rollingUpdate") is not None:
                yield forbidden(f"{path}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
        case "RollingUpdate":
            yield from rolling(value.get("rollingUpdate") or {}, f"{path}.rollingUpdate")
        case other:
            found = {"Type": other or "", "RollingUpdate": value.get("rollingUpdate")}
            yield unsupported(path, found, ("Recreate", "RollingUpdate"))


def patience(spec: Any, path: str) -> Iterator[Fault]:
    seconds = spec.get("progressDeadlineSeconds")
    if seconds is not None:
        yield from nonnegative(seconds, f"{path}.progressDeadlineSeconds")
        if seconds <= spec.get("minReadySeconds", 0):
            yield invalid(f"{path}.progressDeadlineSeconds", seconds, "must be greater than minReadySeconds")


deployment = struct(
    ("replicas", nonnegative),
    ("", selection("deployment")),
    ("", mismatched),
    ("", pod_template),
    ("", forever("ReplicaSet")),
    ("strategy", strategy),
    ("minReadySeconds", nonnegative),
    ("revisionHistoryLimit", nonnegative),
    ("", patience),
)
replica_set = struct(
    ("replicas", nonnegative),
    ("minReadySeconds", nonnegative),
    ("", selection("deployment")),
    ("", mismatched),
    ("", pod_template),
    ("", forever("ReplicaSet")),
)


def plain_selection(spec: Any, path: str) -> Iterator[Fault]:
    """Of a replication controller, whose selector is nothing but labels."""
    selector, labels = spec.get("selector") or {}, value_at(spec, "template", "metadata", "labels", default={})
    if not selector:
        yield required(f"{path}.selector")
    if spec.get("replicas") is not None:
        yield from nonnegative(spec["replicas"], f"{path}.replicas")
    if not spec.get("template"):
        yield required(f"{path}.template")
        return
    if any(labels.get(key) != value for key, value in selector.items()):
        yield invalid(f"{path}.template.metadata.labels", labels or None, MISMATCH)
    yield from pod_template(spec, path)
    yield from forever("ReplicationController")(spec, path)


replication_controller = struct(("minReadySeconds", nonnegative), ("", plain_selection))


# -- stateful sets


def management(spec: Any, path: str) -> Iterator[Fault]:
    policy = spec.get("podManagementPolicy", "")
    if policy not in ("OrderedReady", "Parallel"):
        yield invalid(f"{path}.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")


def stateful_strategy(value: Any, path: str) -> Iterator[Fault]:
    update = value.get("rollingUpdate")
    match value.get("type"):
        case "OnDelete":
            if update is not None:
                shown = {"Partition": update.get("partition", 0), "MaxUnavailable": update.get("maxUnavailable")}
                yield invalid(f"{path}.rollingUpdate", shown, "only allowed for updateStrategy 'RollingUpdate'")
        case "RollingUpdate":
            yield from struct(("partition", nonnegative))(update or {}, f"{path}.rollingUpdate")
        case other:
            found = {"Type": other or "", "RollingUpdate": update}
            yield invalid(path, found, "must be 'RollingUpdate' or 'OnDelete'")


def retention(value: Any, path: str) -> Iterator[Fault]:
    for field in ("whenDeleted", "whenScaled"):
        if value.get(field) not in ("Retain", "Delete"):
            yield unsupported(f"{path}.{field}", value.get(field, ""), ("Retain", "Delete"))


def claims(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        yield from claim_spec(each.get("spec") or {}, f"{path}[{number}].spec")


def stateful_template(spec: Any, path: str) -> Iterator[Fault]:
    """Of a stateful set, whose pods have the claims as volumes, too."""
    template = spec.get("template") or {}
    names_of_claims = [
        value_at(each, "metadata", "name", default="") for each in spec.get("volumeClaimTemplates") or ()
    ]
    if names_of_claims:
        made = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in names_of_claims]
        own = value_at(template, "spec", "volumes", default=[])
        both = [*made, *(each for each in own if each.get("name") not in names_of_claims)]
        template = {**template, "spec": {**(template.get("spec") or {}), "volumes": both}}
    return pods.template(template, f"{path}.template")


STATEFUL = (
    ("persistentVolumeClaimRetentionPolicy", retention),
    ("replicas", nonnegative),
    ("minReadySeconds", nonnegative),
    ("ordinals", struct(("start", nonnegative))),
    ("", selection("statefulset")),
    ("", mismatched),
    ("", stateful_template),
    ("", forever("StatefulSet")),
)
stateful_set = struct(
    ("", management),
    ("updateStrategy", stateful_strategy),
    STATEFUL[0],
    ("volumeClaimTemplates", claims),
    *STATEFUL[1:4],
    ("serviceName", matching(names.label)),
    *STATEFUL[4:],
)
later_stateful_set = struct(("", management), ("updateStrategy", stateful_strategy), *STATEFUL)


def changed_stateful_set(old: Object, new: Object) -> Iterator[Fault]:
    yield from later_stateful_set(new["spec"], "spec")
    before, after = (
        {key: value for key, value in each["spec"].items() if key not in STATEFUL_FIELDS} for each in (old, new)
    )
    if before != after:
        yield forbidden("spec", STATEFUL_FIXED)


# -- daemon sets


def daemon_rolling(value: Any, path: str) -> Iterator[Fault]:
    unavailable, surge = value.get("maxUnavailable", 0), value.get("maxSurge", 0)
    for rule in (int_or_percent, at_most_all):
        yield from rule(unavailable, f"{path}.maxUnavailable")
        yield from rule(surge, f"{path}.maxSurge")
    if amount(unavailable) and amount(surge):
        yield invalid(f"{path}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")
    elif not amount(unavailable) and not amount(surge):
        yield required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")


def daemon_strategy(value: Any, path: str) -> Iterator[Fault]:
    match value.get("type"):
        case "OnDelete":
            return
        case "RollingUpdate":
            yield from daemon_rolling(value.get("rollingUpdate") or {}, f"{path}.rollingUpdate")
        case other:
            found = {"Type": other or "", "RollingUpdate": value.get("rollingUpdate")}
            yield unsupported(path, found, ("RollingUpdate", "OnDelete"))


def daemon_selection(spec: Any, path: str) -> Iterator[Fault]:
    yield from label_selector(spec.get("selector") or {}, f"{path}.selector")
    yield from mismatched(spec, path)
    selector = spec.get("selector")
    if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid(f"{path}.selector", selector, "empty selector is invalid for daemonset")


daemon_set = struct(
    ("", daemon_selection),
    ("", pod_template),
    ("", forever("DaemonSet")),
    ("minReadySeconds", nonnegative),
    ("updateStrategy", daemon_strategy),
    ("revisionHistoryLimit", nonnegative),
)


def with_fixed_selector(rule: Rule) -> Callable[[Object, Object], Iterator[Fault]]:
    """What holds for a changed workload: what holds for a new one, and its selector stays."""

    def faults(old: Object, new: Object) -> Iterator[Fault]:
        yield from rule(new["spec"], "spec")
        yield from unchanged(old["spec"].get("selector"), new["spec"].get("selector"), "spec.selector")

    return faults


# -- status


def counted(*counters: str, below: tuple[tuple[str, str], ...] = ()) -> Rule:
    """A rule for a status: numbers of pods, some of which cannot be greater than others."""

    def faults(status: Any, path: str) -> Iterator[Fault]:
        for each in counters:
            yield from nonnegative(status.get(each, 0), f"{path}.{each}")
        for small, large in below:
            if status.get(small, 0) > status.get(large, 0):
                word = f"status.{large}" if large == "replicas" else large
                yield invalid(f"{path}.{small}", status[small], f"cannot be greater than {word}")

    return faults
