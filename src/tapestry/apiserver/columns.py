"""What `kubectl get` prints of the kinds beside pods and what makes them: networks, storage, policies, admission."""

from collections.abc import Iterable, Mapping, Sequence

from tapestry.apiserver.prints import (
    AGE,
    BOOLEAN,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Print,
    count,
    duration,
    of,
    path,
)
from tapestry.kube.conditions import find
from tapestry.kube.objects import Object, controller_of, value_at
from tapestry.kube.selectors import SelectorError, label_selector

MOST_SHOWN = 3
"""How many addresses or hosts are shown of many."""


def some(values: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" + {len(values) - MOST_SHOWN} more..." if len(values) > MOST_SHOWN else ""
    return ",".join(values[:MOST_SHOWN]) + more


def selector(spec: Object | None) -> str:
    try:
        return str(label_selector(spec)) or NONE
    except SelectorError:
        return "<error>"


# -- networks


def endpoints(obj: Object) -> str:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        addresses = [each["ip"] for each in subset.get("addresses") or ()]
        ports = [each["port"] for each in subset.get("ports") or ()]
        found += [f"{ip}:{port}" for port in ports for ip in addresses] or addresses
    return some(found) or NONE


def slice_ports(obj: Object) -> str:
    found = ["*" if each.get("port") is None else str(each["port"]) for each in obj.get("ports") or ()]
    return some(found) or UNSET


def slice_addresses(obj: Object) -> str:
    return some([ip for each in obj.get("endpoints") or () for ip in each.get("addresses") or ()]) or UNSET


def ingress_hosts(obj: Object) -> str:
    found = [each["host"] for each in value_at(obj, "spec", "rules", default=[]) if each.get("host")]
    return some(found) or "*"


def ingress_address(obj: Object) -> str:
    points = value_at(obj, "status", "loadBalancer", "ingress", default=[])
    return ",".join(filter(None, (each.get("ip") or each.get("hostname") for each in points)))


def ingress_parameters(obj: Object) -> str:
    found = value_at(obj, "spec", "parameters")
    if found is None:
        return NONE
    group = f".{found['apiGroup']}" if found.get("apiGroup") else ""
    return f"{found['kind']}{group}/{found['name']}"


def parent(obj: Object) -> str:
    found = value_at(obj, "spec", "parentRef")
    if found is None:
        return NONE
    resource = ".".join(filter(None, (found.get("resource"), found.get("group")))).lower()
    return "/".join(filter(None, (resource, found.get("namespace"), found.get("name"))))


# -- policies


def quota_of(kind: str) -> Print:
    """What is used of what: of limits, or of all the rest."""

    def show(obj: Object) -> str:
        hard, used = (value_at(obj, "status", field, default={}) for field in ("hard", "used"))
        names = [each for each in sorted(hard) if each.startswith("limits.") is (kind == "Limit")]
        return ", ".join(f"{each}: {used.get(each, 0)}/{hard[each]}" for each in names)

    return Print(kind, of(show))


def budget(field: str) -> Print:
    heads = {"minAvailable": "Min Available", "maxUnavailable": "Max Unavailable"}
    return Print(heads[field], of(lambda obj: str(value_at(obj, "spec", field, default="N/A"))))


def targets(obj: Object) -> str:
    """What an autoscaler has and wants of each of its metrics."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if (wanted := spec.get("targetCPUUtilizationPercentage")) is not None:
        return f"cpu: {percent(status.get('currentCPUUtilizationPercentage'))}/{wanted}%"
    current = status.get("currentMetrics") or []
    found = [
        target(each, current[number] if number < len(current) else {})
        for number, each in enumerate(spec.get("metrics") or ())
    ]
    return ", ".join(found[:2]) + (f" + {len(found) - 2} more..." if len(found) > 2 else "") or NONE


def target(metric: Object, current: Object) -> str:
    field = FIELDS_OF_METRICS.get(metric.get("type", ""), "")
    about, now = metric.get(field) or {}, (current.get(field) or {}).get("current") or {}
    wanted, name = about.get("target") or {}, about.get("name")
    if (part := wanted.get("averageUtilization")) is not None:
        text = f"{percent(now.get('averageUtilization'))}/{part}%"
    elif (average := wanted.get("averageValue")) is not None:
        text = f"{now.get('averageValue', UNKNOWN)}/{average}" + (" (avg)" if field in AVERAGED_METRICS else "")
    else:
        text = f"{now.get('value', UNKNOWN)}/{wanted.get('value', UNKNOWN)}"
    return f"{name}: {text}" if field in NAMED_METRICS else text


FIELDS_OF_METRICS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}
NAMED_METRICS, AVERAGED_METRICS = ("resource", "containerResource"), ("object", "external")


def percent(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value}%"


def subjects(kind: str, head: str) -> Print:
    """Those of a binding that are of a kind; an account is named with its namespace."""

    def show(obj: Object) -> str:
        those = [each for each in obj.get("subjects") or () if each.get("kind") == kind]
        return ", ".join("/".join(filter(None, (each.get("namespace"), each.get("name")))) for each in those)

    return Print(head, of(show), wide=True)


# -- the others


def request_state(obj: Object) -> str:
    """What became of a request for a certificate."""
    conditions = value_at(obj, "status", "conditions", default=[])
    found = [each for each in ("Approved", "Denied", "Failed") if find(conditions, each) is not None]
    issued = ["Issued"] if value_at(obj, "status", "certificate") else []
    return ",".join([*(found or ["Pending"]), *issued])


def requested_duration(obj: Object) -> str:
    seconds = value_at(obj, "spec", "expirationSeconds")
    return duration(seconds) if seconds is not None else NONE


def tokens(obj: Object) -> str:
    requests = value_at(obj, "spec", "tokenRequests")
    return UNSET if requests is None else ",".join(each.get("audience", "") for each in requests)


def claim_state(obj: Object) -> str:
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    allocated = value_at(obj, "status", "allocation")
    states += ["allocated"] if allocated else [] if states else ["pending"]
    reserved = value_at(obj, "status", "reservedFor")
    return ",".join([*states, *(["reserved"] if reserved else [])])


def controller_name(obj: Object) -> str:
    owner = controller_of(obj)
    if owner is None:
        return NONE
    group = owner["apiVersion"].rpartition("/")[0]
    kind = owner["kind"].lower() + (f".{group}" if group else "")
    return f"{kind}/{owner['name']}"


def joined(values: Iterable[str] | None) -> str:
    return ",".join(values or ())


def template_containers(field: str) -> Print:
    def show(obj: Object) -> str:
        return ",".join(each.get(field, "") for each in value_at(obj, "template", "spec", "containers", default=[]))

    return Print({"name": "Containers", "image": "Images"}[field], of(show))


def template_labels(obj: Object) -> str:
    labels = value_at(obj, "template", "metadata", "labels", default={})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def parameter(obj: Object) -> str:
    found = value_at(obj, "spec", "paramRef")
    if not found:
        return UNSET
    if found.get("name"):
        return f"{found.get('namespace') or '*'}/{found['name']}"
    return selector(found["selector"]) if found.get("selector") else UNSET


def parameter_kind(obj: Object) -> str:
    found = value_at(obj, "spec", "paramKind")
    return f"{found.get('apiVersion')}/{found.get('kind')}" if found else UNSET


def dangling(obj: Object) -> str:
    found = find(value_at(obj, "status", "conditions"), "Dangling")
    return str(found["status"]) if found is not None else "?"


QUEUING = ("spec", "limited", "limitResponse", "queuing")
BINDING_WIDE = (subjects("User", "Users"), subjects("Group", "Groups"), subjects("ServiceAccount", "ServiceAccounts"))
WEBHOOKS = (NAME, Print("Webhooks", count("webhooks"), INTEGER), AGE)
AUTOSCALER = (
    NAME,
    Print("Reference", of(lambda obj: "{kind}/{name}".format(**obj["spec"]["scaleTargetRef"]))),
    Print("Targets", of(targets)),
    Print("MinPods", of(lambda obj: str(value_at(obj, "spec", "minReplicas", default=UNSET)))),
    Print("MaxPods", path("spec", "maxReplicas", default=0)),
    Print("Replicas", path("status", "currentReplicas", default=0)),
    AGE,
)

OTHERS: Mapping[str, tuple[Print, ...]] = {
    "endpoints": (NAME, Print("Endpoints", of(endpoints)), AGE),
    "endpointslices.discovery.k8s.io": (
        NAME,
        Print("AddressType", path("addressType")),
        Print("Ports", of(slice_ports)),
        Print("Endpoints", of(slice_addresses)),
        AGE,
    ),
    "ingresses.networking.k8s.io": (
        NAME,
        Print("Class", path("spec", "ingressClassName", default=NONE)),
        Print("Hosts", of(ingress_hosts)),
        Print("Address", of(ingress_address)),
        Print("Ports", of(lambda obj: "80, 443" if value_at(obj, "spec", "tls") else "80")),
        AGE,
    ),
    "ingressclasses.networking.k8s.io": (
        NAME,
        Print("Controller", path("spec", "controller")),
        Print("Parameters", of(ingress_parameters)),
        AGE,
    ),
    "networkpolicies.networking.k8s.io": (
        NAME,
        Print("Pod-Selector", of(lambda obj: selector(value_at(obj, "spec", "podSelector")))),
        AGE,
    ),
    "ipaddresses.networking.k8s.io": (NAME, Print("ParentRef", of(parent))),
    "servicecidrs.networking.k8s.io": (
        NAME,
        Print("CIDRs", of(lambda obj: joined(value_at(obj, "spec", "cidrs")))),
        AGE,
    ),
    "resourcequotas": (NAME, quota_of("Request"), quota_of("Limit"), AGE),
    "limitranges": (NAME, CREATED),
    "poddisruptionbudgets.policy": (
        NAME,
        budget("minAvailable"),
        budget("maxUnavailable"),
        Print("Allowed Disruptions", path("status", "disruptionsAllowed", default=0), INTEGER),
        AGE,
    ),
    "horizontalpodautoscalers.autoscaling": AUTOSCALER,
    "podtemplates": (
        NAME,
        template_containers("name"),
        template_containers("image"),
        Print("Pod Labels", of(template_labels)),
    ),
    "controllerrevisions.apps": (
        NAME,
        Print("Controller", of(controller_name)),
        Print("Revision", path("revision", default=0)),
        AGE,
    ),
    "runtimeclasses.node.k8s.io": (NAME, Print("Handler", path("handler")), AGE),
    "certificatesigningrequests.certificates.k8s.io": (
        NAME,
        AGE,
        Print("SignerName", path("spec", "signerName", default=NONE)),
        Print("Requestor", path("spec", "username")),
        Print("RequestedDuration", of(requested_duration)),
        Print("Condition", of(request_state)),
    ),
    "csidrivers.storage.k8s.io": (
        NAME,
        Print("AttachRequired", path("spec", "attachRequired", default=True), BOOLEAN),
        Print("PodInfoOnMount", path("spec", "podInfoOnMount", default=False), BOOLEAN),
        Print("StorageCapacity", path("spec", "storageCapacity", default=False), BOOLEAN),
        Print("TokenRequests", of(tokens)),
        Print("RequiresRepublish", path("spec", "requiresRepublish", default=False), BOOLEAN),
        Print("Modes", of(lambda obj: joined(value_at(obj, "spec", "volumeLifecycleModes")) or NONE)),
        AGE,
    ),
    "csinodes.storage.k8s.io": (NAME, Print("Drivers", count("spec", "drivers"), INTEGER), AGE),
    "csistoragecapacities.storage.k8s.io": (NAME, CREATED),
    "volumeattachments.storage.k8s.io": (
        NAME,
        Print("Attacher", path("spec", "attacher"), format="name"),
        Print("PV", path("spec", "source", "persistentVolumeName")),
        Print("Node", path("spec", "nodeName")),
        Print("Attached", path("status", "attached", default=False), BOOLEAN),
        AGE,
    ),
    "volumeattributesclasses.storage.k8s.io": (NAME, Print("DriverName", path("driverName")), AGE),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOKS,
    "validatingadmissionpolicies.admissionregistration.k8s.io": (
        NAME,
        Print("Validations", count("spec", "validations"), INTEGER),
        Print("ParamKind", of(parameter_kind)),
        AGE,
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (
        NAME,
        Print("PolicyName", path("spec", "policyName")),
        Print("ParamRef", of(parameter)),
        AGE,
    ),
    "resourceclaims.resource.k8s.io": (NAME, Print("State", of(claim_state)), AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        Print("Node", path("spec", "nodeName")),
        Print("Driver", path("spec", "driver")),
        Print("Pool", path("spec", "pool", "name")),
        AGE,
    ),
    "flowschemas.flowcontrol.apiserver.k8s.io": (
        NAME,
        Print("PriorityLevel", path("spec", "priorityLevelConfiguration", "name")),
        Print("MatchingPrecedence", path("spec", "matchingPrecedence", default=0)),
        Print("DistinguisherMethod", path("spec", "distinguisherMethod", "type", default=NONE)),
        AGE,
        Print("MissingPL", of(dangling)),
    ),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": (
        NAME,
        Print("Type", path("spec", "type")),
        Print("NominalConcurrencyShares", path("spec", "limited", "nominalConcurrencyShares", default=NONE)),
        Print("Queues", path(*QUEUING, "queues", default=NONE)),
        Print("HandSize", path(*QUEUING, "handSize", default=NONE)),
        Print("QueueLengthLimit", path(*QUEUING, "queueLengthLimit", default=NONE)),
        AGE,
    ),
}
