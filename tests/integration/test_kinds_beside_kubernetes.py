"""Comparison of new objects of every kind on our API server and on a kube-apiserver."""

from pathlib import Path
from typing import Any

import yaml

from tapestry.kube.objects import Object, name_of, without_field

from .sides import JSON, Ours, Theirs

SPECIMENS: list[Object] = list(yaml.safe_load_all(Path(__file__).with_name("specimens.yaml").read_text()))
THEIRS_ALONE: dict[str, tuple[tuple[str, ...], ...]] = {
    "Node": (("spec", "taints"), ("status",)),  # a controller of Kubernetes would remove the taint
    "CustomResourceDefinition": (("status",),),  # our server serves it at once
    "ValidatingAdmissionPolicy": (("status",),),  # our server checks it at once
    "Service": tuple(("spec", field) for field in ("clusterIP", "clusterIPs")),
    "ClusterRole": (("rules",),),  # absent or an empty list
    "VolumeAttributesClass": (("metadata", "finalizers"),),
    "Pod": (("spec", "priority"),),
}
"""Fields in which the two servers may differ."""
IDENTITY = ("uid", "resourceVersion", "creationTimestamp", "managedFields")
OF_ONE_OBJECT = {"controller-uid", "batch.kubernetes.io/controller-uid", "lastPhaseTransitionTime"}


def path_of(ours: Ours, obj: Object) -> str:
    group, _, version = f"/{obj['apiVersion']}".rpartition("/")
    group = group.strip("/")
    row = next(
        row
        for row in ours.server.registry
        if (row.resource.group, row.resource.version, row.resource.kind) == (group, version, obj["kind"])
    )
    root = f"/apis/{obj['apiVersion']}" if group else f"/api/{version}"
    return f"{root}{'/namespaces/default' if row.resource.namespaced else ''}/{row.resource.plural}"


def comparable(value: Any) -> Any:
    """Return `value` without empty fields and fields specific to this object."""
    if isinstance(value, dict):
        return {
            key: comparable(each) for key, each in value.items() if each not in (None, "") and key not in OF_ONE_OBJECT
        }
    return [comparable(each) for each in value] if isinstance(value, list) else value


def comparable_object(obj: Object) -> Object:
    for path in (*(("metadata", field) for field in IDENTITY), *THEIRS_ALONE.get(obj["kind"], ())):
        obj = without_field(obj, *path)
    found: Object = comparable(obj)
    return found


async def test_both_servers_complete_new_objects_of_every_kind_alike(ours: Ours, theirs: Theirs) -> None:
    found, expected = {}, {}
    for specimen in SPECIMENS:
        path, name = path_of(ours, specimen), name_of(specimen)
        what = f"{specimen['apiVersion']} {specimen['kind']} {name}"
        for side, made in ((ours, found), (theirs, expected)):
            status, obj = await side("POST", path, specimen, JSON, {})
            made[what] = status, comparable_object(obj)
        await theirs("DELETE", f"{path}/{name}", None, JSON, {"gracePeriodSeconds": "0"})
    assert found == expected
