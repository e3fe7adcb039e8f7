"""Objects that the cluster-admin of a plane may write, and that must have no effect on others in the host cluster.

The name of each object tells what it tries. A plane accepts them, unless its row says otherwise: then the request
itself must be refused.
"""

from dataclasses import dataclass
from typing import Any

from tests.unit.tenants.running_tenants import pod_named

from .escape_requests import CLAIMS, PODS, SERVICES
from .escaping_tenant import ingress_path

ACCEPTED, REJECTED = (200, 201), (400, 403, 404, 405, 409, 422)
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
NETWORK_POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
VOLUMES, CLASSES = "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
VICTIM_LABELS = {
    "app": "shop",
    "tapestry.io/cluster-binding-uid": "<victim-tenant>",
    "tapestry.io/virtual-cluster": "<victim-cluster>",
    "tapestry.io/cluster-binding": "victim",
    "tapestry.io/virtual-namespace": "default",
    "tapestry.io/managed-by": "tapestry",
    "tapestry.io/tenant-setup": "true",
    "tapestry.io/ingress-decided": "true",
}
VICTIM_ANNOTATIONS = {
    "tapestry.io/virtual-pod-name": "shop",
    "tapestry.io/virtual-pod-namespace": "default",
    "tapestry.io/virtual-pod-uid": "0",
    "tapestry.io/placement": "x",
}


@dataclass(frozen=True)
class Attempt:
    """An object that is written to the plane."""

    path: str
    body: Any
    statuses: tuple[int, ...] = ACCEPTED

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name


def metadata(name: str, **more: Any) -> Any:
    return {"name": name, **more}


# -- pods


def pod(
    name: str,
    *,
    labels: Any = None,
    annotations: Any = None,
    container: Any = None,
    statuses: tuple[int, ...] = ACCEPTED,
    **spec: Any,
) -> Attempt:
    """Return a pod that runs without the fields that are given here."""
    body = pod_named(name)
    body["metadata"] |= {"labels": labels or {}, "annotations": annotations or {}}
    for key, value in (container or {}).items():
        body["spec"]["containers"][0][key] = value
    body["spec"] |= spec
    return Attempt(PODS, body, statuses)


def volume(name: str, source: Any) -> Attempt:
    return pod(name, volumes=[{"name": "v", **source}], container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})


def security(name: str, **context: Any) -> Attempt:
    return pod(name, container={"securityContext": context})


def probe(name: str, **handler: Any) -> Attempt:
    return pod(name, container={"livenessProbe": {"initialDelaySeconds": 1, **handler}})


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_AFFINITY = {
    REQUIRED: {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["<closed>"]}]}]
    }
}
EVERY_POD = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}
TOKEN = {"serviceAccountToken": {"path": "t", "audience": "https://kubernetes.default.svc", "expirationSeconds": 3600}}
CLAIM_SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

