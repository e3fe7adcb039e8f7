"""Sanitizing of physical nodes and CSINodes, which are untrusted. Pure.

Labels, taints, conditions and amounts of a physical node become parts of virtual objects. Only known fields are read.
Each value must have the form that Kubernetes requires, and everything has a limit. So an API server always accepts the
virtual node, and it is never large.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tapestry.apis import keys
from tapestry.kube.names import dns_subdomain_error, label_key_error, label_value_error
from tapestry.kube.objects import Object, labels_of, name_of
from tapestry.syncer.translate.sanitize import (
    as_list,
    as_object,
    is_int32,
    routable_address,
    sanitized_amount,
    sanitized_text,
    text_fields,
    time_fields,
)

HOSTNAME = "kubernetes.io/hostname"
RESERVED_LABEL_PREFIXES = (keys.PREFIX, "node-role.kubernetes.io/", "node-restriction.kubernetes.io/")
"""Prefixes of labels that only have a meaning in the physical cluster."""
MAX_LABELS = 512
MAX_TAINTS = 64
MAX_CONDITIONS = 32
MAX_AMOUNTS = 128
MAX_ADDRESSES = 8
MAX_DRIVERS = 64
MAX_TOPOLOGY_KEYS = 16
MAX_NAME_LENGTH = 253
MAX_DRIVER_LENGTH = 63
MAX_NODE_ID_LENGTH = 192
"""Limits of Kubernetes, in characters."""
MAX_INFO_LENGTH = 256
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STATUSES = ("True", "False", "Unknown")
MAX_CPU = 2**50
"""CPUs: the scheduler counts milli-CPUs in 64 bits."""
MAX_AMOUNT = 2**63
INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
)


def sanitized_node(node: Object) -> Object:
    """Return the node with only the fields that are read. Sanitizing again changes nothing.

    Raises ValueError if no API server could return its name, UID or version.
    """
    metadata, spec, status = node["metadata"], as_object(node.get("spec")), as_object(node.get("status"))
    annotations = as_object(metadata.get("annotations")).items()
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata}
    if dns_subdomain_error(name_of(node)) or not all(is_short(value) for value in identity.values()):
        raise ValueError("invalid name, UID or resource version")
    fields = {
        **identity,
        **time_fields(metadata, "creationTimestamp", "deletionTimestamp"),
        "labels": sanitized_labels(metadata.get("labels")),
        "annotations": {key: sanitized_text(value) for key, value in annotations if key.startswith(keys.PREFIX)},
    }
    sanitized: Object = {"metadata": {key: value for key, value in fields.items() if value != {}}}
    if "apiVersion" in node:
        sanitized = {"apiVersion": "v1", "kind": "Node", **sanitized}
    taints = list(sanitized_taints(spec.get("taints")))
    sanitized["spec"] = {
        **({"unschedulable": True} if spec.get("unschedulable") is True else {}),
        **({"taints": taints} if taints else {}),
    }
    sanitized["status"] = sanitized_node_status(status)
    return sanitized


def is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_LENGTH


def sanitized_node_status(status: Mapping[str, Any]) -> Object:
    sanitized: Object = {
        field: amounts for field in ("capacity", "allocatable") if (amounts := sanitized_amounts(status.get(field)))
    }
    if conditions := sanitized_node_conditions(status.get("conditions")):
        sanitized["conditions"] = conditions
    if addresses := list(sanitized_addresses(status.get("addresses"))):
        sanitized["addresses"] = addresses
    info = as_object(status.get("nodeInfo"))
    if known := {
        field: sanitized_text(info[field])[:MAX_INFO_LENGTH] for field in INFO if isinstance(info.get(field), str)
    }:
        sanitized["nodeInfo"] = known
    return sanitized


def sanitized_labels(labels: object) -> dict[str, str]:
    """Return the labels that an API server accepts, at most `MAX_LABELS`."""
    found = {
        key: value
        for key, value in as_object(labels).items()
        if label_key_error(key) is None and isinstance(value, str) and label_value_error(value) is None
    }
    return dict(sorted(found.items())[:MAX_LABELS]) if len(found) > MAX_LABELS else found


def sanitized_taints(taints: object) -> Iterator[Object]:
    for each in map(as_object, as_list(taints)[:MAX_TAINTS]):
        key, value, effect = each.get("key"), each.get("value"), each.get("effect")
        if not isinstance(key, str) or label_key_error(key) is not None or effect not in EFFECTS:
            continue
        has_value = isinstance(value, str) and label_value_error(value) is None
        yield {
            "key": key,
            **({"value": value} if has_value else {}),
            "effect": effect,
            **time_fields(each, "timeAdded"),
        }


def sanitized_amounts(amounts: object) -> dict[str, str]:
    """Return the amounts that are valid and within the limits."""
    found = {}
    for name, value in list(as_object(amounts).items())[:MAX_AMOUNTS]:
        limit = MAX_CPU if name == "cpu" else MAX_AMOUNT
        if amount := sanitized_amount(name, str(value) if is_int32(value) else value, limit):
            found[name] = amount
    return found


def sanitized_node_conditions(conditions: object) -> list[Object]:
    """Return the first condition of each type."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(conditions)):
        type, status = each.get("type"), each.get("status")
        if not isinstance(type, str) or type in known or len(known) == MAX_CONDITIONS:
            continue
        if label_key_error(type) is None and status in STATUSES:
            texts = text_fields(each, "reason", "message")
            known[type] = {"type": type, "status": status, **texts, **time_fields(each, "lastTransitionTime")}
    return list(known.values())


def sanitized_addresses(addresses: object) -> Iterator[Object]:
    """Yield the routable internal addresses."""
    for each in map(as_object, as_list(addresses)[:MAX_ADDRESSES]):
        if each.get("type") == "InternalIP" and (ip := routable_address(each.get("address"))):
            yield {"type": "InternalIP", "address": ip}


def sanitized_drivers(drivers: object) -> list[Object]:
    """Return the valid storage drivers of a CSINode."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(drivers)[:MAX_DRIVERS]):
        name, identity = sanitized_text(each.get("name")), sanitized_text(each.get("nodeID"))
        is_driver = len(name) <= MAX_DRIVER_LENGTH and dns_subdomain_error(name.lower()) is None
        if not is_driver or not 0 < len(identity.encode()) <= MAX_NODE_ID_LENGTH:
            continue
        listed = [key for key in as_list(each.get("topologyKeys"))[:MAX_TOPOLOGY_KEYS] if isinstance(key, str)]
        topology = list(dict.fromkeys(key for key in listed if label_key_error(key) is None))
        count = as_object(each.get("allocatable")).get("count")
        known[name] = {
            "name": name,
            "nodeID": identity,
            **({"topologyKeys": topology} if topology else {}),
            **({"allocatable": {"count": count}} if is_int32(count) and count >= 0 else {}),
        }
    return list(known.values())


def visible_labels(node: Object) -> dict[str, str]:
    """Return the labels of a physical node that its virtual node has, too."""
    return {key: value for key, value in labels_of(node).items() if not key.startswith(RESERVED_LABEL_PREFIXES)}
