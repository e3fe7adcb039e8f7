"""Pods on our virtual nodes and their twins, as the syncer knows them."""

from collections.abc import Callable
from dataclasses import dataclass

from tapestry.kube.errors import BadRequest, NotFound
from tapestry.kube.objects import Object, key_of, name_of
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of


@dataclass(frozen=True)
class TwinLookup:
    """Lookup of pods on our virtual nodes and of their twins.  No request and no annotation influences it."""

    pod: Callable[[str], Object | None]
    """Return the pod of a key, if it is bound to one of our virtual nodes."""
    twin: Callable[[Object], Object | None]
    """Return the twin of a pod, if it is provably ours."""

    def require_twin(self, pod: Object, consequence: str) -> Object:
        """Return the twin of a pod.  Raise the error of a kubelet if there is none."""
        twin = self.twin(pod)
        if twin is None:
            raise no_twin_error(pod, consequence)
        return twin


def check_container(pod: Object, container: str) -> None:
    """Raise NotFound if the pod has no such container.  Its twin may have others, which are its owner's."""
    if all(each["name"] != container for each in containers_of(pod, CONTAINER_FIELDS)):
        raise NotFound(404, "NotFound", f'container "{container}" not found in pod "{name_of(pod)}"')


def no_twin_error(pod: Object, consequence: str) -> BadRequest:
    problem = f'pod "{name_of(pod)}" does not run in the physical cluster, not yet or not any more'
    message = f"{problem}, so {consequence}; `tapestry explain pod {key_of(pod)}` explains why"
    return BadRequest(400, "BadRequest", message)
