"""Twins of the Ingresses of a tenant, and what its host cluster reports about them.

An ingress controller of the owner serves all tenants, so an Ingress must not take over requests to others:

- Each host is below the domain of the tenant, ID.DOMAIN, in which ID is the id of its plane. There are no rules for all
  hosts and no default backend.
- Backends are twins of the tenant's Services, and certificates are copies of its Secrets.
- No annotations are copied: they change what the controller does, for example with parts of its configuration. For the
  same reason, paths have only characters that mean nothing in such a configuration.

Ingresses of other classes are left to controllers in the plane.
"""

import re
from collections.abc import Iterator
from typing import Any

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, physical_service_name
from tapestry.kube.objects import Object, annotations_of, name_of, namespace_of
from tapestry.kube.resources import INGRESSES, SECRETS
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.services import pick_fields
from tapestry.tenants.sync.service_translation import reported_ingress
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin
from tapestry.tenants.tenant_binding import ingress_suffix

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
SAFE_PATH = "^(/[A-Za-z0-9._~/%:@=+-]*)?$"
"""Paths that mean nothing special in the configuration of an ingress controller."""
MAX_PATHS = 100
"""Maximum rules, paths and certificates of an Ingress: the controller of the owner works on all of them."""


def desired_ingress(ingress: Object, binding: Binding) -> Object:
    """Return the desired twin of an Ingress. Raises NoTwin."""
    if not binding.spec.sync.ingresses:
        raise NoTwin
    suffix = ingress_suffix(binding)
    if not suffix or binding.host is None:
        raise NotSynced("IngressesNotOffered", "the HostCluster names no class and no domain for Ingresses of tenants")
    offered = binding.host.ingress_class
    if not is_offered_class(ingress, binding):
        message = f"spec.ingressClassName: the host cluster serves the class {offered}; other classes need a controller"
        raise NotSynced("ClassNotOffered", f"{message} in this cluster")
    if error := next(errors_of(ingress["spec"], suffix), None):
        raise error
    return {
        "apiVersion": INGRESSES.api_version,
        "kind": INGRESSES.kind,
        "metadata": {
            "name": twin_ingress_name(ingress, binding),
            "namespace": binding.spec.mount_namespace,
            **source_metadata(ingress, binding),
        },
        "spec": {
            "ingressClassName": offered,
            "defaultBackend": None,
            "rules": [twin_rule(rule, ingress, binding) for rule in ingress["spec"]["rules"]],
            "tls": [twin_tls(each, ingress, binding) for each in ingress["spec"].get("tls") or ()] or None,
        },
    }


def twin_ingress_name(ingress: Object, binding: Binding) -> str:
    return physical_name(binding.virtual_cluster, binding.uid, namespace_of(ingress) or "", name_of(ingress))


def is_offered_class(ingress: Object, binding: Binding) -> bool:
    """Return whether an Ingress has the class that the host cluster serves, or none."""
    given = ingress["spec"].get("ingressClassName") or annotations_of(ingress).get(CLASS_ANNOTATION, "")
    return given in ("", binding.host.ingress_class if binding.host is not None else "")


def errors_of(spec: Object, suffix: str) -> Iterator[NotSynced]:
    """Yield what an Ingress may not have in the host cluster."""
    rules = spec.get("rules") or ()
    if max(len(rules), len(spec.get("tls") or ()), sum(len(paths_of(each)) for each in rules)) > MAX_PATHS:
        message = f"spec.rules: an Ingress may have {MAX_PATHS} rules, paths and certificates in the host cluster"
        yield NotSynced("TooManyPaths", message)
    if spec.get("defaultBackend") is not None:
        message = "spec.defaultBackend: it would answer requests to other tenants; give a rule for each host"
        yield NotSynced("DefaultBackendNotAllowed", message)
    for number, rule in enumerate(rules):
        yield from host_errors(f"spec.rules[{number}].host", rule.get("host") or "", suffix)
        for index, each in enumerate(paths_of(rule)):
            yield from path_errors(f"spec.rules[{number}].http.paths[{index}]", each)
    for number, entry in enumerate(spec.get("tls") or ()):
        for index, host in enumerate(entry.get("hosts") or ()):
            yield from host_errors(f"spec.tls[{number}].hosts[{index}]", host, suffix)


def host_errors(path: str, host: str, suffix: str) -> Iterator[NotSynced]:
    if not host.endswith(suffix):
        given = f"{host} is" if host else "a rule for all hosts is"
        yield NotSynced("HostNotAllowed", f"{path}: {given} not allowed; the hosts of this cluster end with {suffix}")


def path_errors(path: str, entry: Object) -> Iterator[NotSynced]:
    if re.fullmatch(SAFE_PATH, entry.get("path") or "") is None:
        message = f"{path}.path: only letters, digits and the characters ._~/%:@=+- are allowed"
        yield NotSynced("PathNotAllowed", message)
    if entry["backend"].get("service") is None:
        yield NotSynced("BackendNotAllowed", f"{path}.backend.resource: only Services are synced")


def paths_of(rule: Object) -> list[Object]:
    paths: list[Object] = (rule.get("http") or {}).get("paths") or []
    return paths


def twin_rule(rule: Object, ingress: Object, binding: Binding) -> Object:
    paths = [twin_path(each, ingress, binding) for each in paths_of(rule)]
    return {"host": rule["host"], **({"http": {"paths": paths}} if paths else {})}


def twin_path(path: Object, ingress: Object, binding: Binding) -> Object:
    service = path["backend"]["service"]
    name = physical_service_name(binding.virtual_cluster, binding.uid, namespace_of(ingress) or "", service["name"])
    port: Object = pick_fields(service.get("port") or {}, ("name", "number"))
    return {**pick_fields(path, ("path", "pathType")), "backend": {"service": {"name": name, "port": port}}}


def twin_tls(entry: Object, ingress: Object, binding: Binding) -> Object:
    """Return an entry about certificates; one without hosts is for those of the rules."""
    hosts: list[str] = entry.get("hosts") or sorted({rule["host"] for rule in ingress["spec"]["rules"]})
    secret: dict[str, Any] = {}
    if name := entry.get("secretName"):
        secret["secretName"] = physical_name(binding.virtual_cluster, binding.uid, namespace_of(ingress) or "", name)
    return {"hosts": hosts, **secret}


def reported_status(ingress: Object, twin: Object | None, binding: Binding) -> Object:
    """Return the addresses at which the host cluster serves an Ingress. The twin is untrusted.

    The status of an Ingress that a controller in the plane serves is left alone.
    """
    if not ingress_suffix(binding) or not is_offered_class(ingress, binding):
        return {}
    addresses = [{key: value for key, value in each.items() if key != "ipMode"} for each in reported_ingress(twin)]
    return {"status": {"loadBalancer": {"ingress": addresses or None}}}


def named_certificates(ingress: Object) -> list[str]:
    """Return the Secrets that an Ingress names, as in `secrets/team-a/certificate`."""
    names = {each.get("secretName") for each in ingress["spec"].get("tls") or ()}
    return [f"{SECRETS.plural}/{namespace_of(ingress)}/{name}" for name in names if name]
