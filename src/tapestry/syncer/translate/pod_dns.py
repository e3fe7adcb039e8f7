"""DNS settings of a twin, which resolve the names of the virtual cluster.

The pods of a tenant never use the DNS server of the host cluster, which knows the names of other tenants.
"""

from collections.abc import Iterable
from itertools import accumulate

from tapestry.apis.clusterbindings import Binding, TenantDns
from tapestry.kube.objects import Object, namespace_of

CLUSTER_DOMAIN = "cluster.local"
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCHES_LENGTH = 2048
"""Limits of an API server for DNS settings; the last one is in characters."""


def dns_settings(pod: Object, binding: Binding) -> Object:
    """Return the DNS fields of a twin that differ from those of the pod."""
    spec, server, is_tenant = pod["spec"], binding.spec.virtual_endpoints.dns, binding.spec.is_tenant
    if uses_cluster_dns(spec):
        if server:
            return {"dnsPolicy": "None", "dnsConfig": cluster_dns_config(pod, server, binding.spec.dns)}
        # Without a server of the tenant, its pods resolve what their node resolves.
        return {"dnsPolicy": "Default", **with_config(dns_config((), (), pod, binding.spec.dns))} if is_tenant else {}
    if is_tenant and server and spec.get("dnsPolicy") == "Default" and not spec.get("hostNetwork"):
        # The servers of the node may be in a network that the pods do not reach.
        return {"dnsPolicy": "None", "dnsConfig": dns_config((server,), (), pod, binding.spec.dns)}
    return {}


def with_config(config: Object) -> Object:
    return {"dnsConfig": config} if config else {}


def uses_cluster_dns(spec: Object) -> bool:
    """Return whether a kubelet would configure the pod to use the DNS server of its cluster."""
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not spec.get("hostNetwork"))


def cluster_dns_config(pod: Object, server: str, settings: TenantDns) -> Object:
    """Return the settings of a kubelet of the virtual cluster, followed by those of the tenant and of the pod."""
    searches = [f"{namespace_of(pod)}.svc.{CLUSTER_DOMAIN}", f"svc.{CLUSTER_DOMAIN}", CLUSTER_DOMAIN]
    config = dns_config((server,), searches, pod, settings)
    options: list[Object] = config.get("options", [])
    if any(each.get("name") == "ndots" for each in options):
        return config
    return {**config, "options": [{"name": "ndots", "value": "5"}, *options]}


def dns_config(servers: Iterable[str], searches: Iterable[str], pod: Object, settings: TenantDns) -> Object:
    """Return these servers and search domains, followed by those of the tenant and of the pod, with their options."""
    own = pod["spec"].get("dnsConfig") or {}
    found = {
        "nameservers": unique([*servers, *settings.nameservers, *(own.get("nameservers") or ())])[:MAX_NAMESERVERS],
        "searches": searches_within_limit(
            unique([*searches, *settings.searches, *(own.get("searches") or ())])[:MAX_SEARCHES]
        ),
        "options": merged_options(map(parsed_option, settings.options), own.get("options") or ()),
    }
    return {field: value for field, value in found.items() if value}


def parsed_option(text: str) -> Object:
    name, separator, value = text.partition(":")
    return {"name": name, "value": value} if separator else {"name": name}


def merged_options(general: Iterable[Object], own: Iterable[Object]) -> list[Object]:
    """Return the options of the pod, and those of the tenant that the pod does not set itself."""
    listed = list(own)
    names = {each.get("name") for each in listed}
    return [*(each for each in general if each["name"] not in names), *listed]


def unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def searches_within_limit(searches: list[str]) -> list[str]:
    """Return as many of the search domains as an API server accepts."""
    lengths = accumulate(len(each) + 1 for each in searches)  # separated by spaces
    return [each for each, length in zip(searches, lengths, strict=True) if length - 1 <= MAX_SEARCHES_LENGTH]
