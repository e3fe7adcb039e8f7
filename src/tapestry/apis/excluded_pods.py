"""Pods on virtual nodes that are never synced."""

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, annotations_of, controller_of, namespace_of


def is_system_namespace(namespace: str, manager_namespace: str) -> bool:
    """Return whether the namespace belongs to the virtual cluster itself, so that its pods are never synced.

    A plane, which has no manager, has no such namespace: its tenant runs what it likes in each.
    """
    if not manager_namespace:
        return False
    return namespace.startswith("kube-") or namespace in (manager_namespace, keys.HOST_PORTS_NAMESPACE)


def is_excluded(pod: Object, binding: Binding) -> bool:
    """Return whether the pod is not synced: it belongs to the virtual cluster itself or to a DaemonSet."""
    if is_system_namespace(namespace_of(pod) or "", binding.manager_namespace):
        return True
    return is_daemon_pod(pod) and not (binding.spec.running_daemonset_by_default or binding.spec.is_tenant)


def is_daemon_pod(pod: Object) -> bool:
    """Return whether the pod belongs to a DaemonSet and does not ask to be synced."""
    owner = controller_of(pod)
    if owner is None or owner["kind"] != "DaemonSet":
        return False
    return annotations_of(pod).get(keys.RUNNING_DAEMONSET) != "true"
