"""Treatment of each field of a spec by its engine: honored, mapped, or rejected by name.

Fields have the names of the spec of a VCluster, which are those of the contract in JSON. A mapped field has an effect
that differs from what was requested; a condition of the virtual cluster says which. A field that is not set, or false,
requests nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple

from tapestry.kube.crds import InvalidSpec, Kind, decode_spec
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import QuantityError, parse_quantity
from tapestry.vclusters.errors import Violation, field_invalid, field_unsupported


@dataclass(frozen=True)
class Provided:
    """Properties of this installation."""

    kubernetes_version: str
    """Version of planes, for example 1.34.3."""
    is_compatible: bool = False
    """Map what clients of the published contract request by default: an older version, and another distribution."""
    has_own_processes: bool = False
    """Planes can have processes of their own."""
    isolation_mode: Literal["full", "lite"] = "full"
    """Isolation mode of new virtual clusters that request none."""


class Honored(NamedTuple):
    """The field has the effect that was requested, or is no request to the engine."""


class Mapped(NamedTuple):
    message: str


class Rejected(NamedTuple):
    message: str


Treatment = Honored | Mapped | Rejected
Treat = Callable[[Any, Provided], Treatment]


def honored(_: Any, __: Provided) -> Treatment:
    return Honored()


def mapped(message: str) -> Treat:
    return lambda _, __: Mapped(message)


def rejected(message: str) -> Treat:
    return lambda _, __: Rejected(message)


def version(requested: str, provided: Provided) -> Treatment:
    """Treat a Kubernetes version. A patch version is not significant."""
    if minor_of(requested) == minor_of(provided.kubernetes_version):
        return Honored()
    message = f"Kubernetes {provided.kubernetes_version} is provided instead of {requested.removeprefix('v')}"
    if provided.is_compatible:
        return Mapped(message)
    return Rejected(f"must be {minor_of(provided.kubernetes_version)}: the native engine has one version of Kubernetes")


def minor_of(text: str) -> str:
    return ".".join(text.removeprefix("v").split(".")[:2])


def distribution(requested: str, provided: Provided) -> Treatment:
    if requested == "k8s":
        return Honored()
    if provided.is_compatible:
        return Mapped(f"the distribution is k8s instead of {requested}")
    return Rejected("must be k8s: the native engine has no other distribution")


def cpu_request(requested: str, provided: Provided) -> Treatment:
    if not needs_own_process(requested):
        return Mapped(ONLY_QUOTA)
    return Honored() if provided.has_own_processes else Mapped(f"{ONLY_QUOTA}; a process of its own needs etcd")


def needs_own_process(cpu_request: str) -> bool:
    """Return whether a plane gets a process of its own: one that is shared has a core for all of its planes."""
    return bool(cpu_request) and parse_quantity(cpu_request) >= parse_quantity(OWN_PROCESS_CPU)


def replicas(requested: int, _: Provided) -> Treatment:
    return Honored() if requested == 1 else Rejected("must be 1: one process holds a plane")


def addresses(requested: str | Sequence[str], _: Provided) -> Treatment:
    """Treat one or more addresses. Pods have three name servers at most, and that of the cluster is the first."""
    given = [requested] if isinstance(requested, str) else requested
    if len(given) > MAX_NAMESERVERS or not all(map(is_address, given)):
        return Rejected(f"must be at most {MAX_NAMESERVERS} IP addresses")
    return Honored()


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


MAX_NAMESERVERS = 2
HOST_ADDRESSES = "the host cluster allocates the addresses of Services and pods"
OWN_PROCESS_CPU = "1"
"""CPU request from which a plane has a process of its own."""
ONLY_QUOTA = "counts for the quota of the project and the capacity of the host cluster only"
NO_PLUGINS = "must be empty: the native engine has no plugins"
NO_CERT_MANAGER = "must be empty: TLS ends at the plane"
NO_ACCOUNT_ANNOTATIONS = "must be empty: only the owner of the host cluster annotates the account"

NATIVE: Mapping[str, Treat] = {
    "project": honored,
    "owner": honored,
    "engine": honored,
    "hostCluster": honored,
    "suspended": honored,
    "expireTime": honored,
    "deletionProtection": honored,
    "operation": honored,
    "kubernetesVersion": version,
    "distro": distribution,
    "resources.cpuRequest": cpu_request,
    "resources.cpuLimit": honored,
    "resources.memoryRequest": mapped(ONLY_QUOTA),
    "resources.memoryLimit": mapped(f"{ONLY_QUOTA}; storage.persistenceSize limits the objects of a plane"),
    "resources.ephemeralStorageRequest": rejected("must be empty: storage.persistenceSize limits the store of a plane"),
    "resources.ephemeralStorageLimit": rejected("must be empty: storage.persistenceSize limits the store of a plane"),
    "replicas": replicas,
    "enableHa": rejected("must be false: one process holds a plane"),
    "network.podCidr": mapped(HOST_ADDRESSES),
    "network.serviceCidr": mapped(HOST_ADDRESSES),
    "network.enableNetworkPolicies": honored,
    "network.dnsServiceIp": addresses,
    "network.dns.nameservers": addresses,
    "network.dns.searches": honored,
    "network.dns.options": honored,
    "storage.defaultStorageClass": honored,
    "storage.enablePersistence": honored,
    "storage.persistenceSize": honored,
    "storage.persistenceStorageClass": mapped("the objects are in the storage of the service, without a claim"),
    "sync.syncNodes": honored,
    "sync.syncPersistentVolumes": honored,
    "sync.syncStorageClasses": honored,
    "sync.syncIngresses": honored,
    "sync.syncPriorityClasses": honored,
    "sync.syncNetworkPolicies": honored,
    "sync.syncPodDisruptionBudgets": honored,
    "sync.customResources": rejected("must be empty: custom resources are not synced"),
    "ingress.enabled": honored,
    "ingress.ingressClass": honored,
    "ingress.hostname": honored,
    "ingress.annotations": honored,
    "ingress.tls.enabled": honored,
    "ingress.tls.secretName": rejected(NO_CERT_MANAGER),
    "ingress.tls.useCertManager": rejected(NO_CERT_MANAGER),
    "ingress.tls.issuerName": rejected(NO_CERT_MANAGER),
    "serviceAccount.name": honored,
    "serviceAccount.annotations": rejected(NO_ACCOUNT_ANNOTATIONS),
    "serviceAccount.automountToken": rejected("must be false: pods never get a token of the host cluster"),
    "isolationMode": honored,
    "plugins": rejected(NO_PLUGINS),
    "helmValues": rejected("must be empty: the native engine has no chart"),
}
"""Treatment of each field by the native engine. A field below one of these is part of it."""

ENGINES: Mapping[str, Mapping[str, Treat]] = {"native": NATIVE}

IMMUTABLE = ("project", "owner", "engine", "hostCluster", "storage.enablePersistence")
"""Fields that do not change after creation."""
SIZE_LIMITS = (("cpuRequest", "cpuLimit"), ("memoryRequest", "memoryLimit"))


class Report(NamedTuple):
    rejected: tuple[Violation, ...]
    mapped: tuple[Violation, ...]


def treat_spec(spec: Object, provided: Provided) -> Report:
    """Return the fields of a spec that its engine rejects or maps."""
    rejected, mapped = [], []
    for path, treat in ENGINES[spec.get("engine") or "native"].items():
        value = value_at(spec, *path.split("."))
        treatment = treat(value, provided) if value else Honored()
        if isinstance(treatment, Rejected):
            rejected.append(Violation(f"spec.{path}", treatment.message))
        elif isinstance(treatment, Mapped):
            mapped.append(Violation(f"spec.{path}", treatment.message))
    return Report(tuple(rejected), tuple(mapped))


def with_valid_spec(kind: Kind[Any], obj: Object) -> Object:
    """Return an object whose spec has the types of its kind. Raises ServiceError.

    The management API checks the schema only after the admission, which relies on it.
    """
    result: Object = {**obj, "spec": obj.get("spec", {})}
    try:
        decode_spec(kind, result)
    except InvalidSpec as error:
        field, _, problem = str(error).partition(": ")
        raise field_invalid(Violation(field, problem[:200])) from error
    return result


def check_spec(spec: Object, provided: Provided) -> None:
    """Raise ServiceError unless the engine can run the spec, which has the types of its kind."""
    if faults := [*quantity_faults(spec)] or [*spec_faults(spec)]:
        raise field_invalid(*faults)
    if report := treat_spec(spec, provided).rejected:
        raise field_unsupported(*report)


def quantity_faults(spec: Object) -> Iterator[Violation]:
    """Yield amounts that are too large to be parsed."""
    amounts = {f"resources.{name}": text for name, text in (spec.get("resources") or {}).items()}
    amounts["storage.persistenceSize"] = value_at(spec, "storage", "persistenceSize")
    for path, text in amounts.items():
        try:
            parse_quantity(text or "0")
        except QuantityError as error:
            yield Violation(f"spec.{path}", str(error))


def spec_faults(spec: Object) -> Iterator[Violation]:
    """Yield faults that the schema does not find."""
    resources = spec.get("resources") or {}
    for request, limit in SIZE_LIMITS:
        if resources.get(request) and resources.get(limit) and is_more(resources[request], resources[limit]):
            yield Violation(f"spec.resources.{request}", f"must not be more than {limit} ({resources[limit]})")
    ingress = spec.get("ingress") or {}
    if ingress.get("enabled") and not ingress.get("hostname"):
        yield Violation("spec.ingress.hostname", "must be set, because ingress.enabled is true")


def is_more(amount: str, other: str) -> bool:
    return parse_quantity(amount) > parse_quantity(other)


def check_update(old: Object, new: Object) -> None:
    """Raise ServiceError if an update changes a field that is immutable."""
    if changed := immutable_changes(old, new):
        violations = (Violation(f"spec.{path}", "cannot change after creation") for path in changed)
        raise field_invalid(*violations)


def immutable_changes(old: Object, new: Object) -> list[str]:
    """Return the immutable fields that differ between two specs."""
    defaults = {"storage.enablePersistence": True, "engine": "native"}

    def value(spec: Object, path: str) -> Any:
        found = value_at(spec, *path.split("."))
        return found if found is not None else defaults.get(path, "")

    return [path for path in IMMUTABLE if value(old, path) != value(new, path)]


def mapped_message(fields: Iterable[Violation]) -> str:
    """Return the message of the condition FieldsMapped; empty if there are none."""
    return "; ".join(f"{path.removeprefix('spec.')}: {message}" for path, message in fields)
