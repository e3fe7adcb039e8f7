"""Pods that try to escape: to the host, to other namespaces or tenants, or beyond their lease.

Each pod uses one named technique. Otherwise it is allowed at every Pod Security level.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import binding_of
from tapestry.apis.names import physical_name, tokens_secret_name
from tapestry.kube.objects import Object

BINDING = binding_of(
    {
        "metadata": {"name": "east", "uid": "5e1f"},
        "spec": {"clusterID": "east", "mountNamespace": "leased", "secretRef": {"name": "s", "namespace": "t"}},
    },
    "a-virtual-cluster",
)


def new_pod(metadata: Object | None = None, container: Object | None = None, **spec: Any) -> Object:
    """Return a pod that is allowed at every level, apart from the given fields."""
    strict = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "metadata": {"name": "web", "namespace": "team-a", "uid": "0c1d", **(metadata or {})},
        "spec": {
            "nodeName": "vnode-east-n1",
            "securityContext": strict,
            "containers": [new_container(**(container or {}))],
            **spec,
        },
    }


def new_container(name: str = "app", context: Object | None = None, **fields: Any) -> Object:
    strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": "app:1", "securityContext": {**strict, **(context or {})}, **fields}


def with_volume(**source: Any) -> Object:
    return new_pod(volumes=[{"name": "v", **source}])


def with_projection(**source: Any) -> Object:
    return with_volume(projected={"sources": [source]})


def with_variable(**source: Any) -> Object:
    return new_pod(container={"env": [{"name": "A", "valueFrom": source}]})


def everywhere(name: str, **container: Any) -> Iterator[tuple[str, Object]]:
    """Return such a container in each container list of a pod."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield f"{name} in {field}", new_pod(**{field: [new_container(**container)]})
    yield f"{name} in a sidecar", new_pod(initContainers=[new_container(restartPolicy="Always", **container)])


# -- techniques

FOREIGN_NAMES = {
    "the name of another tenant's copy": physical_name(BINDING.virtual_cluster, BINDING.uid, "team-b", "db"),
    "the name of another pod's tokens": tokens_secret_name(BINDING.virtual_cluster, BINDING.uid, "team-b", "db"),
    "a Secret of the owner's": "owner-registry-credentials",
    "a namespace and a name": "kube-system/admin",
    "a way up": "../kube-system/admin",
    "dots": "..",
    "an escaped slash": "kube-system%2Fadmin",
    "a file": "/var/lib/kubelet/pki/kubelet.key",
    "a NUL": "db\x00admin",
    "another script": "ԁb",
    "a query": "db?dryRun=All&namespace=kube-system",
    "a line end": "db\nnamespace: kube-system",
    "64 KiB": "x" * 2**16,
    "nothing": "",
}
PLACES: dict[str, Callable[..., Object]] = {
    "a variable out of a ConfigMap": lambda name, **more: with_variable(
        configMapKeyRef={"name": name, "key": "k", **more}
    ),
    "a variable out of a Secret": lambda name, **more: with_variable(secretKeyRef={"name": name, "key": "k", **more}),
    "variables out of a ConfigMap": lambda name, **more: new_pod(
        container={"envFrom": [{"configMapRef": {"name": name, **more}}]}
    ),
    "variables out of a Secret": lambda name, **more: new_pod(
        container={"envFrom": [{"secretRef": {"name": name, **more}}]}
    ),
    "variables of an init container": lambda name, **more: new_pod(
        initContainers=[new_container("i", envFrom=[{"secretRef": {"name": name, **more}}])]
    ),
    "variables of an ephemeral container": lambda name, **more: new_pod(
        ephemeralContainers=[new_container("e", envFrom=[{"secretRef": {"name": name, **more}}])]
    ),
    "a ConfigMap's volume": lambda name, **more: with_volume(configMap={"name": name, **more}),
    "a Secret's volume": lambda name, **more: with_volume(secret={"secretName": name, **more}),
    "a projected ConfigMap": lambda name, **more: with_projection(configMap={"name": name, **more}),
    "a projected Secret": lambda name, **more: with_projection(secret={"name": name, **more}),
    "a claim": lambda name, **more: with_volume(persistentVolumeClaim={"claimName": name, **more}),
    "a pull secret": lambda name, **more: new_pod(imagePullSecrets=[{"name": name, **more}]),
}


