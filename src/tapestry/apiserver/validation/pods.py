"""Pods, and the templates of pods: their specs when they are made, and what may change of them afterwards."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.recurring import remembered
from tapestry.apiserver.validation import containers, names, security
from tapestry.apiserver.validation.differences import difference
from tapestry.apiserver.validation.faults import (
    between,
    every,
    forbidden,
    invalid,
    matching,
    nonnegative,
    one_of,
    required,
    struct,
)
from tapestry.apiserver.validation.metadata import annotations, labels
from tapestry.apiserver.validation.resources import amounts, container_resource
from tapestry.apiserver.validation.scheduling import affinity, spread, tolerations
from tapestry.apiserver.validation.volumes import volumes
from tapestry.kube.objects import Object, without

MIRROR = "kubernetes.io/config.mirror"
MAY_CHANGE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
NAMESERVERS, SEARCHES, SEARCH_CHARACTERS = 3, 32, 2048

is_label, is_subdomain = matching(names.label), matching(names.subdomain)


def pod(obj: Object, _: str = "") -> Iterator[Fault]:
    """Faults of a pod that is made."""
    spec: Object = obj.get("spec") or {}
    yield from itself(obj, spec)
    if spec.get("ephemeralContainers"):
        yield forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def itself(obj: Object, spec: Object) -> Iterator[Fault]:
    """What holds for a pod at any time."""
    if found := obj["metadata"].get("annotations"):
        yield from pod_annotations(found, spec, "metadata.annotations")
    yield from own_spec(spec)


@remembered
def own_spec(spec: Object) -> Sequence[Fault]:
    """Faults of a pod's own spec."""
    found = [*pod_spec(spec, "spec", is_pod=True)]
    if not spec.get("serviceAccountName"):
        found += nobodys_tokens(spec)
    for field in ("containers", "initContainers"):
        for number, each in enumerate(spec.get(field) or ()):
            image = each.get("image", "")
            if image != image.strip():
                at = f"spec.{field}[{number}].image"
                found.append(invalid(at, image, "must not have leading or trailing whitespace"))
    return found


def nobodys_tokens(spec: Object) -> Iterator[Fault]:
    """Of a pod without an account, which can have no token of one."""
    for number, volume in enumerate(spec.get("volumes") or ()):
        for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if source.get("serviceAccountToken") is not None:
                at = f"spec.volumes[{number}].projected.sources[{index}].serviceAccountToken"
                yield forbidden(at, "must not be specified when serviceAccountName is not set")