POD_ATTEMPTS = [
    pod("host-network", hostNetwork=True),
    pod("host-pid", hostPID=True),
    pod("host-ipc", hostIPC=True),
    pod("host-port", container={"ports": [{"containerPort": 80, "hostPort": 22}]}),
    pod("host-process", securityContext={"windowsOptions": {"hostProcess": True}}, hostNetwork=True),
    pod("sysctls", securityContext={"sysctls": [{"name": "kernel.core_pattern", "value": "|/x"}]}),
    pod("apparmor", annotations={"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
    security("privileged", privileged=True),
    security("capabilities", capabilities={"add": ["SYS_ADMIN", "NET_ADMIN"]}),
    security("escalation", allowPrivilegeEscalation=True),
    security("proc-mount", procMount="Unmasked"),
    security("seccomp", seccompProfile={"type": "Unconfined"}),
    security("root", runAsUser=0, runAsNonRoot=False),
    security("selinux", seLinuxOptions={"type": "spc_t"}),
    volume("host-path", {"hostPath": {"path": "/"}}),
    volume("host-socket", {"hostPath": {"path": "/run/containerd/containerd.sock", "type": "Socket"}}),
    volume("nfs", {"nfs": {"server": "10.0.0.1", "path": "/"}}),
    volume("iscsi", {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}}),
    volume("csi-inline", {"csi": {"driver": "disks.example.com", "volumeAttributes": {"handle": "foreign"}}}),
    volume("flex", {"flexVolume": {"driver": "a/b"}}),
    volume("git-repo", {"gitRepo": {"repository": "https://example.com/a"}}),
    volume("aws-disk", {"awsElasticBlockStore": {"volumeID": "vol-1"}}),
    volume("gce-disk", {"gcePersistentDisk": {"pdName": "a"}}),
    volume("victims-secret", {"secret": {"secretName": "shop"}}),
    volume("host-token", {"secret": {"secretName": "tapestry-tenant"}}),
    volume("foreign-secret", {"secret": {"secretName": "foreign"}}),
    volume("own-host-token", {"projected": {"sources": [TOKEN]}}),
    volume("victims-claim", {"persistentVolumeClaim": {"claimName": "foreign"}}),
    volume("ephemeral-volume-name", {
        "ephemeral": {"volumeClaimTemplate": {"spec": {**CLAIM_SPEC, "volumeName": "foreign"}}}
    }),
    pod("account", serviceAccountName="default", automountServiceAccountToken=True),
    pod("image-pull-secret", imagePullSecrets=[{"name": "foreign"}]),
    pod("env-secret", container={"envFrom": [{"secretRef": {"name": "foreign"}}]}),
    pod("closed-node", nodeName="<closed>"),
    pod("host-node-name", nodeName="<node>"),
    pod("unknown-node", nodeName="evil"),
    pod("closed-selector", nodeSelector={"tests.example.com/closed": "true"}),
    pod("closed-hostname", nodeSelector={"kubernetes.io/hostname": "<closed>"}),
    pod("closed-affinity", affinity={"nodeAffinity": NODE_AFFINITY}),
    pod("repels-others", affinity={
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [EVERY_POD]}
    }),
    pod("follows-others", affinity={
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": EVERY_POD}
        ]}
    }),
    pod("spreads-over-others", topologySpreadConstraints=[{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "foreign"}},
    }]),
    pod("tolerates-everything", tolerations=[{"operator": "Exists"}]),
    pod("scheduler", schedulerName="evil-scheduler"),
    pod("system-priority", priorityClassName="system-node-critical"),
    pod("own-priority", priorityClassName="evil"),
    pod("priority-of-owner", priorityClassName="of-owner"),
    pod("runtime-class", runtimeClassName="evil", statuses=REJECTED),
    pod("resource-claim", resourceClaims=[{"name": "gpu", "resourceClaimName": "foreign"}]),
    pod("scheduling-gate", schedulingGates=[{"name": "example.com/a"}]),
    pod("victims-labels", labels=VICTIM_LABELS),
    pod("victims-annotations", annotations=VICTIM_ANNOTATIONS),
    pod("static-pod", annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"},
        statuses=REJECTED),
    pod("cloud-role", annotations={"iam.amazonaws.com/role": "admin", "k8s.v1.cni.cncf.io/networks": "host"}),
    pod("host-aliases", hostAliases=[{"ip": "<victim-ip>", "hostnames": ["kubernetes.default.svc"]}]),
    pod("dns-of-others", dnsPolicy="None", dnsConfig={"nameservers": ["<victim-service-ip>"]}),
    probe("probe-of-host", httpGet={"host": "169.254.169.254", "port": 80}),
    probe("probe-of-loopback", tcpSocket={"host": "127.0.0.1", "port": 10250}),
    pod("hook-of-host", container={"lifecycle": {"postStart": {"httpGet": {"host": "127.0.0.1", "port": 22}}}}),
    pod("huge", container={"resources": {"requests": {"memory": "100Ti"}}}),
]  # fmt: skip


