"""Pod Security: which of the standards the pods of a namespace are held to, as its labels say.

    pod-security.kubernetes.io/enforce: restricted    what is against it is refused
    pod-security.kubernetes.io/warn: baseline         what is against it is let in with a warning

The standards themselves are `tapestry.kube.pod_security`, as the newest version of Kubernetes that we know has them:
an older one may be named and is only repeated.  Here are Kubernetes' words for what they find.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.plain import refused
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.pod_security import STANDARD, Violation, violations
from tapestry.kube.pods import LISTS

PREFIX = "pod-security.kubernetes.io/"
LEVELS = ("privileged", "baseline", "restricted")
VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]*)")
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "podtemplates": ("template",),
    "cronjobs.batch": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(("replicationcontrollers", "replicasets.apps", "deployments.apps"), ("spec", "template")),
    **dict.fromkeys(("statefulsets.apps", "daemonsets.apps", "jobs.batch"), ("spec", "template")),
}
"""Where kinds that make pods have what these look like."""
MOST_PODS = 3000
"""Pods that a namespace's new level is compared with, for a warning."""


@dataclass(frozen=True)
class Standard:
    """A level in a version; as a string, as messages name it."""

    level: str = "privileged"
    version: str = "latest"

    def __str__(self) -> str:
        return f"{self.level}:{self.version}"


@dataclass(frozen=True)
class Policy:
    """What a namespace asks of its pods."""

    enforce: Standard = Standard()
    warn: Standard = Standard()
    faults: tuple[tuple[str, str, str], ...] = ()
    """Labels that mean nothing: their name, their value, and what it must be."""


PRIVILEGED = Policy()


def policy_of(labels: Mapping[str, str]) -> Policy:
    """What the labels say; a level to enforce that nobody knows is the strictest, another one is none."""
    given = {key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)}
    if not given:
        return PRIVILEGED
    found, faults = {}, []
    for mode, otherwise in (("enforce", "restricted"), ("audit", "privileged"), ("warn", "privileged")):
        level, version = given.get(mode, "privileged"), given.get(f"{mode}-version", "latest")
        if level not in LEVELS:
            faults.append((PREFIX + mode, level, f"must be one of {', '.join(LEVELS)}"))
            level = otherwise
        if VERSION.fullmatch(version) is None:
            faults.append((f"{PREFIX}{mode}-version", version, 'must be "latest" or "v1.x"'))
            version = "latest"
        found[mode] = Standard(level, version)
    enforce, warn = found["enforce"], found["warn"]
    if "warn" not in given and given.get("enforce") in LEVELS:
        warn = replace(enforce, version=warn.version if "warn-version" in given else enforce.version)
    return Policy(enforce, warn, tuple(faults))


@dataclass(frozen=True)
class PodSecurity:
    """A step: pods, and what makes pods, are held to the standards of their namespace."""

    store: Store

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        resource, subresource = request.target.row.storage, request.target.subresource
        if resource == "pods" and subresource in ("", "ephemeralcontainers", "resize"):
            if old is None or images(old) != images(new):
                self.check(request, new, self.policy(request))
        elif resource in TEMPLATES and not subresource:
            template = value_at(new, *TEMPLATES[resource])
            if template:
                self.warn(request, template, self.policy(request))
        elif resource == "namespaces" and not subresource:
            self.announce(request, old, new)
        return new

    def policy(self, request: Request) -> Policy:
        namespace = self.store.get("namespaces", "", request.target.namespace)
        return policy_of(namespace.labels) if namespace is not None else PRIVILEGED

    def check(self, request: Request, pod: Object, policy: Policy) -> None:
        if found := violations(pod, policy.enforce.level):
            raise refused(request, f'violates PodSecurity "{policy.enforce}": {words(pod, found)}')
        self.warn(request, pod, policy)

    def warn(self, request: Request, pod: Object, policy: Policy) -> None:
        if found := violations(pod, policy.warn.level):
            request.warnings.append(f'would violate PodSecurity "{policy.warn}": {words(pod, found)}')

    def announce(self, request: Request, old: Object | None, new: Object) -> None:
        """Refuse labels that mean nothing; warn of pods that are there and would not be let in any more."""
        policy = policy_of(labels_of(new))
        before = policy_of(labels_of(old)) if old is not None else PRIVILEGED
        if policy.faults and policy.faults != before.faults:
            label, value, why = policy.faults[0]
            field = f"metadata.labels[{label}]"
            raise refusals.invalid(request.target.row.resource, name_of(new), field, f'Invalid value: "{value}": {why}')
        is_stricter = LEVELS.index(policy.enforce.level) > LEVELS.index(before.enforce.level)
        if old is not None and (is_stricter or policy.enforce.version != before.enforce.version):
            request.warnings.extend(self.outcasts(name_of(new), policy.enforce))

    def outcasts(self, namespace: str, standard: Standard) -> Iterator[str]:
        """What there is to say of the pods that are there, those of one kind together."""
        reasons: dict[str, list[str]] = {}
        for version in self.store.every("pods", namespace)[:MOST_PODS]:
            pod: Object = msgspec.json.decode(version.raw)
            if found := violations(pod, standard.level):
                reasons.setdefault(", ".join(reason for reason, _ in accounts(pod, found)), []).append(name_of(pod))
        if reasons:
            yield f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{standard}"'
        yield from sorted(f"{pods[0]}{others(len(pods) - 1)}: {reason}" for reason, pods in reasons.items())


