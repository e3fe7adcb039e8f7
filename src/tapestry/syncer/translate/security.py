"""Security rules for pods on the owner's nodes: the Pod Security Standards and our own allow-list.

The standards forbid what is known to be harmful. In another owner's cluster only what is known to be harmless may run.
Both are checked at every level except `privileged`, where nothing is.
"""

from collections.abc import Iterator
from dataclasses import replace

from tapestry.kube.objects import Object
from tapestry.kube.pod_security import (
    CHECKS_BY_LEVEL,
    UNSET_REMEDY,
    Check,
    Part,
    Parts,
    PodView,
    Violation,
    sorted_list_text,
    sources_outside,
    value_text,
    violations_of_checks,
)


def security_violations(pod: Object, level: str) -> list[Violation]:
    """Return why the pod may not run: violations of the standard, then fields outside our list; each field once."""
    first: dict[str, Violation] = {}
    for violation in violations_of_checks(pod, level, RULES_BY_LEVEL[level]):
        first.setdefault(violation.path, violation)
    return list(first.values())


ALLOWED_SOURCES = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
ALLOWED_PROJECTIONS = frozenset({"configMap", "downwardAPI", "secret", "serviceAccountToken"})
SHARED_CONTEXT_FIELDS = frozenset(
    {
        *("appArmorProfile", "runAsGroup", "runAsNonRoot", "runAsUser"),
        *("seLinuxOptions", "seccompProfile", "windowsOptions"),
    }
)
POD_CONTEXT_FIELDS = SHARED_CONTEXT_FIELDS | {
    *("fsGroup", "fsGroupChangePolicy", "seLinuxChangePolicy", "supplementalGroups"),
    *("supplementalGroupsPolicy", "sysctls"),
}
CONTAINER_CONTEXT_FIELDS = SHARED_CONTEXT_FIELDS | {
    *("allowPrivilegeEscalation", "capabilities", "privileged", "procMount", "readOnlyRootFilesystem"),
}
INNER_FIELDS = {
    "appArmorProfile": frozenset({"localhostProfile", "type"}),
    "capabilities": frozenset({"add", "drop"}),
    "seLinuxOptions": frozenset({"level", "role", "type", "user"}),
    "seccompProfile": frozenset({"localhostProfile", "type"}),
    "windowsOptions": frozenset({"hostProcess", "runAsUserName"}),  # gMSA names an account of the owner's domain
}
"""Allowed fields of the objects in a security context."""


def disallowed_volumes(pod: PodView) -> Parts:
    return sources_outside(ALLOWED_SOURCES, pod.volumes)


def disallowed_projections(pod: PodView) -> Parts:
    return sources_outside(ALLOWED_PROJECTIONS, pod.object_items(pod.objects(pod.volumes, "projected"), "sources"))


def disallowed_context_fields(pod: PodView) -> Parts:
    yield from _fields_outside(POD_CONTEXT_FIELDS, pod.pod_contexts)
    yield from _fields_outside(CONTAINER_CONTEXT_FIELDS, pod.container_contexts)
    for path, context in pod.contexts:
        for field in context:
            if field in INNER_FIELDS:
                yield from _fields_outside(INNER_FIELDS[field], pod.objects([(path, context)], field))


def disallowed_claims(pod: PodView) -> Parts:
    """Report device claims: they name objects in the physical cluster, and these names are not rewritten."""
    return [(path, "a claim") for path, _ in pod.entries(pod.spec, "resourceClaims")]


def _fields_outside(known: frozenset[str], parts: Parts) -> Iterator[Part]:
    for path, part in parts:
        for field, value in part.items():
            if field not in known and value is not None:
                yield f"{path}.{value_text(field)}", "this field"


USE_ALLOWED_SOURCE = f"use one of {sorted_list_text(ALLOWED_SOURCES)}"
OWN_RULES = (
    Check("crossingVolumes", disallowed_volumes, USE_ALLOWED_SOURCE),
    Check("crossingProjections", disallowed_projections, f"use one of {sorted_list_text(ALLOWED_PROJECTIONS)}"),
    Check("crossingContextFields", disallowed_context_fields, UNSET_REMEDY),
    Check("crossingClaims", disallowed_claims, "leave it out and ask for devices in resources.limits"),
)
VOLUME_RULES = frozenset({"hostPathVolumes", "restrictedVolumes"})


def with_own_remedy(rule: Check) -> Check:
    """Replace the remedy of the standard's volume rules by one that our allow-list permits too."""
    return replace(rule, remedy=USE_ALLOWED_SOURCE) if rule.name in VOLUME_RULES else rule


RULES_BY_LEVEL = {
    level: (*map(with_own_remedy, rules), *OWN_RULES) if rules else () for level, rules in CHECKS_BY_LEVEL.items()
}