# -- Services


def service(name: str, *, annotations: Any = None, **spec: Any) -> Attempt:
    body = {"metadata": metadata(name, annotations=annotations or {}), "spec": {"ports": [{"port": 80}], **spec}}
    return Attempt(SERVICES, body)


def endpoints_at(name: str, address: str) -> list[Attempt]:
    """Return a Service whose endpoints lead to an address."""
    slice = {
        "metadata": metadata(name, labels={"kubernetes.io/service-name": name}),
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"port": 443}],
    }
    return [service(name), Attempt(SLICES, slice, (*ACCEPTED, *REJECTED))]


SERVICE_ATTEMPTS = [
    service("external-ips", externalIPs=["<victim-service-ip>"], selector={"app": "own"}),
    service("node-port", type="NodePort", selector={"app": "own"}),
    service("chosen-node-port", type="NodePort", ports=[{"port": 80, "nodePort": 30080}], selector={"app": "own"}),
    service("external-name", type="ExternalName", externalName="foreign.foreign.svc.cluster.local", ports=None),
    service("balancer", type="LoadBalancer", loadBalancerIP="<victim-service-ip>", selector={"app": "own"}),
    service("balancer-class", type="LoadBalancer", loadBalancerClass="evil.example.com/a", selector={"app": "own"}),
    service("balancer-annotations", type="LoadBalancer", selector={"app": "own"},
            annotations={"service.beta.kubernetes.io/aws-load-balancer-internal": "false"}),
    service("local-traffic", type="NodePort", externalTrafficPolicy="Local", selector={"app": "own"}),
    service("selects-victim", selector={"app": "shop"}),
    service("selects-victims-labels", selector=VICTIM_LABELS),
    service("selects-foreign", selector={"app": "foreign"}),
    service("tapestry-dns", selector={"app": "own"}),
    *endpoints_at("leads-to-victim", "<victim-ip>"),
    *endpoints_at("leads-to-metadata", "169.254.169.254"),
    *endpoints_at("leads-to-loopback", "127.0.0.1"),
    *endpoints_at("leads-to-host-api", "10.96.0.1"),
    Attempt(ENDPOINTS, {"metadata": metadata("leads-elsewhere"), "subsets": [
        {"addresses": [{"ip": "<victim-ip>"}], "ports": [{"port": 443}]}
    ]}),
    service("leads-elsewhere"),
]  # fmt: skip


# -- Ingresses, network policies, disruption budgets and priorities


def ingress(
    name: str,
    host: str | None,
    *,
    annotations: Any = None,
    statuses: tuple[int, ...] = ACCEPTED,
    service: str = "external-ips",
    path: str = "/",
    **spec: Any,
) -> Attempt:
    given = {**ingress_path(service), "path": path, "pathType": "ImplementationSpecific"}
    rule = {"http": {"paths": [given]}, **({"host": host} if host is not None else {})}
    body = {"metadata": metadata(name, annotations=annotations or {}), "spec": {"rules": [rule], **spec}}
    return Attempt(INGRESSES, body, statuses)


def network_policy(name: str, **spec: Any) -> Attempt:
    return Attempt(NETWORK_POLICIES, {"metadata": metadata(name), "spec": {"podSelector": {}, **spec}})