def template(value: Any, path: str) -> Iterator[Fault]:
    """Faults of a template for pods."""
    metadata, spec = value.get("metadata") or {}, value.get("spec") or {}
    if metadata.get("labels"):
        yield from labels(metadata["labels"], f"{path}.labels")
    if metadata.get("annotations"):
        yield from annotations(metadata["annotations"], f"{path}.annotations")
        yield from pod_annotations(metadata["annotations"], spec, f"{path}.annotations")
    yield from pod_spec(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        yield forbidden(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")


def pod_annotations(value: Any, spec: Object, path: str) -> Iterator[Fault]:
    if MIRROR in value and not spec.get("nodeName"):
        why = "must set spec.nodeName if mirror pod annotation is set"
        yield invalid(f"{path}[{MIRROR}]", value[MIRROR], why)
    cost = value.get("controller.kubernetes.io/pod-deletion-cost")
    if cost is not None and not is_int32(cost):
        yield invalid(f"{path}[controller.kubernetes.io/pod-deletion-cost]", cost, "must be a 32bit integer")


INTEGER = re.compile("0|-?[1-9][0-9]{0,9}")


def is_int32(text: str) -> bool:
    return INTEGER.fullmatch(text) is not None and -(2**31) <= int(text) < 2**31


# -- the spec


def pod_spec(spec: Object, path: str, *, is_pod: bool = False) -> Iterator[Fault]:
    found = list(volumes(spec["volumes"], f"{path}.volumes")) if spec.get("volumes") else []
    yield from found
    around = containers.Surroundings(
        spec, usable(spec, found), {each.get("name") for each in spec.get("resourceClaims") or ()}
    )
    yield from containers.regular(spec.get("containers") or [], f"{path}.containers", around)
    if spec.get("initContainers"):
        yield from containers.initial(spec["initContainers"], f"{path}.initContainers", around)
    if spec.get("ephemeralContainers"):
        yield from containers.ephemeral(spec["ephemeralContainers"], f"{path}.ephemeralContainers", around)
    if spec.get("hostNetwork"):
        yield from ports_of_host(spec, f"{path}.containers", is_pod=is_pod)
    yield from POLICIES(spec, path)
    yield from security.of_pod(spec, f"{path}.securityContext")
    yield from PLACEMENT(spec, path)
    yield from REST(spec, path)


def usable(spec: Object, faults: list[Fault]) -> dict[str, Object]:
    """The volumes that can be mounted, those without a fault, by their names."""
    bad = {fault.path.partition("volumes[")[2].partition("]")[0] for fault in faults}
    return {
        each.get("name", ""): each for number, each in enumerate(spec.get("volumes") or ()) if str(number) not in bad
    }


def ports_of_host(spec: Object, path: str, *, is_pod: bool) -> Iterator[Fault]:
    for number, container in enumerate(spec.get("containers") or ()):
        for index, each in enumerate(container.get("ports") or ()):
            host = each.get("hostPort", 0)
            if (is_pod or host) and host != each.get("containerPort", 0):
                at = f"{path}[{number}].ports[{index}].hostPort"
                yield invalid(at, host, "must match `containerPort` when `hostNetwork` is true")


def shared_processes(value: Any, path: str) -> Iterator[Fault]:
    if value.get("hostPID") and value.get("shareProcessNamespace"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid(f"{path}.securityContext.shareProcessNamespace", True, why)


def dns(value: Any, path: str) -> Iterator[Fault]:
    config, at = value.get("dnsConfig"), f"{path}.dnsConfig"
    if value.get("dnsPolicy") == "None":
        if config is None:
            yield required(at, "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not config.get("nameservers"):
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield required(f"{at}.nameservers", why)
            return
    if config:
        yield from dns_config(config, at)


def dns_config(value: Object, path: str) -> Iterator[Fault]:
    servers, searches = value.get("nameservers") or [], value.get("searches") or []
    if len(servers) > NAMESERVERS:
        yield invalid(f"{path}.nameservers", servers, f"must not have more than {NAMESERVERS} nameservers")
    yield from every(matching(names.ip))(servers, f"{path}.nameservers")
    if len(searches) > SEARCHES:
        yield invalid(f"{path}.searches", searches, f"must not have more than {SEARCHES} search paths")
    if len(" ".join(searches)) > SEARCH_CHARACTERS:
        why = f"must not have more than {SEARCH_CHARACTERS} characters (including spaces) in the search list"
        yield invalid(f"{path}.searches", searches, why)
    for number, each in enumerate(searches):
        if each != ".":
            yield from matching(names.underscored_subdomain)(each.removesuffix("."), f"{path}.searches[{number}]")
    for number, each in enumerate(value.get("options") or ()):
        if not each.get("name"):
            yield required(f"{path}.options[{number}]", "must not be empty")


def gates(value: Any, path: str) -> Iterator[Fault]:
    yield from every(lambda each, at: matching(names.qualified)(each.get("name", ""), at))(value, path)
    seen = set()
    for number, each in enumerate(value):
        if each.get("name") in seen:
            yield Fault(f"{path}[{number}]", "FieldValueDuplicate", f'Duplicate value: "{each.get("name")}"')
        seen.add(each.get("name"))


def overhead(value: Any, path: str) -> Iterator[Fault]:
    return amounts(value, f"{path}.limits", container_resource)


POLICIES = struct(
    ("restartPolicy", one_of("Always", "OnFailure", "Never")),
    ("dnsPolicy", one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
    ("nodeSelector", labels),
)
PLACEMENT = struct(
    ("", shared_processes),
    ("affinity", affinity),
    ("", dns),
    ("readinessGates", every(struct(("conditionType", matching(names.qualified))))),
    ("schedulingGates", gates),
    ("topologySpreadConstraints", spread),
)
REST = struct(
    ("serviceAccountName", is_subdomain),
    ("nodeName", is_subdomain),
    ("activeDeadlineSeconds", between(1, 2**31 - 1)),
    ("hostname", is_label),
    ("subdomain", is_label),
    ("tolerations", tolerations),
    ("hostAliases", every(struct(("ip", matching(names.ip)), ("hostnames", every(is_subdomain))))),
    ("priorityClassName", is_subdomain),
    ("runtimeClassName", is_subdomain),
    ("preemptionPolicy", one_of("PreemptLowerPriority", "Never")),
    ("overhead", overhead),
    ("os", lambda value, at: one_of("linux", "windows")(value.get("name", ""), at)),
)


# -- changes


def changed_pod(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a pod that was changed: little of its spec may be."""
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from itself(new, after)
    yield from mirror_stays(old["metadata"], new["metadata"])
    if before == after:
        return
    for field in ("containers", "initContainers"):
        if len(before.get(field) or ()) != len(after.get(field) or ()):
            yield forbidden(f"spec.{field}", "pod updates may not add or remove containers")
            return
    deadline = list(deadlines(before.get("activeDeadlineSeconds"), after.get("activeDeadlineSeconds")))
    yield from deadline
    if deadline and after.get("activeDeadlineSeconds") is not None:
        return
    yield from more_tolerations(before.get("tolerations") or [], after.get("tolerations") or [])
    yield from fewer_gates(before.get("schedulingGates") or [], after.get("schedulingGates") or [])
    changed = {**after, **{field: before.get(field) for field in FREE}}
    for field in ("containers", "initContainers"):
        if after.get(field):
            changed[field] = [
                {**now, "image": then.get("image")} for then, now in zip(before[field], after[field], strict=True)
            ]
    if before.get("terminationGracePeriodSeconds", 0) < 0 and after.get("terminationGracePeriodSeconds") == 1:
        changed["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if before.get("schedulingGates"):
        changed |= {"nodeSelector": before.get("nodeSelector"), "affinity": before.get("affinity")}
    if tidied(changed) != tidied(before):
        why = f"pod updates may not change fields other than {MAY_CHANGE}"
        yield forbidden("spec", f"{why}\n{difference(before, tidied(changed))}")


FREE = ("activeDeadlineSeconds", "tolerations", "schedulingGates")


def tidied(spec: Object) -> Object:
    return {key: value for key, value in spec.items() if value is not None}


def mirror_stays(old: Object, new: Object) -> Iterator[Fault]:
    then, now = ((each.get("annotations") or {}).get(MIRROR) for each in (old, new))
    if then != now:
        doing = "add" if then is None else "remove or update"
        yield forbidden(f"metadata.annotations[{MIRROR}]", f"may not {doing} mirror pod annotation")


def deadlines(old: int | None, new: int | None) -> Iterator[Fault]:
    at = "spec.activeDeadlineSeconds"
    if new is not None and old is not None and old < new:
        yield invalid(at, new, "must be less than or equal to previous value")
    elif new is None and old is not None:
        yield invalid(at, None, "must not update from a positive integer to nil value")


def more_tolerations(old: list[Object], new: list[Object]) -> Iterator[Fault]:
    kept = [without(each, "tolerationSeconds") for each in new]
    if any(without(each, "tolerationSeconds") not in kept for each in old):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield forbidden("spec.tolerations", why)


def fewer_gates(old: list[Object], new: list[Object]) -> Iterator[Fault]:
    had = {each.get("name") for each in old}
    for number, each in enumerate(new):
        if each.get("name") not in had:
            why = f"only deletion is allowed, but found new scheduling gate '{each.get('name')}'"
            yield forbidden(f"spec.schedulingGates[{number}].name", why)


def changed_ephemerals(old: Object, new: Object) -> Iterator[Fault]:
    """Faults of a write to the ephemeral containers of a pod: they only get more."""
    at = "spec.ephemeralContainers"
    yield from itself(new, new["spec"])
    now = {each.get("name"): each for each in new["spec"].get("ephemeralContainers") or ()}
    for each in old["spec"].get("ephemeralContainers") or ():
        name = each.get("name")
        if name not in now:
            yield forbidden(at, f'existing ephemeral containers "{name}" may not be removed\n')
        elif now[name] != each:
            why = f'existing ephemeral containers "{name}" may not be changed\n{difference(each, now[name])}'
            yield forbidden(at, why)


# -- status

SYSTEM_CONDITIONS = ("PodScheduled", "Ready", "Initialized")


def changed_status(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("status") or {}, new.get("status") or {}
    for number, each in enumerate(after.get("conditions") or ()):
        if each.get("type") not in SYSTEM_CONDITIONS:
            yield from matching(names.qualified)(each.get("type", ""), f"status.conditions[{number}].Type")
    nominated = after.get("nominatedNodeName")
    if nominated and nominated != before.get("nominatedNodeName"):
        yield from is_subdomain(nominated, "status.nominatedNodeName")
    yield from struct(("observedGeneration", nonnegative))(after, "status")
    if before.get("qosClass") and after.get("qosClass") != before["qosClass"]:
        yield invalid("status.qosClass", after.get("qosClass", ""), "field is immutable")