def references_to_others() -> Iterator[tuple[str, Object]]:
    for place, created in PLACES.items():
        for kind, name in FOREIGN_NAMES.items():
            yield f"{place}: {kind}", created(name)
        yield f"{place}: a namespace beside the name", created("db", namespace="kube-system")
        yield (
            f"{place}: a selector beside the name",
            created("db", labelSelector={"matchLabels": {}}, uid="u", kind="Node"),
        )


OWNERS_KEYS = {
    "k8s.v1.cni.cncf.io/networks": "owners/lan",
    "v1.multus-cni.io/default-network": "owners/lan",
    "iam.amazonaws.com/role": "admin",
    "cni.projectcalico.org/ipAddrs": '["10.0.0.1"]',
    "io.kubernetes.cri-o.Devices": "/dev/kmsg",
    "vault.hashicorp.com/role": "owner",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "admission.gatekeeper.sh/ignore": "yes",
    "kueue.x-k8s.io/queue-name": "gold",
    "prometheus.io/scrape": "true",
    "topology.kubernetes.io/zone": "z",
    "sidecar.istio.io/inject": "false",
    "container.apparmor.security.beta.kubernetes.io/app": "runtime/default",
    "app.kubernetes.io.evil.com/name": "x",
    "batch.kubernetes.io.evil.com/x": "x",
}
"""Keys that controllers in an owner's cluster act on, and some that resemble copied keys."""


def forged_metadata() -> Iterator[tuple[str, Object]]:
    ours = [value for value in vars(keys).values() if isinstance(value, str) and value.startswith(keys.PREFIX)]
    for key in (*ours, "tapestry.io/anything"):
        yield f"label {key}", new_pod({"labels": {key: "forged"}})
        yield f"annotation {key}", new_pod({"annotations": {key: "kube-system"}})
    for key in ("mirror", "source", "hash", "seen", "anything"):
        yield f"annotation of kubelets: {key}", new_pod({"annotations": {f"kubernetes.io/config.{key}": "file"}})
    for key, value in OWNERS_KEYS.items():
        yield f"label {key}", new_pod({"labels": {key: value}})
        yield f"annotation {key}", new_pod({"annotations": {key: value}})
    for field, value in {
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": True}],
        "finalizers": ["example.com/never"],
        "generateName": "kube-",
        "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        "selfLink": "/api/v1/namespaces/kube-system/pods/etcd",
        "resourceVersion": "1",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "creationTimestamp": "1970-01-01T00:00:00Z",
        "clusterName": "owner",
        "generation": 7,
    }.items():
        yield f"metadata.{field}", new_pod({field: value})
    owner = {"apiVersion": "apps/v1", "kind": "../../Node", "name": "x" * 300, "uid": "u", "controller": True}
    yield "a workload with a strange name", new_pod({"ownerReferences": [owner]})
    yield "a namespace with a way up", new_pod({"namespace": "../kube-system"})
    yield "a name with a way up", new_pod({"name": "../../namespaces/kube-system/pods/etcd"})
    yield "a name of a mebibyte", new_pod({"name": "x" * 2**20})
    path = "metadata.annotations['example.com/a']"
    env = [{"name": f"V{number}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for number in range(1000)]
    large = new_pod({"annotations": {"example.com/a": "x" * 2**18}}, containers=[new_container(env=env)])
    yield "an annotation in a thousand variables", large
    yield "a thousand labels", new_pod({"labels": {f"example.com/{number}": "x" for number in range(1000)}})
    yield "an annotation of a mebibyte", new_pod({"annotations": {"example.com/a": "x" * 2**20}})


SOURCES: dict[str, Any] = {
    "awsElasticBlockStore": {"volumeID": "vol-1"},
    "azureDisk": {"diskName": "d", "diskURI": "u"},
    "azureFile": {"secretName": "s", "shareName": "x", "secretNamespace": "kube-system"},
    "cephfs": {"monitors": ["m"], "secretRef": {"name": "s", "namespace": "kube-system"}},
    "cinder": {"volumeID": "v"},
    "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {"secretProviderClass": "owner"}},
    "csi of a Secret elsewhere": (
        "csi",
        {"driver": "d", "nodePublishSecretRef": {"name": "s", "namespace": "kube-system"}},
    ),
    "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
    "fc": {"targetWWNs": ["w"], "lun": 0},
    "flexVolume": {"driver": "owner/root", "secretRef": {"name": "s", "namespace": "kube-system"}},
    "flocker": {"datasetName": "d"},
    "gcePersistentDisk": {"pdName": "d"},
    "gitRepo": {"repository": "--upload-pack=sh"},
    "glusterfs": {"endpoints": "owner", "path": "p"},
    "hostPath": {"path": "/"},
    "hostPath of a socket": ("hostPath", {"path": "/run/containerd/containerd.sock", "type": "Socket"}),
    "hostPath of kubelet": ("hostPath", {"path": "/var/lib/kubelet"}),
    "hostPath without a path": ("hostPath", {}),
    "image": {"reference": "registry/owner:1"},
    "iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0, "secretRef": {"name": "s"}},
    "local": {"path": "/"},
    "nfs": {"server": "s", "path": "/"},
    "photonPersistentDisk": {"pdID": "p"},
    "portworxVolume": {"volumeID": "v"},
    "quobyte": {"registry": "r", "volume": "v"},
    "rbd": {"monitors": ["m"], "image": "i", "secretRef": {"name": "s"}},
    "scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "s"}},
    "storageos": {"volumeName": "v", "secretRef": {"name": "s"}},
    "vsphereVolume": {"volumePath": "p"},
    "a kind that is not there yet": ("future", {"path": "/"}),
    "hostPath in capitals": ("HostPath", {"path": "/"}),
    "hostPath in another script": ("hоstPath", {"path": "/"}),
    "hostPath with a space that is not seen": ("hostPath\u200b", {"path": "/"}),
}


def host_volumes() -> Iterator[tuple[str, Object]]:
    for name, given in SOURCES.items():
        kind, source = given if isinstance(given, tuple) else (name, given)
        yield f"volume {name}", with_volume(**{kind: source})
        yield f"volume {name} behind an emptyDir", with_volume(emptyDir={}, **{kind: source})
    for kind in ("clusterTrustBundle", "podCertificate", "hostPath", "future"):
        yield f"projection {kind}", with_projection(**{kind: {"name": "owner", "path": "/", "signerName": "owner"}})
        yield (
            f"projection {kind} behind a ConfigMap",
            with_projection(configMap={"name": "a"}, **{kind: {"name": "owner"}}),
        )
    yield "a claim of devices", new_pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "owner-gpu"}])


