"""Validation of pods and pod templates, on creation and on update."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    between,
    forbidden_field,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_value,
    struct_validator,
    validate_nonnegative,
)
from tapestry.apiserver.core.metadata import validate_annotations, validate_labels
from tapestry.apiserver.core.spec_cache import memoized
from tapestry.apiserver.validation import containers, security_context
from tapestry.apiserver.validation.diff import json_diff
from tapestry.apiserver.validation.resources import validate_container_resource_name, validate_resource_list
from tapestry.apiserver.validation.scheduling import (
    validate_affinity,
    validate_tolerations,
    validate_topology_spread_constraints,
)
from tapestry.apiserver.validation.volumes import validate_volumes
from tapestry.kube.objects import Object, without_field
from tapestry.kube.pods import MIRROR_POD_ANNOTATION

MUTABLE_FIELDS_MESSAGE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
MAX_NAMESERVERS, MAX_SEARCH_PATHS, MAX_SEARCH_LIST_LENGTH = 3, 32, 2048

validate_dns_label, validate_dns_subdomain = (
    format_validator(names.dns_label_errors),
    format_validator(names.dns_subdomain_errors),
)


def validate_pod(obj: Object, _: str = "") -> Iterator[Fault]:
    spec: Object = obj.get("spec") or {}
    yield from validate_pod_always(obj, spec)
    if spec.get("ephemeralContainers"):
        yield forbidden_field("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def validate_pod_always(obj: Object, spec: Object) -> Iterator[Fault]:
    """Validate the rules that hold on creation and on every update."""
    if annotations := obj["metadata"].get("annotations"):
        yield from validate_pod_annotations(annotations, spec, "metadata.annotations")
    yield from pod_spec_errors(spec)


@memoized
def pod_spec_errors(spec: Object) -> Sequence[Fault]:
    """Return the faults of the spec of a pod (not of a template)."""
    faults = [*validate_pod_spec(spec, "spec", is_pod=True)]
    if not spec.get("serviceAccountName"):
        faults += validate_no_token_projections(spec)
    for field in ("containers", "initContainers"):
        for number, each in enumerate(spec.get(field) or ()):
            image = each.get("image", "")
            if image != image.strip():
                at = f"spec.{field}[{number}].image"
                faults.append(invalid_value(at, image, "must not have leading or trailing whitespace"))
    return faults


def validate_no_token_projections(spec: Object) -> Iterator[Fault]:
    """Forbid service account token projections in a pod without a service account."""
    for number, volume in enumerate(spec.get("volumes") or ()):
        for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if source.get("serviceAccountToken") is not None:
                at = f"spec.volumes[{number}].projected.sources[{index}].serviceAccountToken"
                yield forbidden_field(at, "must not be specified when serviceAccountName is not set")


def validate_pod_template(value: Any, path: str) -> Iterator[Fault]:
    metadata, spec = value.get("metadata") or {}, value.get("spec") or {}
    if metadata.get("labels"):
        yield from validate_labels(metadata["labels"], f"{path}.labels")
    if metadata.get("annotations"):
        yield from validate_annotations(metadata["annotations"], f"{path}.annotations")
        yield from validate_pod_annotations(metadata["annotations"], spec, f"{path}.annotations")
    yield from validate_pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        yield forbidden_field(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")


def validate_pod_annotations(value: Any, spec: Object, path: str) -> Iterator[Fault]:
    if MIRROR_POD_ANNOTATION in value and not spec.get("nodeName"):
        msg = "must set spec.nodeName if mirror pod annotation is set"
        yield invalid_value(f"{path}[{MIRROR_POD_ANNOTATION}]", value[MIRROR_POD_ANNOTATION], msg)
    cost = value.get("controller.kubernetes.io/pod-deletion-cost")
    if cost is not None and not is_int32(cost):
        yield invalid_value(f"{path}[controller.kubernetes.io/pod-deletion-cost]", cost, "must be a 32bit integer")


INTEGER = re.compile("0|-?[1-9][0-9]{0,9}")


def is_int32(text: str) -> bool:
    return INTEGER.fullmatch(text) is not None and -(2**31) <= int(text) < 2**31


# -- spec


def validate_pod_spec(spec: Object, path: str, *, is_pod: bool = False) -> Iterator[Fault]:
    volume_faults = list(validate_volumes(spec["volumes"], f"{path}.volumes")) if spec.get("volumes") else []
    yield from volume_faults
    references = containers.PodReferences(
        spec, mountable_volumes(spec, volume_faults), {each.get("name") for each in spec.get("resourceClaims") or ()}
    )
    yield from containers.validate_containers(spec.get("containers") or [], f"{path}.containers", references)
    if spec.get("initContainers"):
        yield from containers.validate_init_containers(spec["initContainers"], f"{path}.initContainers", references)
    if spec.get("ephemeralContainers"):
        yield from containers.validate_ephemeral_containers(
            spec["ephemeralContainers"], f"{path}.ephemeralContainers", references
        )
    if spec.get("hostNetwork"):
        yield from validate_host_network_ports(spec, f"{path}.containers", is_pod=is_pod)
    yield from validate_pod_policies(spec, path)
    yield from security_context.validate_pod_security_context(spec, f"{path}.securityContext")
    yield from validate_pod_placement(spec, path)
    yield from validate_remaining_fields(spec, path)


def mountable_volumes(spec: Object, faults: list[Fault]) -> dict[str, Object]:
    """Return the volumes without faults by name. Containers can mount only these."""
    bad = {fault.path.partition("volumes[")[2].partition("]")[0] for fault in faults}
    return {
        each.get("name", ""): each for number, each in enumerate(spec.get("volumes") or ()) if str(number) not in bad
    }


def validate_host_network_ports(spec: Object, path: str, *, is_pod: bool) -> Iterator[Fault]:
    for number, container in enumerate(spec.get("containers") or ()):
        for index, each in enumerate(container.get("ports") or ()):
            host = each.get("hostPort", 0)
            if (is_pod or host) and host != each.get("containerPort", 0):
                at = f"{path}[{number}].ports[{index}].hostPort"
                yield invalid_value(at, host, "must match `containerPort` when `hostNetwork` is true")


def validate_process_namespace(value: Any, path: str) -> Iterator[Fault]:
    if value.get("hostPID") and value.get("shareProcessNamespace"):
        msg = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid_value(f"{path}.securityContext.shareProcessNamespace", True, msg)


def validate_dns(value: Any, path: str) -> Iterator[Fault]:
    config, at = value.get("dnsConfig"), f"{path}.dnsConfig"
    if value.get("dnsPolicy") == "None":
        if config is None:
            yield required_value(at, "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not config.get("nameservers"):
            msg = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield required_value(f"{at}.nameservers", msg)
            return
    if config:
        yield from validate_dns_config(config, at)


def validate_dns_config(value: Object, path: str) -> Iterator[Fault]:
    servers, searches = value.get("nameservers") or [], value.get("searches") or []
    if len(servers) > MAX_NAMESERVERS:
        yield invalid_value(f"{path}.nameservers", servers, f"must not have more than {MAX_NAMESERVERS} nameservers")
    yield from item_validator(format_validator(names.ip_errors))(servers, f"{path}.nameservers")
    if len(searches) > MAX_SEARCH_PATHS:
        yield invalid_value(f"{path}.searches", searches, f"must not have more than {MAX_SEARCH_PATHS} search paths")
    if len(" ".join(searches)) > MAX_SEARCH_LIST_LENGTH:
        msg = f"must not have more than {MAX_SEARCH_LIST_LENGTH} characters (including spaces) in the search list"
        yield invalid_value(f"{path}.searches", searches, msg)
    for number, each in enumerate(searches):
        if each != ".":
            yield from format_validator(names.underscored_subdomain_errors)(
                each.removesuffix("."), f"{path}.searches[{number}]"
            )
    for number, each in enumerate(value.get("options") or ()):
        if not each.get("name"):
            yield required_value(f"{path}.options[{number}]", "must not be empty")


def validate_scheduling_gates(value: Any, path: str) -> Iterator[Fault]:
    yield from item_validator(lambda each, at: format_validator(names.qualified_name_errors)(each.get("name", ""), at))(
        value, path
    )
    seen = set()
    for number, each in enumerate(value):
        if each.get("name") in seen:
            yield Fault(f"{path}[{number}]", "FieldValueDuplicate", f'Duplicate value: "{each.get("name")}"')
        seen.add(each.get("name"))


def validate_overhead(value: Any, path: str) -> Iterator[Fault]:
    return validate_resource_list(value, f"{path}.limits", validate_container_resource_name)


validate_pod_policies = struct_validator(
    ("restartPolicy", one_of("Always", "OnFailure", "Never")),
    ("dnsPolicy", one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
    ("nodeSelector", validate_labels),
)
validate_pod_placement = struct_validator(
    ("", validate_process_namespace),
    ("affinity", validate_affinity),
    ("", validate_dns),
    (
        "readinessGates",
        item_validator(struct_validator(("conditionType", format_validator(names.qualified_name_errors)))),
    ),
    ("schedulingGates", validate_scheduling_gates),
    ("topologySpreadConstraints", validate_topology_spread_constraints),
)
validate_remaining_fields = struct_validator(
    ("serviceAccountName", validate_dns_subdomain),
    ("nodeName", validate_dns_subdomain),
    ("activeDeadlineSeconds", between(1, 2**31 - 1)),
    ("hostname", validate_dns_label),
    ("subdomain", validate_dns_label),
    ("tolerations", validate_tolerations),
    (
        "hostAliases",
        item_validator(
            struct_validator(
                ("ip", format_validator(names.ip_errors)), ("hostnames", item_validator(validate_dns_subdomain))
            )
        ),
    ),
    ("priorityClassName", validate_dns_subdomain),
    ("runtimeClassName", validate_dns_subdomain),
    ("preemptionPolicy", one_of("PreemptLowerPriority", "Never")),
    ("overhead", validate_overhead),
    ("os", lambda value, at: one_of("linux", "windows")(value.get("name", ""), at)),
)


# -- updates


def validate_pod_update(old: Object, new: Object) -> Iterator[Fault]:
    """Validate a pod update. Few fields of the spec are mutable."""
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from validate_pod_always(new, after)
    yield from validate_mirror_annotation(old["metadata"], new["metadata"])
    if before == after:
        return
    for field in ("containers", "initContainers"):
        if len(before.get(field) or ()) != len(after.get(field) or ()):
            yield forbidden_field(f"spec.{field}", "pod updates may not add or remove containers")
            return
    deadline_faults = list(
        validate_active_deadline_update(before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds"))
    )
    yield from deadline_faults
    if deadline_faults and after.get("activeDeadlineSeconds") is not None:
        return
    yield from validate_tolerations_update(before.get("tolerations") or [], after.get("tolerations") or [])
    yield from validate_scheduling_gates_update(before.get("schedulingGates") or [], after.get("schedulingGates") or [])
    changed = {**after, **{field: before.get(field) for field in MUTABLE_FIELDS}}
    for field in ("containers", "initContainers"):
        if after.get(field):
            changed[field] = [
                {**current, "image": previous.get("image")}
                for previous, current in zip(before[field], after[field], strict=True)
            ]
    if before.get("terminationGracePeriodSeconds", 0) < 0 and after.get("terminationGracePeriodSeconds") == 1:
        changed["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if before.get("schedulingGates"):
        changed |= {"nodeSelector": before.get("nodeSelector"), "affinity": before.get("affinity")}
    if without_nulls(changed) != without_nulls(before):
        msg = f"pod updates may not change fields other than {MUTABLE_FIELDS_MESSAGE}"
        yield forbidden_field("spec", f"{msg}\n{json_diff(before, without_nulls(changed))}")


MUTABLE_FIELDS = ("activeDeadlineSeconds", "tolerations", "schedulingGates")


def without_nulls(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if value is not None}


def validate_mirror_annotation(old: Object, new: Object) -> Iterator[Fault]:
    old_value, new_value = ((each.get("annotations") or {}).get(MIRROR_POD_ANNOTATION) for each in (old, new))
    if old_value != new_value:
        action = "add" if old_value is None else "remove or update"
        yield forbidden_field(
            f"metadata.annotations[{MIRROR_POD_ANNOTATION}]", f"may not {action} mirror pod annotation"
        )


def validate_active_deadline_update(old: int | None, new: int | None) -> Iterator[Fault]:
    at = "spec.activeDeadlineSeconds"
    if new is not None and old is not None and old < new:
        yield invalid_value(at, new, "must be less than or equal to previous value")
    elif new is None and old is not None:
        yield invalid_value(at, None, "must not update from a positive integer to nil value")


def validate_tolerations_update(old: list[Object], new: list[Object]) -> Iterator[Fault]:
    allowed = [without_field(each, "tolerationSeconds") for each in new]
    if any(without_field(each, "tolerationSeconds") not in allowed for each in old):
        msg = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden_field("spec.tolerations", msg)


def validate_scheduling_gates_update(old: list[Object], new: list[Object]) -> Iterator[Fault]:
    old_names = {each.get("name") for each in old}
    for number, each in enumerate(new):
        if each.get("name") not in old_names:
            msg = f"only deletion is allowed, but found new scheduling gate '{each.get('name')}'"
            yield forbidden_field(f"spec.schedulingGates[{number}].name", msg)


def validate_ephemeral_containers_update(old: Object, new: Object) -> Iterator[Fault]:
    """Validate that ephemeral containers were only added."""
    at = "spec.ephemeralContainers"
    yield from validate_pod_always(new, new["spec"])
    by_name = {each.get("name"): each for each in new["spec"].get("ephemeralContainers") or ()}
    for each in old["spec"].get("ephemeralContainers") or ():
        name = each.get("name")
        if name not in by_name:
            yield forbidden_field(at, f'existing ephemeral containers "{name}" may not be removed\n')
        elif by_name[name] != each:
            msg = f'existing ephemeral containers "{name}" may not be changed\n{json_diff(each, by_name[name])}'
            yield forbidden_field(at, msg)


# -- status

SYSTEM_CONDITIONS = ("PodScheduled", "Ready", "Initialized")


def validate_pod_status_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("status") or {}, new.get("status") or {}
    for number, each in enumerate(after.get("conditions") or ()):
        if each.get("type") not in SYSTEM_CONDITIONS:
            yield from format_validator(names.qualified_name_errors)(
                each.get("type", ""), f"status.conditions[{number}].Type"
            )
    nominated = after.get("nominatedNodeName")
    if nominated and nominated != before.get("nominatedNodeName"):
        yield from validate_dns_subdomain(nominated, "status.nominatedNodeName")
    yield from struct_validator(("observedGeneration", validate_nonnegative))(after, "status")
    if before.get("qosClass") and after.get("qosClass") != before["qosClass"]:
        yield invalid_value("status.qosClass", after.get("qosClass", ""), "field is immutable")
