"""Faults of a virtual cluster, and what to do about each.

The sources are messages of the lifecycle service in their JSON encoding, and the pods in the virtual cluster.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.inspect.pods import ADVICE, PodDiagnosis, ended_pod_diagnosis, mapped_pod_diagnosis, pod_condition
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.syncer.translate.pod_status import GATED_BELOW, SCHEDULED

RUNNING, ERROR = "PHASE_RUNNING", "PHASE_ERROR"
FIELDS_MAPPED = "FieldsMapped"
"""Condition that is right in either case."""
BAD_CONDITIONS = frozenset({"CertificatesExpiring", "HostUnreachable"})
"""Conditions that are wrong when they are True."""
CONDITION_ADVICE = {
    "HostUnreachable": (
        "restore the host cluster or its network; running pods go on meanwhile. "
        "`tapestry host list` shows its state to platform admins"
    ),
    "CertificatesExpiring": "a platform admin replaces the CA by `tapestry planes rotate-ca`; then get new kubeconfigs",
    "Healthy": "wait; if it persists, the log of the service has the error of the plane",
}
DEFAULT_CONDITION_ADVICE = "see the message; the log of the service has more"
POD_SECURITY_ADVICE = (
    "change the named fields of the pod; or `tapestry vc update NAME --set isolationMode=lite` for the level baseline, "
    "unless the owner of the host enforces another by pod-security.kubernetes.io/enforce at the tenant's namespace"
)
QUOTA_ADVICE = "delete other pods or request less; an admin of the host cluster may raise the quota in the message"
NODES_ADVICE = "wait until a node is leased and open; `tapestry host list` shows platform admins how many are"
POD_ADVICE = {
    **ADVICE,
    "PodSecurity": POD_SECURITY_ADVICE,
    "QuotaExceeded": QUOTA_ADVICE,
    "NoNodes": NODES_ADVICE,
    "OutOfTimeWindows": NODES_ADVICE,
    "Unschedulable": "see the message of the host's scheduler: request less, or wait for nodes that match",
    "NodeNotMatched": "change the node selector or affinity of the pod: no open node matches",
    "NotPermitted": "add the host cluster again with `tapestry host add`, which grants the missing rights",
    "NotSeen": "wait; if it persists, the log of the service says why the syncer of the cluster does not run",
    "ErrImagePull": "check the name of the image, and its pull secret",
    "ImagePullBackOff": "check the name of the image, and its pull secret",
    "CrashLoopBackOff": "see `kubectl logs --previous` of the pod",
    "CreateContainerConfigError": "see the message: the container needs an object that does not exist",
}
DEFAULT_POD_ADVICE = "see `kubectl describe pod` in the virtual cluster"
STARTING = frozenset({"Starting", "ContainerCreating", "PodInitializing", "AwaitingTwin"})
"""Reasons of pods that are on their way."""
HOST_REASONS = frozenset({"PodSecurity", "RefusedBelow", "UnschedulableBelow", "PhysicalPodLost", GATED_BELOW})
"""Reasons of failed pods that are not about the program in them."""
MAX_NAMES, MAX_GROUPS = 3, 8


@dataclass(frozen=True)
class Fault:
    text: str
    advice: str


def cluster_faults(vcluster: Object) -> Iterator[Fault]:
    """Yield what the status of a virtual cluster says."""
    status = vcluster.get("status", {})
    phase, message = status.get("phase"), status.get("message", "")
    if phase == ERROR or (message and phase != RUNNING):
        advice = "remove the cause and repeat the operation" if phase == ERROR else "wait; the operation is repeated"
        yield Fault(f"{status.get('reason') or 'message'}: {message or 'there is no message'}", advice)
    for each in status.get("conditions", ()):
        type, expected = each.get("type", ""), "False" if each.get("type") in BAD_CONDITIONS else "True"
        if each.get("status") != expected and type != FIELDS_MAPPED:
            text = f"condition {type} is {each.get('status')}: {each.get('message') or each.get('reason', '')}"
            yield Fault(text, CONDITION_ADVICE.get(type, DEFAULT_CONDITION_ADVICE))


def operation_faults(operations: Iterable[Object]) -> Iterator[Fault]:
    """Yield the steps that operations try again, and the error of the newest one that has ended.

    The newest operation is the first one.
    """
    for each in operations:
        name = f"operation {each['id']} ({each.get('verb', '')})"
        failing = [step for step in each.get("steps", ()) if step.get("error")]
        if each.get("done"):
            if "error" in each:
                step = f" in step {failing[-1]['name']}" if failing else ""
                text = f"{name} failed{step}: {each['error'].get('message', '')}"
                yield Fault(text, f"remove the cause and repeat it; `tapestry op get {each['id']}` shows its steps")
            return
        for step in failing:
            text = f"{name} tries step {step['name']} again, attempt {step.get('attempt', 1)}: {step['error']}"
            yield Fault(text, f"remove the cause, or stop it with `tapestry op cancel {each['id']}`")


def host_faults(host: Object) -> Iterator[Fault]:
    """Yield what the status of its host cluster says."""
    name = host.get("name", "")
    for each in host.get("conditions", ()):
        if each.get("type") == "Reachable" and each.get("status") != "True":
            text = f"host cluster {name} is not reachable: {each.get('message') or each.get('reason', '')}"
            yield Fault(text, "check the host cluster, its network, and the credential that the service has for it")
            return
    if "nodes" in host and not host["nodes"]:
        yield Fault(f"host cluster {name} has no nodes", "add nodes, or check the node selector of the HostCluster")


def pod_faults(pods: Iterable[Object]) -> Iterator[Fault]:
    """Yield why pods do not run, with the message of the host cluster; equal reasons once for all pods."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in pods:
        found = pod_diagnosis(pod)
        if found.reason and found.reason not in STARTING:
            groups[found.reason, found.why].append(key_of(pod))
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    for (reason, why), names in largest[:MAX_GROUPS]:
        yield Fault(f"{pods_text(names)} {reason}{f': {why}' if why else ''}", pod_advice(reason, why))
    if rest := [name for _, names in largest[MAX_GROUPS:] for name in names]:
        yield Fault(f"{len(rest)} more pods have other problems", DEFAULT_POD_ADVICE)


