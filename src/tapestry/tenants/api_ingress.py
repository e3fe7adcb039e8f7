"""The Ingress through which clients outside of a host cluster reach the API of a plane.

TLS ends at the plane, so the ingress controller must pass it through by the server name. The owner of the host cluster
sets a domain for these host names and the annotations that this needs. A requester adds no others: annotations of
ingress controllers may contain parts of their configuration.

A host name has one label below that domain. It is therefore never below the domain of a tenant, ID.DOMAIN.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object

PASSTHROUGH_ANNOTATIONS = frozenset(
    {
        "haproxy-ingress.github.io/ssl-passthrough",
        "haproxy.org/ssl-passthrough",
        "ingress.kubernetes.io/ssl-passthrough",
        "nginx.ingress.kubernetes.io/backend-protocol",
        "nginx.ingress.kubernetes.io/ssl-passthrough",
    }
)
"""Annotations that do nothing but choose how a controller connects."""
SAFE_VALUE = "^[A-Za-z0-9]{1,16}$"


class Fault(NamedTuple):
    """A field of an IngressConfig that a HostCluster does not allow."""

    field: str
    message: str


def api_ingress_faults(
    host: HostClusterSpec, hostname: str, ingress_class: str = "", annotations: Mapping[str, str] | None = None
) -> Iterator[Fault]:
    """Yield what a HostCluster does not allow in an Ingress to the API of a plane."""
    if not (host.ingress_class and host.api_ingress_domain and host.api_address):
        text = "the HostCluster has no Ingresses to planes: it needs ingressClass, apiIngressDomain and apiAddress"
        yield Fault("enabled", text)
        return
    for key, value in host.api_ingress_annotations.items():
        if key not in PASSTHROUGH_ANNOTATIONS or re.fullmatch(SAFE_VALUE, value) is None:
            yield Fault("enabled", f"apiIngressAnnotations of the HostCluster: {key}={value} is not allowed")
    name, _, domain = hostname.partition(".")
    if dns_label_error(name) is not None or domain != host.api_ingress_domain:
        yield Fault("hostname", f"must be NAME.{host.api_ingress_domain} in this host cluster")
    if ingress_class not in ("", host.ingress_class):
        yield Fault("ingressClass", f"must be {host.ingress_class} in this host cluster")
    for key, value in (annotations or {}).items():
        if host.api_ingress_annotations.get(key) != value:
            yield Fault("annotations", f"{key}: only those of the HostCluster are allowed")


def ingress_spec(hostname: str, ingress_class: str, service: str, port: int) -> Object:
    backend = {"service": {"name": service, "port": {"number": port}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    return {
        "ingressClassName": ingress_class,
        "rules": [{"host": hostname, "http": {"paths": paths}}],
        "tls": [{"hosts": [hostname]}],
    }
