"""Discovery documents, in the legacy and the aggregated form, and the version of the served API."""

import platform
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from tapestry.apiserver.aggregation.remote_documents import RemoteGroupVersion
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.kube.objects import Object

RELEASES = {"v1.34.3": ("df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "2025-12-09T14:59:13Z")}
"""Commit and build date of each Kubernetes release whose API data we ship."""
AGGREGATED = "APIGroupDiscoveryList"


def group_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def api_versions() -> Object:
    """The document of /api."""
    address = {"clientCIDR": "0.0.0.0/0", "serverAddress": ""}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}


def api_groups(registry: ResourceRegistry, remotes: Iterable[tuple[str, str]] = ()) -> Object:
    """The document of /apis. `remotes` are group versions of other servers."""
    versions = {name: list(versions) for name, versions in registry.groups().items() if name}
    for group, version in remotes:
        versions.setdefault(group, []).append(version)
    groups = [group_versions(name, each) for name, each in versions.items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(name: str, versions: Sequence[str]) -> Object:
    """The document of /apis/<group>."""
    return {"kind": "APIGroup", "apiVersion": "v1", **group_versions(name, versions)}


def group_versions(name: str, versions: Sequence[str]) -> Object:
    """A group and its versions, the preferred one first."""
    entries = [{"groupVersion": group_version(name, each), "version": each} for each in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def api_resources(group: str, version: str, rows: Sequence[ResourceInfo]) -> Object:
    """The document of /api/v1 or /apis/<group>/<version>."""
    entries = [entry for info in rows for entry in legacy_entries(info)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": entries,
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
    entries = [main]
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
        entries.append(entry)
    return entries


def storage_version_hash(info: ResourceInfo) -> str:
    """A hash that changes with the version in which objects are stored."""
    group, _, version = f"/{info.storage_api_version or info.resource.api_version}".rpartition("/")
    digest = sha256(f"{group.lstrip('/')}/{version}/{info.resource.kind}".encode()).digest()
    return b64encode(digest[:8]).decode()


def aggregated_discovery(
    registry: ResourceRegistry, remotes: Iterable[RemoteGroupVersion] = (), *, legacy: bool
) -> Object:
    """The aggregated document of /api or /apis, with all resources."""
    groups = {name: versions for name, versions in registry.groups().items() if (name == "") is legacy}
    by_name = {name: aggregated_group(name, versions) for name, versions in groups.items()}
    for remote in remotes:
        freshness = "Stale" if remote.is_stale else "Current"
        entry = {"version": remote.version, "resources": remote.resources, "freshness": freshness}
        by_name.setdefault(remote.group, aggregated_group(remote.group, {}))["versions"].append(entry)
    items = list(by_name.values())
    return {"kind": AGGREGATED, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def aggregated_group(name: str, versions: dict[str, list[ResourceInfo]]) -> Object:
    metadata: Object = {"creationTimestamp": None, **({"name": name} if name else {})}
    return {
        "metadata": metadata,
        "versions": [
            {"version": version, "resources": [aggregated_entry(info) for info in rows], "freshness": "Current"}
            for version, rows in versions.items()
        ],
    }


def aggregated_entry(info: ResourceInfo) -> Object:
    resource = info.resource
    entry: Object = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    if info.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": list(sub.verbs),
            }
            for sub in info.subresources.values()
        ]
    return entry


def version_info(version: str) -> Object:
    """Return the body of /version: the Kubernetes release of the API, and the Python version.

    `kubectl --match-server-version` compares version, commit and tree state with its own.
    """
    major, minor, _ = version.removeprefix("v").split(".", 2)
    commit, built = RELEASES[version]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": version,
        "gitCommit": commit,
        "gitTreeState": "clean",
        "buildDate": built,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": "linux/amd64",
    }
