"""Advice: what is said in a `Warning` header of a write that is accepted all the same.

Fields that are deprecated, that mean nothing where they are, or that hide each other: in Kubernetes' words, and only
when they are written.  What there is to say of pods and their templates is in `pod_advice`.
"""

from collections.abc import Callable, Iterator, Mapping

from tapestry.apiserver.pod_advice import NODE_LABELS, VOLUMES, cidr_advice, claim_advice, ip_advice, node_term_advice
from tapestry.apiserver.pod_advice import SHOWN_AS as VOLUMES_SHOWN_AS
from tapestry.apiserver.pod_advice import pod_advice as of_pod
from tapestry.apiserver.validation.names import label
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at

Advice = Callable[[Object, Object | None], Iterator[str]]
"""Of an object, and what it was before."""

NAME = "which can result in surprising behavior; a DNS label is recommended"
OLD_CLASS, OLD_MOUNTS = "volume.beta.kubernetes.io/storage-class", "volume.beta.kubernetes.io/mount-options"
HINTS, MODE = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
INGRESS_CLASS = "kubernetes.io/ingress.class"
OWN_ENDPOINTS = {
    "endpoints.kubernetes.io/managed-by": ("endpoint-controller",),
    "endpointslice.kubernetes.io/managed-by": (
        *("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"),
    ),
}


async def step(request: Request, _: Object | None, new: Object | None) -> Object:
    raise NotImplementedError