def host_access() -> Iterator[tuple[str, Object]]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        for value in (True, "true", 1):
            yield f"{field}: {value!r}", new_pod(**{field: value})
    for value in (True, "true", 1):
        yield from everywhere(f"privileged: {value!r}", context={"privileged": value})
    for name in (
        "SYS_ADMIN",
        "ALL",
        "NET_ADMIN",
        "SYS_PTRACE",
        "SYS_MODULE",
        "NET_RAW",
        "CAP_SYS_ADMIN",
        "sys_admin",
        "BPF",
    ):
        yield f"capability {name}", new_pod(container={"context": {"capabilities": {"add": [name], "drop": ["ALL"]}}})
    yield from everywhere("capabilities", context={"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}})
    yield from everywhere("host port", ports=[{"containerPort": 80, "hostPort": 80}])
    yield from everywhere("host port of another type", ports=[{"containerPort": 80, "hostPort": "80"}])
    yield from everywhere("proc", context={"procMount": "Unmasked"})
    yield from everywhere("seccomp", context={"seccompProfile": {"type": "Unconfined"}})
    yield from everywhere("AppArmor", context={"appArmorProfile": {"type": "Unconfined"}})
    yield from everywhere("SELinux", context={"seLinuxOptions": {"type": "spc_t"}})
    yield from everywhere("Windows", context={"windowsOptions": {"hostProcess": True}})
    yield from everywhere(
        "an account of the owner's domain", context={"windowsOptions": {"gmsaCredentialSpecName": "admin"}}
    )
    yield from everywhere("a field that is not there yet", context={"futureHostAccess": True})
    yield from everywhere("privileged, hardly to be seen", context={"privileged\u200b": True})
    for kind in ("seccompProfile", "appArmorProfile"):
        yield f"the pod's {kind}", new_pod(securityContext={kind: {"type": "Unconfined"}})
    yield "the pod's SELinux user", new_pod(securityContext={"seLinuxOptions": {"user": "system_u"}})
    yield "the pod's SELinux role", new_pod(securityContext={"seLinuxOptions": {"role": "system_r"}})
    yield (
        "the pod as a process of the host",
        new_pod(securityContext={"windowsOptions": {"hostProcess": True}}, hostNetwork=True),
    )
    yield "a field of the pod's context that is not there yet", new_pod(securityContext={"futureHostAccess": True})
    annotation = "container.apparmor.security.beta.kubernetes.io/app"
    yield "AppArmor by annotation", new_pod({"annotations": {annotation: "unconfined"}})
    for name in (
        "kernel.core_pattern",
        "net.core.somaxconn",
        "kernel/core_pattern",
        "net.ipv4.ip_forward",
        "kernel.shm_rmid_forced ",
    ):
        yield f"sysctl {name}", new_pod(securityContext={"sysctls": [{"name": name, "value": "1"}]})
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for handler in ("httpGet", "tcpSocket"):
            yield (
                f"{probe} of another host by {handler}",
                new_pod(container={probe: {handler: {"host": "169.254.169.254", "port": 80}}}),
            )
    for hook in ("postStart", "preStop"):
        handler = {"httpGet": {"host": "169.254.169.254", "port": 80}}
        yield f"{hook} at another host", new_pod(container={"lifecycle": {hook: handler}})


def priority_and_placement() -> Iterator[tuple[str, Object]]:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["owner"]}]}
                ]
            }
        }
    }
    for field, value in {
        "nodeName": "n2",
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "affinity": affinity,
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "schedulerName": "owner-scheduler",
        "schedulingGates": [{"name": "example.com/never"}],
        "priorityClassName": "system-node-critical",
        "priority": 2**31 - 1,
        "preemptionPolicy": "PreemptLowerPriority",
        "runtimeClassName": "runc-privileged",
        "overhead": {"cpu": "-100"},
        "readinessGates": [{"conditionType": "example.com/g"}],
        "serviceAccountName": "cluster-admin",
        "serviceAccount": "cluster-admin",
        "automountServiceAccountToken": True,
        "enableServiceLinks": True,
        "ephemeralContainers": [new_container("e")],
        "futureHostAccess": True,
        "workloadRef": {"name": "owner"},
        "hostNetwork\u200b": True,
        "HostNetwork": True,
    }.items():
        yield f"spec.{field!a}", new_pod(**{field: value})
    for key in ("node.kubernetes.io/unschedulable", keys.VNODE_TAINT, keys.WITHDRAWING_TAINT, "tapestry.io/anything"):
        for effect in ("NoSchedule", "NoExecute", None):
            toleration = {"key": key, "operator": "Exists", "effect": effect}
            yield f"toleration of {key}, {effect}", new_pod(tolerations=[toleration])
    for operator in ({"operator": "Exists"}, {"key": "", "operator": "Exists"}, {"key": "late", "operator": "Exists"}):
        for effect in ("NoSchedule", "NoExecute", None):
            yield f"toleration {operator}, {effect}", new_pod(tolerations=[{**operator, "effect": effect}])
    yield (
        "many tolerations",
        new_pod(tolerations=[{"key": f"k{number}", "operator": "Exists"} for number in range(9999)]),
    )
    yield (
        "a token for the owner's API server",
        with_projection(serviceAccountToken={"path": "t", "audience": "https://kubernetes.default.svc"}),
    )
    yield "a token on a way up", with_projection(serviceAccountToken={"path": "../../t"})


