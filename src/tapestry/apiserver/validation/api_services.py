"""Validation of APIServices."""

from collections.abc import Iterator

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import Fault, format_validator, invalid_value, one_of, required_value
from tapestry.kube.objects import Object, name_of, value_at

PRIORITY_LIMITS = {"groupPriorityMinimum": 20000, "versionPriority": 1000}
CONDITION_STATUSES = ("True", "False", "Unknown")


def validate_api_service(obj: Object, _: str = "") -> Iterator[Fault]:
    spec = obj.get("spec") or {}
    group, version = spec.get("group", ""), spec.get("version", "")
    if name_of(obj) != f"{version}.{group}":
        reason = f'must be `spec.version+"."+spec.group`: "{version}.{group}"'
        yield invalid_value("metadata.name", name_of(obj), reason)
    if not group and version != "v1":
        yield required_value("spec.group", "only v1 may have an empty group and it better be legacy kube")
    if group:
        yield from format_validator(names.dns_subdomain_errors)(group, "spec.group")
    yield from format_validator(names.dns_1035_label_errors)(version, "spec.version")
    for field, limit in PRIORITY_LIMITS.items():
        if not 0 < spec.get(field, 0) <= limit:
            yield invalid_value(f"spec.{field}", spec.get(field, 0), f"must be positive and less than {limit}")
    yield from validate_backend(spec)


def validate_backend(spec: Object) -> Iterator[Fault]:
    service, bundle, skips = spec.get("service"), spec.get("caBundle"), spec.get("insecureSkipTLSVerify")
    if service is None:
        if bundle:
            size = len(bundle) * 3 // 4 - bundle.count("=")
            yield invalid_value("spec.caBundle", f"{size} bytes", "local APIServices may not have a caBundle")
        if skips:
            reason = "local APIServices may not have insecureSkipTLSVerify"
            yield invalid_value("spec.insecureSkipTLSVerify", skips, reason)
        return
    for field in ("namespace", "name"):
        if not service.get(field):
            yield required_value(f"spec.service.{field}")
    port = service.get("port", 0)
    if not 0 < port < 65536:
        yield invalid_value("spec.service.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    if skips and bundle:
        yield invalid_value("spec.insecureSkipTLSVerify", skips, "may not be true if caBundle is present")


def validate_api_service_status(_: Object, new: Object) -> Iterator[Fault]:
    for number, condition in enumerate(value_at(new, "status", "conditions", default=[])):
        path = f"status.conditions[{number}].status"
        yield from one_of(*CONDITION_STATUSES)(condition.get("status", ""), path)