def images(pod: Object) -> list[object]:
    """What of a pod can change that standards ask about: containers come, and their images."""
    return [(each.get("name"), each.get("image")) for field in LISTS for each in pod["spec"].get(field) or ()]


def others(count: int) -> str:
    return "" if not count else " (and 1 other pod)" if count == 1 else f" (and {count} other pods)"


# -- Kubernetes' words


def words(pod: Object, found: Sequence[Violation]) -> str:
    return ", ".join(f"{reason} ({detail})" if detail else reason for reason, detail in accounts(pod, found))


def accounts(pod: Object, found: Sequence[Violation]) -> Iterator[tuple[str, str]]:
    """A reason and its details for every check that failed, those of `baseline` first."""
    for rule, those in groupby(sorted(found, key=lambda each: (each.rule not in BASELINE, each.rule)), rule_of):
        reason, detail = WORDS.get(rule, (rule, lambda _: ""))
        yield reason, detail(Findings(pod, list(those)))


def rule_of(violation: Violation) -> str:
    return violation.rule


@dataclass(frozen=True)
class Findings:
    """What one check has against a pod."""

    pod: Object
    found: Sequence[Violation]

    def where(self, holds: Callable[[Violation], bool]) -> "Findings":
        return Findings(self.pod, [each for each in self.found if holds(each)])

    def named(self, *lists: str) -> list[str]:
        """The names of the entries of these lists that it is about."""
        places = (PLACE.match(each.path) for each in self.found)
        entries = (
            self.pod["spec"][place[1]][int(place[2])] for place in places if place is not None and place[1] in lists
        )
        return list(dict.fromkeys(each["name"] for each in entries))

    @property
    def containers(self) -> str:
        return listed("container", self.named(*LISTS))

    @property
    def setters(self) -> str:
        """The pod, its containers: whoever says it."""
        pod = ["pod"] if any(each.path.startswith("spec.securityContext") for each in self.found) else []
        containers = [self.containers] if self.named(*LISTS) else []
        notes = sum(1 for each in self.found if each.path.startswith("metadata."))
        return " and ".join([*pod, *containers, *([plural("annotation", notes)] if notes else [])])

    @property
    def values(self) -> list[str]:
        return sorted({each.found for each in self.found})

    @property
    def verb(self) -> str:
        return "uses" if len(self.named(*LISTS, "volumes")) == 1 else "use"


PLACE = re.compile(r"spec\.(\w+)\[(\d+)\]")


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def quoted(values: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in values)


def listed(word: str, values: Sequence[str]) -> str:
    return f"{plural(word, len(values))} {quoted(values)}"


def field_of(violation: Violation) -> str:
    return violation.path.rpartition(".")[2]


