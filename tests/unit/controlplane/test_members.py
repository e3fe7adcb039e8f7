"""The pods of controllers: what they are called."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.controller.testing import run
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import DAEMON_SETS, JOBS, PODS, REPLICA_SETS, Resource

from .worlds import a_world, live_pods, settled

LABELS = {"app": "x"}


def an_owner(*, is_job: bool = False, **spec: Any) -> Object:
    pod = {"containers": [{"name": "c", "image": "x"}], **({"restartPolicy": "Never"} if is_job else {})}
    never = {"simulated.tapestry.io/ends-after": "never"}
    selector = {} if is_job else {"selector": {"matchLabels": LABELS}}
    template = {"metadata": {"labels": LABELS, "annotations": never}, "spec": pod}
    return {"metadata": {"name": "x", "namespace": "default"}, "spec": {**selector, "template": template, **spec}}


@pytest.mark.parametrize(
    ("controller", "resource", "owner"),
    [
        ("replicasets", REPLICA_SETS, an_owner(replicas=1)),
        ("daemonsets", DAEMON_SETS, an_owner()),
        ("jobs", JOBS, an_owner(is_job=True)),
        ("jobs", JOBS, an_owner(is_job=True, completions=1, completionMode="Indexed")),
    ],
    ids=["replicasets", "daemonsets", "jobs", "indexed"],
)
def test_a_pod_that_replaces_another_is_called_otherwise(controller: str, resource: Resource, owner: Object) -> None:
    """Whoever waits for the end of the one would wait for that of the other."""

    async def story(client: Client) -> None:
        await client.create(resource, owner)
        seen = set[str]()
        for _ in range(3):
            await settled()
            (pod,) = await live_pods(client)
            assert name_of(pod) not in seen
            seen.add(name_of(pod))
            await client.delete(PODS, pod)

    async def told() -> None:
        async with a_world(controller, nodes=1) as client:
            await story(client)

    run(told())


def test_names_are_the_same_every_time_and_none_is_given_twice() -> None:
    owner = {"metadata": {"name": "x", "namespace": "default", "uid": "1"}}
    first, again = owned_pods.pod_names(owner, lambda _: True), owned_pods.pod_names(owner, lambda _: True)
    given = [next(first) for _ in range(3000)]
    assert given == [next(again) for _ in range(3000)]
    assert len(set(given)) == 3000
    assert next(owned_pods.pod_names(owner, lambda name: name not in given[:2])) == given[2]
