"""Scheduling situations: nodes, pods on them, and one pod to schedule."""

from dataclasses import dataclass, field
from typing import Any

from tapestry.kube.objects import Object
from tapestry.kube.resources import (
    CSI_NODES,
    DISRUPTION_BUDGETS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    Resource,
)

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"app": "web"}
GPU = "example.com/gpu"


@dataclass(frozen=True)
class Situation:
    nodes: list[Object]
    probe: Object
    pods: list[Object] = field(default_factory=list)
    others: list[tuple[Resource, Object]] = field(default_factory=list)


def node(name: str, zone: str = "", *, taints: tuple[Object, ...] = (), cordoned: bool = False, **has: Any) -> Object:
    labels = {HOST: name, **({ZONE: zone} if zone else {}), **has.pop("labels", {})}
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", **has.pop("more", {}), **has}
    spec = {"taints": list(taints), "unschedulable": cordoned}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": amounts}}


def pod(name: str, on: str = "", *, namespace: str = "here", labels: Object | None = None, **spec: Any) -> Object:
    requests = {key: spec.pop(key) for key in ("cpu", "memory") if key in spec} | spec.pop("more", {})
    container = {"name": "c", "image": "i", "resources": {"requests": requests, "limits": spec.pop("limits", {})}}
    container["ports"] = spec.pop("ports", [])
    placed = {"nodeName": on} if on else {}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    if finalizers := spec.pop("finalizers", None):
        metadata["finalizers"] = finalizers
    whole = {"containers": [container], "terminationGracePeriodSeconds": 30, **placed, **spec}
    return {"metadata": metadata, "spec": whole}


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Object:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def node_affinity(*terms: Object) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def labelled(*expressions: Object) -> Object:
    return {"matchExpressions": list(expressions)}


def named(*names: str) -> Object:
    return {"matchFields": [expression("metadata.name", "In", name) for name in names]}


def term(labels: Object | None = None, topology: str = HOST, **more: Any) -> Object:
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {"topologyKey": topology, **selector, **more}


def near(*terms: Object) -> Object:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: Object) -> Object:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(topology: str = ZONE, most: int = 1, labels: Object | None = None, **more: Any) -> Object:
    selector = {"labelSelector": {"matchLabels": WEB if labels is None else labels}}
    return {"topologyKey": topology, "maxSkew": most, "whenUnsatisfiable": "DoNotSchedule", **selector, **more}


def host_port(number: int, protocol: str = "TCP", address: str = "") -> Object:
    return {
        "containerPort": number,
        "hostPort": number,
        "protocol": protocol,
        **({"hostIP": address} if address else {}),
    }


def web(name: str, on: str, **more: Any) -> Object:
    return pod(name, on, labels=WEB, **more)


def using(*claims: str) -> list[Object]:
    return [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]


def claim(name: str, volume: str = "", storage_class: str = "", mode: str = "ReadWriteOnce", **meta: Any) -> Any:
    spec = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
        **({"volumeName": volume} if volume else {}),
    }
    done = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    metadata = {"name": name, "namespace": "here", "annotations": {**done, **meta.pop("annotations", {})}}
    return PERSISTENT_VOLUME_CLAIMS, {"metadata": {**metadata, **meta}, "spec": spec}


def volume(
    name: str,
    nodes: Object | None = None,
    storage_class: str = "",
    labels: Object | None = None,
    source: Object | None = None,
) -> Any:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
        "storageClassName": storage_class,
        **(source or {"hostPath": {"path": "/nowhere"}}),
    }
    if nodes is not None:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [nodes]}}
    return PERSISTENT_VOLUMES, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def csi_volume(name: str) -> Any:
    return volume(name, source={"csi": {"driver": "maker.example.com", "volumeHandle": name}})


def csi_node(name: str, count: int) -> Any:
    driver = {"name": "maker.example.com", "nodeID": name, "allocatable": {"count": count}}
    return CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": [driver]}}


def attachment(name: str, node: str, volume: str) -> Any:
    spec = {"attacher": "maker.example.com", "nodeName": node, "source": {"persistentVolumeName": volume}}
    return VOLUME_ATTACHMENTS, {"metadata": {"name": name}, "spec": spec}