def pod_diagnosis(pod: Object) -> PodDiagnosis:
    """Return why a pod of a virtual cluster does not run; without a reason if it does, or has ended by itself."""
    if is_deleting(pod):
        return PodDiagnosis("Leaving")
    phase = value_at(pod, "status", "phase", default="Pending")
    if phase in ("Succeeded", "Failed"):
        ended = ended_pod_diagnosis(pod)
        return ended if ended.reason in HOST_REASONS else PodDiagnosis(phase)
    accepted, mapped = (pod_condition(pod, each) for each in (keys.ACCEPTED_CONDITION, keys.MAPPED_CONDITION))
    for condition in (accepted, mapped):
        if condition.get("status") == "False":
            return PodDiagnosis("Waiting", condition.get("reason", ""), condition.get("message", ""))
    if mapped.get("status") == "True" or phase == "Running":
        return container_diagnosis(pod) or mapped_pod_diagnosis(pod)
    scheduled = pod_condition(pod, SCHEDULED)
    if scheduled.get("status") == "False":
        return PodDiagnosis("Waiting", scheduled.get("reason") or "Unschedulable", scheduled.get("message", ""))
    return PodDiagnosis("Waiting", "NotSeen", "the syncer has not processed it yet")


def container_diagnosis(pod: Object) -> PodDiagnosis | None:
    """Return why a container of a running pod does not run."""
    for each in value_at(pod, "status", "containerStatuses", default=[]):
        if waiting := value_at(each, "state", "waiting"):
            return PodDiagnosis("Waiting", waiting.get("reason", ""), waiting.get("message", ""))
    return None


def pod_advice(reason: str, why: str) -> str:
    """Return the advice for a reason. A rejection by the host says only in its message what it is about."""
    if reason == "RefusedBelow" and "PodSecurity" in why:
        return POD_SECURITY_ADVICE
    if reason == "RefusedBelow" and "quota" in why:
        return QUOTA_ADVICE
    return POD_ADVICE.get(reason, DEFAULT_POD_ADVICE)


def pods_text(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"pod {names[0]}:"
    listed = ", ".join(sorted(names)[:MAX_NAMES])
    return f"{len(names)} pods ({listed}{', ...' if len(names) > MAX_NAMES else ''}):"