STEERING = {
    "canary": ("nginx.ingress.kubernetes.io/canary", "true"),
    "auth-url": ("nginx.ingress.kubernetes.io/auth-url", "http://169.254.169.254/"),
    "auth-secret": ("nginx.ingress.kubernetes.io/auth-secret", "foreign/foreign"),
    "auth-tls-secret": ("nginx.ingress.kubernetes.io/auth-tls-secret", "<victim-namespace>/<victim-certificate>"),
    "server-snippet": ("nginx.ingress.kubernetes.io/server-snippet", "location /x { proxy_pass http://10.0.0.1; }"),
    "upstream-vhost": ("nginx.ingress.kubernetes.io/upstream-vhost", "shop.example.com"),
    "mirror": ("nginx.ingress.kubernetes.io/mirror-target", "http://10.0.0.1"),
    "router-rule": ("traefik.ingress.kubernetes.io/router.middlewares", "foreign-auth@kubernetescrd"),
    "load-balancer-group": ("alb.ingress.kubernetes.io/group.name", "foreign"),
    "dns-record": ("external-dns.alpha.kubernetes.io/hostname", "shop.example.com"),
    "certificate-issuer": ("cert-manager.io/cluster-issuer", "internal"),
}
"""Annotations that steer controllers of the owner."""
UNSAFE_PATHS = ("/a {} # ", "/a;proxy_pass http://10.0.0.1", '/"', "/$http_host", "/a\nb", "/(.*)", "/\\")
EVERYWHERE: list[Any] = [{"namespaceSelector": {}}, {"podSelector": {}}]
BLOCKS = (
    *("169.254.169.254/32", "169.254.0.0/15", "128.0.0.0/1", "10.0.0.0/8", "10.96.0.1/32", "127.0.0.1/32"),
    *("fd00:ec2::254/128", "::/0", "::ffff:0:0/96", "<victim-ip>/32"),
)
ANY_ADDRESS = {"ipBlock": {"cidr": "0.0.0.0/0"}}

