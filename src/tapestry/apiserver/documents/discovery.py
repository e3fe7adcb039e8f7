"""Discovery: what is served, in the two forms that clients ask for."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256

from tapestry.apiserver.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.kube.objects import Object

AGGREGATED = "APIGroupDiscoveryList"


def group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def api_versions(server: str) -> Object:
    """What is under /api."""
    address = {"clientCIDR": "0.0.0.0/0", "serverAddress": server}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}


def api_groups(registry: ResourceRegistry) -> Object:
    """What is under /apis."""
    groups = [group_versions(name, list(versions)) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(name: str, versions: Sequence[str]) -> Object:
    """What is under /apis/<group>."""
    return {"kind": "APIGroup", "apiVersion": "v1", **group_versions(name, versions)}


def group_versions(name: str, versions: Sequence[str]) -> Object:
    """A group and its versions, the preferred one first."""
    listed = [{"groupVersion": group_version(name, each), "version": each} for each in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def api_resources(group: str, version: str, rows: Sequence[ResourceInfo]) -> Object:
    """/api/v1, /apis/<group>/<version>"""
    listed = [each for row in rows for each in legacy_entries(row)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": listed,
    }


def legacy_entries(info: ResourceInfo) -> list[Object]:
    resource = info.resource
    main: Object = {
        "name": resource.plural,
        "singularName": info.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        main["shortNames"] = list(info.short_names)
    if info.categories:
        main["categories"] = list(info.categories)
    if "list" in info.verbs:
        main["storageVersionHash"] = storage_version_hash(info)
    found = [main]
    for sub in info.subresources.values():
        entry: Object = {
            "name": f"{resource.plural}/{sub.name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": sub.kind,
            "verbs": list(sub.verbs),
        }
        if (sub.group, sub.version) != (resource.group, resource.version):
            entry |= {"group": sub.group, "version": sub.version}
        found.append(entry)
    return found


def storage_version_hash(info: ResourceInfo) -> str:
    """Another one for another version in which objects are stored."""
    group, _, version = f"/{info.storage_api_version or info.resource.api_version}".rpartition("/")
    digest = sha256(f"{group.lstrip('/')}/{version}/{info.resource.kind}".encode()).digest()
    return b64encode(digest[:8]).decode()


def aggregated_discovery(registry: ResourceRegistry, *, legacy: bool) -> Object:
    """/api or /apis in one document, resources and all."""
    groups = {name: versions for name, versions in registry.groups().items() if (name == "") is legacy}
    items = [aggregated_group(name, versions) for name, versions in groups.items()]
    return {"kind": AGGREGATED, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def aggregated_group(name: str, versions: dict[str, list[ResourceInfo]]) -> Object:
    metadata: Object = {"creationTimestamp": None, **({"name": name} if name else {})}
    return {
        "metadata": metadata,
        "versions": [
            {"version": version, "resources": [aggregated_entry(row) for row in rows], "freshness": "Current"}
            for version, rows in versions.items()
        ],
    }


def aggregated_entry(info: ResourceInfo) -> Object:
    resource = info.resource
    found: Object = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        found["shortNames"] = list(info.short_names)
    if info.categories:
        found["categories"] = list(info.categories)
    if info.subresources:
        found["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": list(sub.verbs),
            }
            for sub in info.subresources.values()
        ]
    return found
