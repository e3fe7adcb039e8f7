"""Tests of pod names and their reuse."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.controller.testing import run
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import DAEMON_SETS, JOBS, PODS, REPLICA_SETS, Resource

from ..cluster import live_pods, pass_time, run_cluster

LABELS = {"app": "x"}


def new_owner(*, is_job: bool = False, **spec: Any) -> Object:
    pod = {"containers": [{"name": "c", "image": "x"}], **({"restartPolicy": "Never"} if is_job else {})}
    never = {"simulated.tapestry.io/ends-after": "never"}
    selector = {} if is_job else {"selector": {"matchLabels": LABELS}}
    template = {"metadata": {"labels": LABELS, "annotations": never}, "spec": pod}
    return {"metadata": {"name": "x", "namespace": "default"}, "spec": {**selector, "template": template, **spec}}


@pytest.mark.parametrize(
    ("controller", "resource", "owner"),
    [
        ("replicasets", REPLICA_SETS, new_owner(replicas=1)),
        ("daemonsets", DAEMON_SETS, new_owner()),
        ("jobs", JOBS, new_owner(is_job=True)),
        ("jobs", JOBS, new_owner(is_job=True, completions=1, completionMode="Indexed")),
    ],
    ids=["replicasets", "daemonsets", "jobs", "indexed"],
)
def test_replacement_pod_gets_another_name(controller: str, resource: Resource, owner: Object) -> None:
    """A client that waits for the deletion of a pod must not find another of that name."""

    async def delete_repeatedly(client: Client) -> None:
        await client.create(resource, owner)
        seen = set[str]()
        for _ in range(3):
            await pass_time()
            (pod,) = await live_pods(client)
            assert name_of(pod) not in seen
            seen.add(name_of(pod))
            await client.delete(PODS, pod)

    async def run_test() -> None:
        async with run_cluster(controller, nodes=1) as client:
            await delete_repeatedly(client)

    run(run_test())


def test_names_are_deterministic_and_unique() -> None:
    owner = {"metadata": {"name": "x", "namespace": "default", "uid": "1"}}
    first, again = owned_pods.pod_names(owner, lambda _: True), owned_pods.pod_names(owner, lambda _: True)
    names = [next(first) for _ in range(3000)]
    assert names == [next(again) for _ in range(3000)]
    assert len(set(names)) == 3000
    assert next(owned_pods.pod_names(owner, lambda name: name not in names[:2])) == names[2]