KIND_ATTEMPTS = [
    ingress("host-of-owner", "shop.example.com"),
    ingress("host-of-victim", "shop.<victim-id>.apps.example.com"),
    ingress("host-of-victim-in-capitals", "SHOP.<victim-id>.apps.example.com", statuses=REJECTED),
    ingress("host-below-victim", "a.shop.<victim-id>.apps.example.com"),
    ingress("any-host", None),
    ingress("wildcard", "*.example.com"),
    ingress("wildcard-of-all-tenants", "*.apps.example.com"),
    ingress("default-backend", "a.<own-id>.apps.example.com",
            defaultBackend={"service": {"name": "a", "port": {"number": 1}}}),
    ingress("foreign-class", "b.<own-id>.apps.example.com", ingressClassName="internal"),
    ingress("snippet", "c.<own-id>.apps.example.com", annotations={
        "nginx.ingress.kubernetes.io/configuration-snippet": "return 200;",
        "nginx.ingress.kubernetes.io/server-alias": "shop.example.com",
    }),
    ingress("foreign-class-in-annotation", "h.<own-id>.apps.example.com", annotations={
        "kubernetes.io/ingress.class": "internal"
    }),
    *(ingress(f"annotation-{name}", f"{name}.<own-id>.apps.example.com", annotations={key: value})
      for name, (key, value) in STEERING.items()),
    *(ingress(f"path-{number}", f"p{number}.<own-id>.apps.example.com", path=path)
      for number, path in enumerate(UNSAFE_PATHS)),
    ingress("own", "own.<own-id>.apps.example.com", tls=[{"secretName": "shop"}, {"secretName": "foreign"}]),
    ingress("own-wildcard", "*.<own-id>.apps.example.com",
            tls=[{"hosts": ["*.<own-id>.apps.example.com"], "secretName": "<victim-certificate>"}]),
    ingress("domain-of-victim", "<victim-id>.apps.example.com"),
    ingress("domain-of-all", "apps.example.com"),
    ingress("own-domain-elsewhere", "a.<own-id>.apps.example.com.example.org"),
    ingress("almost-own-domain", "a<own-id>.apps.example.com"),
    ingress("wildcard-of-victim", "*.<victim-id>.apps.example.com"),
    ingress("certificate-of-victim", "e.<own-id>.apps.example.com",
            tls=[{"hosts": ["shop.<victim-id>.apps.example.com"], "secretName": "shop"}]),
    ingress("service-of-victim", "f.<own-id>.apps.example.com", service="<victim-service>"),
    ingress("api-of-plane", "g.<own-id>.apps.example.com", service="kubernetes"),
    ingress("foreign-certificate", "d.<own-id>.apps.example.com",
            tls=[{"hosts": ["shop.example.com"], "secretName": "foreign"}]),
    network_policy("allows-everything", ingress=[{}], egress=[{}], policyTypes=["Ingress", "Egress"]),
    network_policy("allows-any-address", egress=[{"to": [ANY_ADDRESS]}], policyTypes=["Egress"]),
    network_policy("allows-from-any-address", ingress=[{"from": [ANY_ADDRESS]}]),
    network_policy("allows-other-namespaces", ingress=[{"from": EVERYWHERE}], egress=[{"to": EVERYWHERE}]),
    network_policy("allows-namespace-of-victim", egress=[{"to": [{"namespaceSelector": {
        "matchLabels": {"kubernetes.io/metadata.name": "<victim-namespace>"}
    }}]}], ingress=[{"from": [{"namespaceSelector": {"matchLabels": VICTIM_LABELS}}]}]),
    network_policy("allows-pods-of-victim", egress=[{"to": [{"podSelector": {"matchLabels": VICTIM_LABELS}}]}]),
    *(network_policy(f"allows-block-{number}", egress=[{"to": [{"ipBlock": {"cidr": cidr}}]}])
      for number, cidr in enumerate(BLOCKS)),
    network_policy("allows-all-but-one", egress=[{"to": [{"ipBlock": {
        "cidr": "0.0.0.0/0", "except": ["8.8.8.8/32"]
    }}], "ports": [{"port": 80, "protocol": "TCP"}]}]),
    network_policy("allows-ports-of-all", egress=[{"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]}]),
    network_policy("selects-victims-labels", podSelector={"matchLabels": VICTIM_LABELS}, ingress=[{}]),
    Attempt(BUDGETS, {"metadata": metadata("keeps-everything"), "spec": {"selector": {}, "minAvailable": "100%"}}),
    Attempt(BUDGETS, {"metadata": metadata("keeps-victim"), "spec": {
        "selector": {"matchLabels": VICTIM_LABELS}, "minAvailable": 100
    }}),
    Attempt(BUDGETS, {"metadata": metadata("keeps-all-namespaces"), "spec": {
        "selector": {"matchExpressions": [{"key": "tapestry.io/managed-by", "operator": "Exists"}]},
        "maxUnavailable": 0,
    }}),
    Attempt(BUDGETS, {"metadata": metadata("keeps-others"), "spec": {
        "selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["own"]}]}, "minAvailable": 1,
    }}),
    Attempt(PRIORITIES, {"metadata": metadata("evil"), "value": 1_000_000_000, "globalDefault": True}),
    Attempt(PRIORITIES, {"metadata": metadata("of-owner"), "value": 999, "preemptionPolicy": "PreemptLowerPriority"}),
    Attempt(PRIORITIES, {"metadata": metadata("system-of-tenant"), "value": 5}, REJECTED),
]  # fmt: skip


# -- volumes


def persistent_volume(name: str, **source: Any) -> Attempt:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "manual",
        "claimRef": {"namespace": "default", "name": f"{name}-claim"},
        **source,
    }
    return Attempt(VOLUMES, {"metadata": metadata(name), "spec": spec})


def claim(name: str, *, annotations: Any = None, **spec: Any) -> Attempt:
    return Attempt(CLAIMS, {"metadata": metadata(name, annotations=annotations or {}), "spec": {**CLAIM_SPEC, **spec}})


def mounting(claim_name: str) -> Attempt:
    return volume(f"mounts-{claim_name}", {"persistentVolumeClaim": {"claimName": claim_name}})


SOURCES: dict[str, Any] = {
    "handle": {"csi": {"driver": "disks.example.com", "volumeHandle": "foreign"}},
    "victims-handle": {"csi": {"driver": "simulated.csi.tapestry.io", "volumeHandle": "<victim-volume>"}},
    "handle-of-syncer": {"csi": {"driver": "host.tapestry.io", "volumeHandle": "<victim-volume>"}},
    "handle-with-secret": {
        "csi": {
            "driver": "host.tapestry.io",
            "volumeHandle": "<victim-claim>",
            "volumeAttributes": {"csi.storage.k8s.io/pvc/namespace": "foreign"},
            "nodePublishSecretRef": {"name": "foreign", "namespace": "foreign"},
        }
    },
    "<victim-volume>": {"csi": {"driver": "host.tapestry.io", "volumeHandle": "<victim-volume>"}},
    "<victim-claim>": {"csi": {"driver": "host.tapestry.io", "volumeHandle": "<victim-claim>"}},
    "local": {"local": {"path": "/"}, "nodeAffinity": {"required": NODE_AFFINITY[REQUIRED]}},
    "path": {"hostPath": {"path": "/etc"}},
    "nfs-volume": {"nfs": {"server": "10.0.0.1", "path": "/"}},
}
VOLUME_ATTEMPTS = [
    *(persistent_volume(name, **source) for name, source in SOURCES.items()),
    *(claim(f"{name}-claim", volumeName=name, storageClassName="manual") for name in SOURCES),
    *(mounting(f"{name}-claim") for name in SOURCES),
    claim("foreign-volume", volumeName="foreign", storageClassName=""),
    mounting("foreign-volume"),
    claim("foreign-class", storageClassName="internal"),
    mounting("foreign-class"),
    claim("class-of-syncer", storageClassName="owners"),
    mounting("class-of-syncer"),
    claim("selects-volumes", selector={"matchLabels": {"app": "foreign"}}, storageClassName="manual"),
    mounting("selects-volumes"),
    claim("copy-of-foreign", dataSource={"kind": "PersistentVolumeClaim", "name": "foreign"}),
    claim("bound-by-annotation", annotations={
        "pv.kubernetes.io/bind-completed": "yes",
        "volume.kubernetes.io/selected-node": "<closed>",
        "volume.kubernetes.io/storage-provisioner": "evil.example.com",
    }),
    mounting("bound-by-annotation"),
    claim("parameters-of-provisioner", storageClassName="standard", annotations={
        "nfs.io/storage-path": "../foreign", "volume.kubernetes.io/selected-node": "<closed>",
    }),
    mounting("parameters-of-provisioner"),
    Attempt(CLASSES, {"metadata": metadata("owners"), "provisioner": "host.tapestry.io"}),
    Attempt(CLASSES, {"metadata": metadata("internal"), "provisioner": "evil.example.com",
                      "parameters": {"secret": "foreign"}}),
]  # fmt: skip


# -- objects that mean something to the syncer elsewhere

API = "/apis/tapestry.io/v1alpha1"
FORGED = [
    Attempt("/api/v1/namespaces", {
        "metadata": metadata("<victim-namespace>", labels={
            **VICTIM_LABELS, "pod-security.kubernetes.io/enforce": "privileged", "allows.tapestry.io/node-ports": "true"
        }, annotations={"tapestry.io/reclaim": "now"}),
    }),
    Attempt(f"{API}/clusterbindings", {
        "metadata": metadata("victim"),
        "spec": {"clusterID": "victim", "virtualCluster": "<victim-id>", "hostCluster": "east"},
    }, REJECTED),
    Attempt(f"{API}/hostclusters", {
        "metadata": metadata("east"), "spec": {"secretRef": {"name": "a", "namespace": "b"}}
    }, REJECTED),
    Attempt(f"{API}/resourceleasingpolicies", {"metadata": metadata("mine"), "spec": {}}, REJECTED),
]  # fmt: skip

ATTEMPTS = [*KIND_ATTEMPTS, *VOLUME_ATTEMPTS, *SERVICE_ATTEMPTS, *POD_ATTEMPTS, *FORGED]
"""Classes and claims come before the pods that name them."""
