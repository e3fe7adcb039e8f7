"""Pod Security admission: enforces the Pod Security Standards that the labels of a namespace select.

    pod-security.kubernetes.io/enforce: restricted    violations are rejected
    pod-security.kubernetes.io/warn: baseline         violations are admitted with a warning

`tapestry.kube.pod_security` implements the standards in their newest version. A label may name an older version, but it
only appears in messages. This module has the message texts of Kubernetes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.store import Store
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.pod_security import CHECKS_BY_LEVEL, Violation, violations
from tapestry.kube.pods import CONTAINER_FIELDS

LABEL_PREFIX = "pod-security.kubernetes.io/"
LEVELS = ("privileged", "baseline", "restricted")
VERSION_PATTERN = re.compile(r"latest|v1\.(0|[1-9][0-9]*)")
TEMPLATE_PATHS: Mapping[str, tuple[str, ...]] = {
    "podtemplates": ("template",),
    "cronjobs.batch": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(("replicationcontrollers", "replicasets.apps", "deployments.apps"), ("spec", "template")),
    **dict.fromkeys(("statefulsets.apps", "daemonsets.apps", "jobs.batch"), ("spec", "template")),
}
"""Path of the pod template in kinds that create pods."""
MAX_PODS_CHECKED = 3000
"""Maximum number of existing pods that are checked when the level of a namespace changes."""


@dataclass(frozen=True)
class LevelVersion:
    """A level and its version; its string is the form used in messages."""

    level: str = "privileged"
    version: str = "latest"

    def __str__(self) -> str:
        return f"{self.level}:{self.version}"


@dataclass(frozen=True)
class NamespaceLevels:
    """The levels that a namespace requires."""

    enforce: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()
    faults: tuple[tuple[str, str, str], ...] = ()
    """Invalid labels: name, value and expected value."""


UNRESTRICTED = NamespaceLevels()


def levels_from_labels(labels: Mapping[str, str]) -> NamespaceLevels:
    """Parse the labels. An invalid enforce level counts as restricted, other invalid levels as privileged."""
    given = {key.removeprefix(LABEL_PREFIX): value for key, value in labels.items() if key.startswith(LABEL_PREFIX)}
    if not given:
        return UNRESTRICTED
    levels, faults = {}, []
    for mode, fallback in (("enforce", "restricted"), ("audit", "privileged"), ("warn", "privileged")):
        level, version = given.get(mode, "privileged"), given.get(f"{mode}-version", "latest")
        if level not in LEVELS:
            faults.append((LABEL_PREFIX + mode, level, f"must be one of {', '.join(LEVELS)}"))
            level = fallback
        if VERSION_PATTERN.fullmatch(version) is None:
            faults.append((f"{LABEL_PREFIX}{mode}-version", version, 'must be "latest" or "v1.x"'))
            version = "latest"
        levels[mode] = LevelVersion(level, version)
    enforce, warn = levels["enforce"], levels["warn"]
    if "warn" not in given and given.get("enforce") in LEVELS:
        warn = replace(enforce, version=warn.version if "warn-version" in given else enforce.version)
    return NamespaceLevels(enforce, warn, tuple(faults))


@dataclass(frozen=True)
class PodSecurity:
    """An admission step that checks pods and pod templates against the levels of their namespace."""

    store: Store

    async def __call__(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        resource, subresource = request.target.info.storage, request.target.subresource
        if resource == "pods" and subresource in ("", "ephemeralcontainers", "resize"):
            if old is None or container_images(old) != container_images(new):
                self.check(request, new, self.namespace_levels(request))
        elif resource in TEMPLATE_PATHS and not subresource:
            template = value_at(new, *TEMPLATE_PATHS[resource])
            if template:
                self.warn(request, template, self.namespace_levels(request))
        elif resource == "namespaces" and not subresource:
            self.check_namespace(request, old, new)
        return new

    def namespace_levels(self, request: WriteRequest) -> NamespaceLevels:
        namespace = self.store.get("namespaces", "", request.target.namespace)
        return levels_from_labels(namespace.labels) if namespace is not None else UNRESTRICTED

    def check(self, request: WriteRequest, pod: Object, levels: NamespaceLevels) -> None:
        if violated := violations(pod, levels.enforce.level):
            raise admission_forbidden(
                request, f'violates PodSecurity "{levels.enforce}": {violations_text(pod, violated)}'
            )
        self.warn(request, pod, levels)

    def warn(self, request: WriteRequest, pod: Object, levels: NamespaceLevels) -> None:
        if violated := violations(pod, levels.warn.level):
            request.warnings.append(f'would violate PodSecurity "{levels.warn}": {violations_text(pod, violated)}')

    def check_namespace(self, request: WriteRequest, old: Object | None, new: Object) -> None:
        """Reject invalid labels. Warn about existing pods that violate the new level."""
        policy = levels_from_labels(labels_of(new))
        before = levels_from_labels(labels_of(old)) if old is not None else UNRESTRICTED
        if policy.faults and policy.faults != before.faults:
            label, value, expected = policy.faults[0]
            field = f"metadata.labels[{label}]"
            raise api_errors.invalid_field(
                request.target.info.resource, name_of(new), field, f'Invalid value: "{value}": {expected}'
            )
        is_stricter = LEVELS.index(policy.enforce.level) > LEVELS.index(before.enforce.level)
        if old is not None and (is_stricter or policy.enforce.version != before.enforce.version):
            request.warnings.extend(self.existing_pod_warnings(name_of(new), policy.enforce))

    def existing_pod_warnings(self, namespace: str, level_version: LevelVersion) -> Iterator[str]:
        """Warnings about existing pods, grouped by violation."""
        reasons: dict[str, list[str]] = {}
        for version in self.store.list_objects("pods", namespace)[:MAX_PODS_CHECKED]:
            pod: Object = msgspec.json.decode(version.raw)
            if pod_violations := violations(pod, level_version.level):
                reasons.setdefault(
                    ", ".join(reason for reason, _ in reasons_and_details(pod, pod_violations)), []
                ).append(name_of(pod))
        if reasons:
            new_level = f'the new PodSecurity enforce level "{level_version}"'
            yield f'existing pods in namespace "{namespace}" violate {new_level}'
        yield from sorted(f"{pods[0]}{others_suffix(len(pods) - 1)}: {reason}" for reason, pods in reasons.items())


def container_images(pod: Object) -> list[object]:
    """The updatable parts of a pod that the standards check: names and images of containers."""
    return [
        (each.get("name"), each.get("image")) for field in CONTAINER_FIELDS for each in pod["spec"].get(field) or ()
    ]


def others_suffix(count: int) -> str:
    return "" if not count else " (and 1 other pod)" if count == 1 else f" (and {count} other pods)"


# -- message texts of Kubernetes


def violations_text(pod: Object, pod_violations: Sequence[Violation]) -> str:
    return ", ".join(
        f"{reason} ({detail})" if detail else reason for reason, detail in reasons_and_details(pod, pod_violations)
    )


def reasons_and_details(pod: Object, pod_violations: Sequence[Violation]) -> Iterator[tuple[str, str]]:
    """The reason and details of each failed check, those of `baseline` first."""
    for rule, rule_violations in groupby(
        sorted(pod_violations, key=lambda each: (each.rule not in BASELINE_RULES, each.rule)), rule_name
    ):
        reason, detail = RULE_MESSAGES.get(rule, (rule, lambda _: ""))
        yield reason, detail(RuleViolations(pod, list(rule_violations)))


def rule_name(violation: Violation) -> str:
    return violation.rule


@dataclass(frozen=True)
class RuleViolations:
    """The violations of one check by a pod."""

    pod: Object
    violations: Sequence[Violation]

    def where(self, holds: Callable[[Violation], bool]) -> "RuleViolations":
        return RuleViolations(self.pod, [each for each in self.violations if holds(each)])

    def entry_names(self, *lists: str) -> list[str]:
        """Names of the affected entries of these lists."""
        matches = (ENTRY_PATH.match(each.path) for each in self.violations)
        entries = (
            self.pod["spec"][match[1]][int(match[2])] for match in matches if match is not None and match[1] in lists
        )
        return list(dict.fromkeys(each["name"] for each in entries))

    @property
    def containers(self) -> str:
        return counted_list("container", self.entry_names(*CONTAINER_FIELDS))

    @property
    def setting_subjects(self) -> str:
        """The pod, containers and annotations that set the forbidden value."""
        pod = ["pod"] if any(each.path.startswith("spec.securityContext") for each in self.violations) else []
        containers = [self.containers] if self.entry_names(*CONTAINER_FIELDS) else []
        annotations = sum(1 for each in self.violations if each.path.startswith("metadata."))
        return " and ".join([*pod, *containers, *([pluralized("annotation", annotations)] if annotations else [])])

    @property
    def values(self) -> list[str]:
        return sorted({each.found for each in self.violations})

    @property
    def verb(self) -> str:
        return "uses" if len(self.entry_names(*CONTAINER_FIELDS, "volumes")) == 1 else "use"


ENTRY_PATH = re.compile(r"spec\.(\w+)\[(\d+)\]")


def pluralized(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def quoted_list(values: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in values)


def counted_list(word: str, values: Sequence[str]) -> str:
    return f"{pluralized(word, len(values))} {quoted_list(values)}"


def last_field(violation: Violation) -> str:
    return violation.path.rpartition(".")[2]


def capabilities_detail(findings: RuleViolations) -> str:
    no_drop = findings.where(lambda each: last_field(each) == "drop")
    added = findings.where(lambda each: last_field(each) != "drop")
    texts = [f'{no_drop.containers} must set securityContext.capabilities.drop=["ALL"]'] if no_drop.violations else []
    return "; ".join(texts + ([added_capabilities_detail(added)] if added.violations else []))


def added_capabilities_detail(findings: RuleViolations) -> str:
    return f"{findings.containers} must not include {quoted_list(findings.values)} in securityContext.capabilities.add"


def volumes_detail(findings: RuleViolations) -> str:
    kinds = sorted({last_field(each) for each in findings.violations})
    volumes = counted_list("volume", findings.entry_names("volumes"))
    return f"{volumes} {findings.verb} {counted_list('restricted volume type', kinds)}"


def root_detail(findings: RuleViolations) -> str:
    explicit = findings.where(lambda each: each.found != "unset")
    if explicit.violations:
        return f"{explicit.setting_subjects} must not set securityContext.runAsNonRoot=false"
    return f"pod or {findings.containers} must set securityContext.runAsNonRoot=true"


def selinux_detail(findings: RuleViolations) -> str:
    types = findings.where(lambda each: last_field(each) == "type").values
    others = [field for field in ("user", "role") if any(last_field(each) == field for each in findings.violations)]
    details = [*([counted_list("type", types)] if types else []), *(f"{each} may not be set" for each in others)]
    return f"{findings.setting_subjects} set forbidden securityContext.seLinuxOptions: {'; '.join(details)}"


def seccomp_detail(findings: RuleViolations) -> str:
    explicit = findings.where(lambda each: each.found != "unset")
    if explicit.violations:
        values = quoted_list(explicit.values)
        return f"{explicit.setting_subjects} must not set securityContext.seccompProfile.type to {values}"
    requirement = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return f"pod or {findings.containers} {requirement}"


Detail = Callable[[RuleViolations], str]

BASELINE_RULES = frozenset(rule.name for rule in CHECKS_BY_LEVEL["baseline"])
RULE_MESSAGES: Mapping[str, tuple[str, Detail]] = {
    "allowPrivilegeEscalation": (
        "allowPrivilegeEscalation != false",
        lambda rule: f"{rule.containers} must set securityContext.allowPrivilegeEscalation=false",
    ),
    "appArmorProfile": (
        "forbidden AppArmor profile",
        lambda rule: f"{rule.setting_subjects} must not set AppArmor profile type to {quoted_list(rule.values)}",
    ),
    "capabilities_baseline": ("non-default capabilities", added_capabilities_detail),
    "capabilities_restricted": ("unrestricted capabilities", capabilities_detail),
    "hostNamespaces": (
        "host namespaces",
        lambda rule: ", ".join(f"{last_field(each)}=true" for each in rule.violations),
    ),
    "hostPathVolumes": ("hostPath volumes", lambda rule: counted_list("volume", rule.entry_names("volumes"))),
    "hostPorts": (
        "hostPort",
        lambda rule: (
            f"{rule.containers} {rule.verb} {pluralized('hostPort', len(rule.values))} {', '.join(rule.values)}"
        ),
    ),
    "hostProbesAndHostLifecycle": (
        "probe or lifecycle host",
        lambda rule: f"{rule.containers} {rule.verb} {counted_list('probe or lifecycle host', rule.values)}",
    ),
    "privileged": (
        "privileged",
        lambda rule: f"{rule.containers} must not set securityContext.privileged=true",
    ),
    "procMount": (
        "procMount",
        lambda rule: f"{rule.containers} must not set securityContext.procMount to {quoted_list(rule.values)}",
    ),
    "restrictedVolumes": ("restricted volume types", volumes_detail),
    "runAsNonRoot": ("runAsNonRoot != true", root_detail),
    "runAsUser": ("runAsUser=0", lambda rule: f"{rule.setting_subjects} must not set runAsUser=0"),
    "seLinuxOptions": ("seLinuxOptions", selinux_detail),
    "seccompProfile_baseline": ("seccompProfile", seccomp_detail),
    "seccompProfile_restricted": ("seccompProfile", seccomp_detail),
    "sysctls": ("forbidden sysctls", lambda rule: ", ".join(each.found for each in rule.violations)),
    "windowsHostProcess": (
        "hostProcess",
        lambda rule: f"{rule.setting_subjects} must not set securityContext.windowsOptions.hostProcess=true",
    ),
}