def storage_class(name: str, mode: str, provisioner: str = "example.com/maker", **more: Any) -> Any:
    return STORAGE_CLASSES, {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        **more,
    }


def budget(labels: Object) -> Any:
    spec = {"selector": {"matchLabels": labels}, "minAvailable": 1}
    return DISRUPTION_BUDGETS, {"metadata": {"name": "b", "namespace": "here"}, "spec": spec}


WAITING = storage_class("waiting", "WaitForFirstConsumer")
STATIC = storage_class("static", "WaitForFirstConsumer", "kubernetes.io/no-provisioner")
THREE = [node("n1", "z1"), node("n2", "z1"), node("n3", "z2")]
UNEVEN = [web("w1", "n1"), web("w2", "n1"), web("w3", "n2")]
FULL = [pod(f"f{number}", f"n{number}", cpu="3", priorityClassName="low") for number in (1, 2, 3)]


def wants(*spreads: Object, **more: Any) -> Object:
    return pod("probe", labels=WEB, topologySpreadConstraints=list(spreads), **more)


SITUATIONS: dict[str, Situation] = {
    # -- resources
    "there is room": Situation(THREE, pod("probe", cpu="1")),
    "no node is large enough": Situation(THREE, pod("probe", cpu="5")),
    "no node is large enough in two ways": Situation(THREE, pod("probe", cpu="5", memory="9Gi")),
    "one has too little cpu, one too little memory": Situation(
        [node("n1", cpu="1"), node("n2", memory="1Gi")], pod("probe", cpu="2", memory="2Gi")
    ),
    "only one is free": Situation(THREE, pod("probe", cpu="2"), [pod("a", "n1", cpu="3"), pod("b", "n2", cpu="3")]),
    "all are full, of equals": Situation(
        THREE, pod("probe", cpu="2"), [pod(f"f{number}", f"n{number}", cpu="3") for number in (1, 2, 3)]
    ),
    "exactly as much as is left": Situation([node("n1")], pod("probe", cpu="1"), [pod("a", "n1", cpu="3")]),
    "a milli more than is left": Situation([node("n1")], pod("probe", cpu="1001m"), [pod("a", "n1", cpu="3")]),
    "too many pods": Situation([node("n1", pods="1"), node("n2", pods="0")], pod("probe"), [pod("a", "n1")]),
    "too many pods and too little cpu": Situation(
        [node("n1", pods="1")], pod("probe", cpu="2"), [pod("a", "n1", cpu="3")]
    ),
    "a device that only one has": Situation(
        [node("n1"), node("n2", more={GPU: "2"})], pod("probe", more={GPU: "1"}, limits={GPU: "1"})
    ),
    "a device that nobody has": Situation(THREE, pod("probe", more={GPU: "1"}, limits={GPU: "1"})),
    "a device that is used": Situation(
        [node("n1", more={GPU: "1"})],
        pod("probe", more={GPU: "1"}, limits={GPU: "1"}),
        [pod("a", "n1", more={GPU: "1"}, limits={GPU: "1"})],
    ),
    "scratch space": Situation(
        [node("n1", more={"ephemeral-storage": "1Gi"}), node("n2")], pod("probe", more={"ephemeral-storage": "2Gi"})
    ),
    "a large init container": Situation(
        [node("n1")],
        pod("probe", cpu="1", initContainers=[{"name": "i", "image": "i", "resources": {"requests": {"cpu": "5"}}}]),
    ),
    "a sidecar beside": Situation(
        [node("n1")],
        pod(
            "probe",
            cpu="2",
            initContainers=[
                {"name": "i", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "3"}}}
            ],
        ),
    ),
    "a limit is a request": Situation([node("n1")], pod("probe", limits={"cpu": "5"})),
    "a pod that asks for nothing": Situation([node("n1", cpu="0")], pod("probe")),
    "no nodes but one that nobody may use": Situation([], pod("probe")),
    # -- cordons, taints
    "cordoned": Situation([node("n1", cordoned=True)], pod("probe")),
    "cordoned and tolerated": Situation(
        [node("n1", cordoned=True)],
        pod("probe", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]),
    ),
    "tainted": Situation(
        [node("n1", taints=(taint("a"),)), node("n2", taints=(taint("b", "NoExecute"),))], pod("probe")
    ),
    "would rather not": Situation([node("n1", taints=(taint("a", "PreferNoSchedule"),))], pod("probe")),
    "tolerated by value": Situation(
        [node("n1", taints=(taint("a", value="x"),)), node("n2", taints=(taint("a", value="y"),))],
        pod("probe", tolerations=[{"key": "a", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]),
    ),
    "tolerated for another effect": Situation(
        [node("n1", taints=(taint("a"),))],
        pod("probe", tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute"}]),
    ),
    "one of two taints tolerated": Situation(
        [node("n1", taints=(taint("a"), taint("b")))], pod("probe", tolerations=[{"key": "a", "operator": "Exists"}])
    ),
    "cordoned, tainted and small": Situation(
        [node("n1", cordoned=True), node("n2", taints=(taint("a"),)), node("n3", cpu="1")], pod("probe", cpu="2")
    ),
    # -- selectors
    "selected": Situation([node("n1", labels={"disk": "ssd"}), node("n2")], pod("probe", nodeSelector={"disk": "ssd"})),
    "nobody selected": Situation(THREE, pod("probe", nodeSelector={"disk": "ssd"})),
    "selected by expression": Situation(
        [node("n1", labels={"size": "3"}), node("n2", labels={"size": "7"})],
        pod("probe", affinity=node_affinity(labelled(expression("size", "Gt", "5")))),
    ),
    "nothing is greater": Situation(
        [node("n1", labels={"size": "3"}), node("n2", labels={"size": "x"})],
        pod("probe", affinity=node_affinity(labelled(expression("size", "Gt", "5")))),
    ),
    "one of two terms": Situation(
        [node("n1", labels={"a": "1"}), node("n2", labels={"b": "1"}), node("n3")],
        pod(
            "probe",
            affinity=node_affinity(labelled(expression("a", "Exists")), labelled(expression("b", "In", "2"))),
        ),
    ),
    "an empty term means nobody": Situation([node("n1")], pod("probe", affinity=node_affinity({}))),
    "a node by name": Situation(THREE, pod("probe", affinity=node_affinity(named("n2")))),
    "a node by name that is not there": Situation(THREE, pod("probe", affinity=node_affinity(named("gone")))),
    "a node by name that is full": Situation(
        THREE, pod("probe", cpu="2", affinity=node_affinity(named("n2"))), [pod("a", "n2", cpu="3")]
    ),
    "two names at once": Situation(THREE, pod("probe", affinity=node_affinity(named("n1", "n2")))),
    "a name and a label that it lacks": Situation(
        THREE, pod("probe", affinity=node_affinity({**named("n2"), **labelled(expression("a", "Exists"))}))
    ),
    # -- ports
    "a port that is free on one": Situation(
        THREE[:2], pod("probe", ports=[host_port(80)]), [pod("a", "n1", ports=[host_port(80)])]
    ),
    "a port that is taken": Situation(
        [node("n1")], pod("probe", ports=[host_port(80)]), [pod("a", "n1", ports=[host_port(80)])]
    ),
    "the same port of another protocol": Situation(
        [node("n1")], pod("probe", ports=[host_port(80, "UDP")]), [pod("a", "n1", ports=[host_port(80)])]
    ),
    "the same port of another address": Situation(
        [node("n1")],
        pod("probe", ports=[host_port(80, address="127.0.0.1")]),
        [pod("a", "n1", ports=[host_port(80, address="127.0.0.2")])],
    ),
    "a port of all addresses": Situation(
        [node("n1")], pod("probe", ports=[host_port(80)]), [pod("a", "n1", ports=[host_port(80, address="127.0.0.2")])]
    ),
    # -- other pods
    "near another": Situation(THREE, pod("probe", affinity=near(term(WEB, ZONE))), [web("w", "n3")]),
    "near nobody": Situation(THREE, pod("probe", affinity=near(term(WEB, ZONE)))),
    "near its own kind, and the first": Situation(THREE, pod("probe", labels=WEB, affinity=near(term(WEB, ZONE)))),
    "near its own kind, with a label nobody has": Situation(
        [node("n1")], pod("probe", labels=WEB, affinity=near(term(WEB, ZONE)))
    ),
    "near two kinds that are never one pod": Situation(
        THREE,
        pod("probe", affinity=near(term(WEB), term({"b": "1"}))),
        [web("w", "n1"), pod("b", "n1", labels={"b": "1"})],
    ),
    "near one pod that is both": Situation(
        THREE,
        pod("probe", affinity=near(term(WEB), term({"b": "1"}))),
        [pod("both", "n2", labels={**WEB, "b": "1"})],
    ),
    "near pods of another namespace": Situation(
        THREE, pod("probe", affinity=near(term(WEB, namespaces=["there"]))), [web("w", "n2", namespace="there")]
    ),
    "near pods that are in another namespace only": Situation(
        THREE, pod("probe", affinity=near(term(WEB))), [web("w", "n2", namespace="there")]
    ),
    "near pods of namespaces by label": Situation(
        THREE,
        pod("probe", affinity=near(term(WEB, namespaceSelector={"matchLabels": {"team": "blue"}}))),
        [web("w", "n2", namespace="there")],
    ),
    "near pods of any namespace": Situation(
        THREE, pod("probe", affinity=near(term(WEB, namespaceSelector={}))), [web("w", "n2", namespace="there")]
    ),
    "apart from others": Situation(THREE, pod("probe", affinity=apart(term(WEB))), [web("w1", "n1"), web("w2", "n2")]),
    "apart by zone, and everywhere": Situation(
        THREE, pod("probe", affinity=apart(term(WEB, ZONE))), [web("w1", "n1"), web("w2", "n3")]
    ),
    "apart where the label is missing": Situation(
        [node("n1"), node("n2", "z1")], pod("probe", affinity=apart(term(WEB, ZONE))), [web("w", "n1")]
    ),
    "kept away by another": Situation(
        THREE, web("probe", ""), [pod(f"g{number}", f"n{number}", affinity=apart(term(WEB))) for number in (1, 2, 3)]
    ),
    "kept away by zone": Situation(THREE, web("probe", ""), [pod("g", "n1", affinity=apart(term(WEB, ZONE)))]),
    "kept away in another namespace": Situation(
        [node("n1")],
        web("probe", ""),
        [
            pod(
                "g",
                "n1",
                namespace="there",
                affinity=apart(term(WEB, namespaceSelector={"matchLabels": {"team": "red"}})),
            )
        ],
    ),
    "apart and near contradict": Situation(
        THREE, pod("probe", affinity={**near(term(WEB)), **apart(term(WEB))}), [web("w", "n1")]
    ),
    "a term without a selector means nobody": Situation(THREE, pod("probe", affinity=apart(term())), [web("w", "n1")]),
    # -- spreading
    "even so far": Situation(THREE, wants(spread()), [web("w1", "n1"), web("w2", "n3")]),
    "one zone is ahead": Situation(THREE, wants(spread()), UNEVEN),
    "one zone is ahead and the other full": Situation(
        THREE, wants(spread(), cpu="2"), [*UNEVEN, pod("f", "n3", cpu="3")]
    ),
    "no node has the label": Situation([node("n1"), node("n2")], wants(spread())),
    "one node lacks the label": Situation([node("n1"), node("n2", "z1")], wants(spread()), [web("w", "n2")]),
    "too few domains": Situation(THREE, wants(spread(minDomains=3)), [web("w1", "n1"), web("w2", "n3")]),
    "a larger skew": Situation(THREE, wants(spread(most=3)), UNEVEN),
    "not of its own kind": Situation(
        THREE, pod("probe", topologySpreadConstraints=[spread(most=2)]), [web("w1", "n1"), web("w2", "n2")]
    ),
    "by zone and by node": Situation(THREE, wants(spread(), spread(HOST)), [web("w1", "n1"), web("w2", "n3")]),
    "pods of another namespace do not count": Situation(
        THREE, wants(spread()), [web(f"w{number}", "n1", namespace="there") for number in range(3)]
    ),
    "only selected nodes count": Situation(
        [node("n1", "z1", labels={"a": "1"}), node("n2", "z2")],
        wants(spread(), nodeSelector={"a": "1"}),
        [web("w1", "n1"), web("w2", "n1")],
    ),
    "all nodes count": Situation(
        [node("n1", "z1", labels={"a": "1"}), node("n2", "z2")],
        wants(spread(nodeAffinityPolicy="Ignore"), nodeSelector={"a": "1"}),
        [web("w1", "n1"), web("w2", "n1")],
    ),
    "tainted nodes count": Situation(
        [node("n1", "z1"), node("n2", "z2", taints=(taint("a"),))], wants(spread()), [web("w1", "n1")]
    ),
    "tainted nodes do not count": Situation(
        [node("n1", "z1"), node("n2", "z2", taints=(taint("a"),))],
        wants(spread(nodeTaintsPolicy="Honor")),
        [web("w1", "n1")],
    ),
    "only pods of the same revision count": Situation(
        THREE,
        pod("probe", labels={**WEB, "rev": "2"}, topologySpreadConstraints=[spread(matchLabelKeys=["rev"])]),
        [pod(f"w{number}", "n1", labels={**WEB, "rev": "1"}) for number in range(3)],
    ),
    "an empty selector counts nobody": Situation(THREE, wants(spread(labels={})), UNEVEN),
    # -- volumes
    "a claim that is not there": Situation(THREE, pod("probe", volumes=using("none"))),
    "a claim that nobody bound": Situation(THREE, pod("probe", volumes=using("c")), others=[claim("c")]),
    "a claim of a class that is not there": Situation(
        THREE, pod("probe", volumes=using("c")), others=[claim("c", storage_class="none")]
    ),
    "a volume that is reached from one node": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        others=[volume("v", labelled(expression(HOST, "In", "n2"))), claim("c", "v")],
    ),
    "a volume that is reached from nowhere": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        others=[volume("v", labelled(expression(HOST, "In", "gone"))), claim("c", "v")],
    ),
    "a volume of another zone": Situation(
        THREE, pod("probe", volumes=using("c")), others=[volume("v", labels={ZONE: "z9"}), claim("c", "v")]
    ),
    "a volume of one of two zones": Situation(
        THREE, pod("probe", volumes=using("c")), others=[volume("v", labels={ZONE: "z2__z9"}), claim("c", "v")]
    ),
    "no volume for the first consumer": Situation(
        THREE, pod("probe", volumes=using("c")), others=[STATIC, claim("c", storage_class="static")]
    ),
    "none can be made there": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        others=[
            storage_class(
                "far",
                "WaitForFirstConsumer",
                allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["z9"]}]}],
            ),
            claim("c", storage_class="far"),
        ],
    ),
    "made for another node": Situation(
        THREE,
        pod("probe", volumes=using("c"), nodeSelector={HOST: "n1"}),
        others=[
            WAITING,
            claim("c", storage_class="waiting", annotations={"volume.kubernetes.io/selected-node": "n2"}),
        ],
    ),
    "a claim for one pod only": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        [pod("a", "n1", volumes=using("c"))],
        [volume("v"), claim("c", "v", mode="ReadWriteOncePod")],
    ),
    "a claim for one pod only, of a less important pod": Situation(
        THREE,
        pod("probe", volumes=using("c"), priorityClassName="high"),
        [pod("a", "n1", volumes=using("c"))],
        [volume("v"), claim("c", "v", mode="ReadWriteOncePod")],
    ),
    "as many volumes as two nodes attach": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        [pod("a", "n1", volumes=using("d")), pod("b", "n2", volumes=using("e"))],
        [
            *(csi_volume(name) for name in ("v", "w", "x")),
            *(claim(name, on) for name, on in (("c", "v"), ("d", "w"), ("e", "x"))),
            *(csi_node(name, count) for name, count in (("n1", 1), ("n2", 1), ("n3", 2))),
        ],
    ),
    "as many volumes as all nodes attach": Situation(
        THREE,
        pod("probe", volumes=using("c", "d"), priorityClassName="high"),
        [pod("a", "n1", volumes=using("e"))],
        [
            *(csi_volume(name) for name in ("v", "w", "x")),
            *(claim(name, on) for name, on in (("c", "v"), ("d", "w"), ("e", "x"))),
            *(csi_node(name, count) for name, count in (("n1", 2), ("n2", 1), ("n3", 1))),
        ],
    ),
    "volumes that are attached without a pod": Situation(
        THREE,
        pod("probe", volumes=using("c")),
        [],
        [
            *(csi_volume(name) for name in ("v", "w")),
            claim("c", "v"),
            *(csi_node(name, 1) for name in ("n1", "n2", "n3")),
            attachment("a", "n1", "w"),
            attachment("b", "n3", "v"),
        ],
    ),
    # -- preemption
    "one is less important": Situation(
        THREE,
        pod("probe", cpu="2", priorityClassName="high"),
        [
            pod("a", "n1", cpu="3"),
            pod("b", "n2", cpu="3", priorityClassName="high"),
            pod("c", "n3", cpu="3", priorityClassName="high"),
        ],
    ),
    "the least important goes": Situation(
        THREE,
        pod("probe", cpu="2", priorityClassName="high"),
        [*FULL[:2], pod("f3", "n3", cpu="3", priorityClassName="lowest")],
    ),
    "few rather than many": Situation(
        THREE[:2],
        pod("probe", cpu="3", priorityClassName="high"),
        [pod("a", "n1", cpu="2"), pod("b", "n1", cpu="2"), pod("c", "n2", cpu="4")],
    ),
    "only as many as it takes": Situation(
        [node("n1")],
        pod("probe", cpu="1", priorityClassName="high"),
        [pod("a", "n1", cpu="2", priorityClassName="low"), pod("b", "n1", cpu="2", priorityClassName="lowest")],
    ),
    "all are more important": Situation(
        [node("n1")], pod("probe", cpu="2"), [pod("a", "n1", cpu="3", priorityClassName="high")]
    ),
    "it never pushes aside": Situation(
        [node("n1")], pod("probe", cpu="2", priorityClassName="gentle"), [pod("a", "n1", cpu="3")]
    ),
    "it is too large even so": Situation(
        [node("n1")], pod("probe", cpu="5", priorityClassName="high"), [pod("a", "n1", cpu="3")]
    ),
    "it would not be enough": Situation(
        [node("n1")],
        pod("probe", cpu="3", priorityClassName="high"),
        [pod("a", "n1", cpu="1"), pod("b", "n1", cpu="2", priorityClassName="high")],
    ),
    "a port is given up": Situation(
        [node("n1")],
        pod("probe", ports=[host_port(80)], priorityClassName="high"),
        [pod("a", "n1", ports=[host_port(80)]), pod("b", "n1", cpu="1")],
    ),
    "one that keeps others away goes": Situation(
        [node("n1")],
        web("probe", "", priorityClassName="high"),
        [pod("g", "n1", affinity=apart(term(WEB))), pod("b", "n1", cpu="1")],
    ),
    "one of its kind goes for the spread": Situation(
        [node("n1", "z1"), node("n2", "z2", cpu="1")],
        wants(spread(), cpu="2", priorityClassName="high"),
        [web("w1", "n1")],
    ),
    "a budget is kept": Situation(
        THREE[:2],
        pod("probe", cpu="2", priorityClassName="high"),
        [web("a", "n1", cpu="3", priorityClassName="lowest"), pod("b", "n2", cpu="3")],
        [budget(WEB)],
    ),
    "a budget is broken where nothing else helps": Situation(
        [node("n1")], pod("probe", cpu="2", priorityClassName="high"), [web("a", "n1", cpu="3")], [budget(WEB)]
    ),
    "taints are no matter of priority": Situation(
        [node("n1", taints=(taint("a"),)), node("n2")],
        pod("probe", cpu="2", priorityClassName="high"),
        [pod("a", "n2", cpu="3", priorityClassName="high")],
    ),
}
