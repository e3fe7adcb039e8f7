"""Translation of errors of the physical API server to those of a kubelet.

API servers show users the message of a 400 or 500, and replace the message of all other codes.  Messages contain the
name of the pod in place of that of its twin.
"""

from dataclasses import dataclass

from tapestry.kube.errors import ApiError, BadRequest, Forbidden, NotFound, ServerError, Unauthorized
from tapestry.kube.objects import Object, name_of, namespace_of
from tapestry.nodeproxy.twins import no_twin_error

MAX_MESSAGE_LENGTH = 4096
"""Maximum characters of a message from the physical cluster."""


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource of pods that users request, and what errors say about it."""

    name: str
    without_twin: str
    """Consequence of a missing twin."""
    unreachable: str
    """Consequence of an unreachable physical cluster."""


LOG = Subresource("log", "there is no log", "its logs are not available")
STREAMS = {
    name: Subresource(name, f"{verb} is not possible", f"{verb} is not possible")
    for name, verb in (("exec", "exec"), ("attach", "attach"), ("portforward", "port-forward"))
}
"""Subresources with interactive streams, by name."""


def translate_error(error: ApiError, subresource: Subresource, pod: Object, twin: Object) -> ApiError:
    """Return the error of a kubelet for the virtual pod."""
    message = error.message.replace(name_of(twin), name_of(pod))[:MAX_MESSAGE_LENGTH]
    match error:
        case NotFound():
            return no_twin_error(pod, subresource.without_twin)
        case Forbidden():
            return internal_error(denial_message(subresource, pod, twin))
        case Unauthorized():
            problem = f"the physical cluster rejects the credentials of the syncer of node {pod['spec']['nodeName']}"
            return internal_error(f"{problem}; run `tapestry doctor`")
        case ServerError():
            return internal_error(f"the physical cluster reports: {message}")
        case _:
            return BadRequest(400, "BadRequest", message)


def denial_message(subresource: Subresource, pod: Object, twin: Object) -> str:
    node = pod["spec"]["nodeName"]
    if subresource is LOG:
        remedy = f"grant it `get pods/log` in namespace {namespace_of(twin)} there, or join the cluster again"
        return f"the syncer of node {node} may not read logs in the physical cluster; {remedy}"
    problem = f"{subresource.without_twin}: the owner of the physical cluster of node {node} does not allow it"
    return f"{problem}; the owner can allow it with `tapestry join --exec`"


def unreachable_error(subresource: Subresource, pod: Object) -> ServerError:
    problem = f"the physical cluster of node {pod['spec']['nodeName']} is unreachable"
    return internal_error(f"{problem}; {subresource.unreachable} until it is reachable again")


def internal_error(message: str) -> ServerError:
    return ServerError(500, "InternalError", message)
