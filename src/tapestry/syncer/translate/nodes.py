"""What a physical cluster says of its nodes, as far as it can be true.  Pure.

A node below is data from a stranger: its labels, taints, conditions and amounts become parts of objects of the virtual
cluster.  Only known fields are read.  Each value has the form that Kubernetes gives it, and everything has a limit, so
that a virtual node is always one that an API server takes, and never a large one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tapestry.apis import keys
from tapestry.kube.names import dns_subdomain_complaint, label_key_complaint, label_value_complaint
from tapestry.kube.objects import Object, name_of
from tapestry.syncer.translate.strangers import (
    address_of,
    amount_of,
    as_list,
    as_object,
    is_int32,
    moments,
    text_of,
    texts,
)

MOST_LABELS = 512
MOST_TAINTS = 64
MOST_CONDITIONS = 32
MOST_AMOUNTS = 128
MOST_ADDRESSES = 8
MOST_DRIVERS = 64
MOST_TOPOLOGY_KEYS = 16
LONGEST_NAME = 253
LONGEST_DRIVER = 63
LONGEST_NODE_ID = 192
"""Characters that Kubernetes allows."""
LONGEST_INFO = 256
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STATUSES = ("True", "False", "Unknown")
MOST_CPU = 2**50
"""CPUs: the scheduler counts thousandths of them in 64 bits."""
MOST_OF_ANYTHING = 2**63
INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
)


def readable_node(node: Object) -> Object:
    """The node with what is read of it and no more; the same again when done twice.

    Raises ValueError for one whose name, UID or version no API server gives.
    """
    metadata, spec, status = node["metadata"], as_object(node.get("spec")), as_object(node.get("status"))
    annotations = as_object(metadata.get("annotations")).items()
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata}
    if dns_subdomain_complaint(name_of(node)) or not all(is_short(value) for value in identity.values()):
        raise ValueError("its name, UID or version is not one of Kubernetes")
    kept = {
        **identity,
        **moments(metadata, "creationTimestamp", "deletionTimestamp"),
        "labels": labels_in(metadata.get("labels")),
        "annotations": {key: text_of(value) for key, value in annotations if key.startswith(keys.PREFIX)},
    }
    found: Object = {"metadata": {key: value for key, value in kept.items() if value != {}}}
    if "apiVersion" in node:
        found = {"apiVersion": "v1", "kind": "Node", **found}
    taints = list(taints_in(spec.get("taints")))
    found["spec"] = {
        **({"unschedulable": True} if spec.get("unschedulable") is True else {}),
        **({"taints": taints} if taints else {}),
    }
    found["status"] = readable_status(status)
    return found


def is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def readable_status(status: Mapping[str, Any]) -> Object:
    found: Object = {
        field: amounts for field in ("capacity", "allocatable") if (amounts := amounts_in(status.get(field)))
    }
    if conditions := conditions_in(status.get("conditions")):
        found["conditions"] = conditions
    if addresses := list(addresses_in(status.get("addresses"))):
        found["addresses"] = addresses
    info = as_object(status.get("nodeInfo"))
    if known := {field: text_of(info[field])[:LONGEST_INFO] for field in INFO if isinstance(info.get(field), str)}:
        found["nodeInfo"] = known
    return found


def labels_in(labels: object) -> dict[str, str]:
    """Labels that an API server takes; of very many the first."""
    found = {
        key: value
        for key, value in as_object(labels).items()
        if label_key_complaint(key) is None and isinstance(value, str) and label_value_complaint(value) is None
    }
    return dict(sorted(found.items())[:MOST_LABELS]) if len(found) > MOST_LABELS else found


def taints_in(taints: object) -> Iterator[Object]:
    for each in map(as_object, as_list(taints)[:MOST_TAINTS]):
        key, value, effect = each.get("key"), each.get("value"), each.get("effect")
        if not isinstance(key, str) or label_key_complaint(key) is not None or effect not in EFFECTS:
            continue
        has_value = isinstance(value, str) and label_value_complaint(value) is None
        yield {"key": key, **({"value": value} if has_value else {}), "effect": effect, **moments(each, "timeAdded")}


def amounts_in(amounts: object) -> dict[str, str]:
    """Amounts from nothing up to what 64 bits hold; what is less, more or no amount is left out."""
    found = {}
    for name, value in list(as_object(amounts).items())[:MOST_AMOUNTS]:
        limit = MOST_CPU if name == "cpu" else MOST_OF_ANYTHING
        if amount := amount_of(name, str(value) if is_int32(value) else value, limit):
            found[name] = amount
    return found


def conditions_in(conditions: object) -> list[Object]:
    """The first condition of each type."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(conditions)):
        type, status = each.get("type"), each.get("status")
        if not isinstance(type, str) or type in known or len(known) == MOST_CONDITIONS:
            continue
        if label_key_complaint(type) is None and status in STATUSES:
            said = texts(each, "reason", "message")
            known[type] = {"type": type, "status": status, **said, **moments(each, "lastTransitionTime")}
    return list(known.values())


def addresses_in(addresses: object) -> Iterator[Object]:
    """Addresses within the cluster that lead somewhere."""
    for each in map(as_object, as_list(addresses)[:MOST_ADDRESSES]):
        if each.get("type") == "InternalIP" and (ip := address_of(each.get("address"))):
            yield {"type": "InternalIP", "address": ip}


def drivers_in(drivers: object) -> list[Object]:
    """The storage drivers of a CSINode."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(drivers)[:MOST_DRIVERS]):
        name, identity = text_of(each.get("name")), text_of(each.get("nodeID"))
        is_driver = len(name) <= LONGEST_DRIVER and dns_subdomain_complaint(name.lower()) is None
        if not is_driver or not 0 < len(identity.encode()) <= LONGEST_NODE_ID:
            continue
        listed = [key for key in as_list(each.get("topologyKeys"))[:MOST_TOPOLOGY_KEYS] if isinstance(key, str)]
        topology = list(dict.fromkeys(key for key in listed if label_key_complaint(key) is None))
        count = as_object(each.get("allocatable")).get("count")
        known[name] = {
            "name": name,
            "nodeID": identity,
            **({"topologyKeys": topology} if topology else {}),
            **({"allocatable": {"count": count}} if is_int32(count) and count >= 0 else {}),
        }
    return list(known.values())
