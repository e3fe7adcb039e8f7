"""What the in-process API says of itself: its groups, and the resources of each."""

from collections.abc import Collection

from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def discovered(path: str, resources: Collection[Resource]) -> Object | None:
    """The answer to a question about what there is; None where `path` asks for something else."""
    match path.strip("/").split("/"):
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups_of(resources)}
        case ["api", version]:
            return listed(version, resources)
        case ["apis", group, version]:
            return listed(f"{group}/{version}", resources)
    return None


def groups_of(resources: Collection[Resource]) -> list[Object]:
    versions: dict[str, dict[str, str]] = {}
    for each in resources:
        if each.group:
            versions.setdefault(each.group, {})[each.api_version] = each.version
    return [
        {"name": group, "versions": [{"groupVersion": one, "version": version} for one, version in found.items()]}
        for group, found in versions.items()
    ]


def listed(group_version: str, resources: Collection[Resource]) -> Object | None:
    """The resources of one version of a group; None where there are none."""
    found = [
        {"name": each.plural, "kind": each.kind, "namespaced": each.namespaced, "verbs": list(VERBS)}
        for each in resources
        if each.api_version == group_version
    ]
    if not found:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}