def invalid_shapes() -> Iterator[tuple[str, Object]]:
    for field in ("volumes", "containers", "initContainers", "ephemeralContainers"):
        for value in ("text", 7, {"name": "v", "hostPath": {"path": "/"}}, [["nested"]], ["text"], [None], [7]):
            yield f"spec.{field}: {value!r}", new_pod(**{field: value})
    for value in ("privileged", 7, ["privileged"], [{"privileged": True}]):
        yield f"securityContext: {value!r}", new_pod(securityContext=value)
        yield (
            f"a container's securityContext: {value!r}",
            new_pod(containers=[{**new_container(), "securityContext": value}]),
        )
        yield f"a hostPath that is {value!r}", with_volume(hostPath=value)
        yield f"a configMap that is {value!r}", with_volume(configMap=value)
        yield f"projected: {value!r}", with_volume(projected=value)
    deep: Any = "end"
    for _ in range(400):
        deep = {"hostPath": {"path": "/"}, "inner": deep}
    yield "deep in an unknown field", new_pod(future=deep)
    yield "deep in a volume", with_volume(future=deep)
    yield "ten thousand volumes", new_pod(volumes=[{"name": f"v{number}", "emptyDir": {}} for number in range(10_000)])


FAMILIES = (
    references_to_others,
    forged_metadata,
    host_volumes,
    host_access,
    priority_and_placement,
    invalid_shapes,
)
TECHNIQUES = {name: pod for family in FAMILIES for name, pod in family()}
