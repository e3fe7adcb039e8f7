"""What a pod asks of its node, as the scheduler counts it."""

from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import Amounts, parse

ONE_POD = Amounts(pods=parse(1))


def effective_requests(pod: Object) -> Amounts:
    """What the pod holds of its node: the larger of its init phase and its running phase, and its overhead.

    Init containers run one after the other; those that restart for ever are sidecars and go on beside everything later.
    """
    spec = pod["spec"]
    sidecars, highest = Amounts(), Amounts()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars + requests_of(container)
            highest = highest.larger(sidecars)
        else:
            highest = highest.larger(sidecars + requests_of(container))
    running = sidecars
    for container in spec.get("containers") or ():
        running = running + requests_of(container)
    total = highest.larger(running)
    whole = Amounts.parse(value_at(spec, "resources", "requests"))  # stated for the pod as a whole
    return Amounts({**total, **whole}) + Amounts.parse(spec.get("overhead")) + ONE_POD


def requests_of(container: Object) -> Amounts:
    """A container's requests; a limit without a request is a request."""
    resources = container.get("resources") or {}
    return Amounts.parse({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def holds_its_node(pod: Object) -> bool:
    """Whether the pod still counts: it is bound and neither succeeded nor failed."""
    return bool(value_at(pod, "spec", "nodeName")) and value_at(pod, "status", "phase") not in ("Succeeded", "Failed")