def of_capabilities(findings: Findings) -> str:
    kept = findings.where(lambda each: field_of(each) == "drop")
    gained = findings.where(lambda each: field_of(each) != "drop")
    said = [f'{kept.containers} must set securityContext.capabilities.drop=["ALL"]'] if kept.found else []
    return "; ".join(said + ([of_added_capabilities(gained)] if gained.found else []))


def of_added_capabilities(findings: Findings) -> str:
    return f"{findings.containers} must not include {quoted(findings.values)} in securityContext.capabilities.add"


def of_volumes(findings: Findings) -> str:
    kinds = sorted({field_of(each) for each in findings.found})
    return f"{listed('volume', findings.named('volumes'))} {findings.verb} {listed('restricted volume type', kinds)}"


def of_root(findings: Findings) -> str:
    explicit = findings.where(lambda each: each.found != "unset")
    if explicit.found:
        return f"{explicit.setters} must not set securityContext.runAsNonRoot=false"
    return f"pod or {findings.containers} must set securityContext.runAsNonRoot=true"


def of_selinux(findings: Findings) -> str:
    types = findings.where(lambda each: field_of(each) == "type").values
    others = [field for field in ("user", "role") if any(field_of(each) == field for each in findings.found)]
    said = [*([listed("type", types)] if types else []), *(f"{each} may not be set" for each in others)]
    return f"{findings.setters} set forbidden securityContext.seLinuxOptions: {'; '.join(said)}"


def of_seccomp(findings: Findings) -> str:
    explicit = findings.where(lambda each: each.found != "unset")
    if explicit.found:
        return f"{explicit.setters} must not set securityContext.seccompProfile.type to {quoted(explicit.values)}"
    wanted = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return f"pod or {findings.containers} {wanted}"


Detail = Callable[[Findings], str]

BASELINE = frozenset(rule.name for rule in STANDARD["baseline"])
WORDS: Mapping[str, tuple[str, Detail]] = {
    "allowPrivilegeEscalation": (
        "allowPrivilegeEscalation != false",
        lambda found: f"{found.containers} must set securityContext.allowPrivilegeEscalation=false",
    ),
    "appArmorProfile": (
        "forbidden AppArmor profile",
        lambda found: f"{found.setters} must not set AppArmor profile type to {quoted(found.values)}",
    ),
    "capabilities_baseline": ("non-default capabilities", of_added_capabilities),
    "capabilities_restricted": ("unrestricted capabilities", of_capabilities),
    "hostNamespaces": (
        "host namespaces",
        lambda found: ", ".join(f"{field_of(each)}=true" for each in found.found),
    ),
    "hostPathVolumes": ("hostPath volumes", lambda found: listed("volume", found.named("volumes"))),
    "hostPorts": (
        "hostPort",
        lambda found: (
            f"{found.containers} {found.verb} {plural('hostPort', len(found.values))} {', '.join(found.values)}"
        ),
    ),
    "hostProbesAndHostLifecycle": (
        "probe or lifecycle host",
        lambda found: f"{found.containers} {found.verb} {listed('probe or lifecycle host', found.values)}",
    ),
    "privileged": (
        "privileged",
        lambda found: f"{found.containers} must not set securityContext.privileged=true",
    ),
    "procMount": (
        "procMount",
        lambda found: f"{found.containers} must not set securityContext.procMount to {quoted(found.values)}",
    ),
    "restrictedVolumes": ("restricted volume types", of_volumes),
    "runAsNonRoot": ("runAsNonRoot != true", of_root),
    "runAsUser": ("runAsUser=0", lambda found: f"{found.setters} must not set runAsUser=0"),
    "seLinuxOptions": ("seLinuxOptions", of_selinux),
    "seccompProfile_baseline": ("seccompProfile", of_seccomp),
    "seccompProfile_restricted": ("seccompProfile", of_seccomp),
    "sysctls": ("forbidden sysctls", lambda found: ", ".join(each.found for each in found.found)),
    "windowsHostProcess": (
        "hostProcess",
        lambda found: f"{found.setters} must not set securityContext.windowsOptions.hostProcess=true",
    ),
}
