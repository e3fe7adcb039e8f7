"""StatefulSets at work in a cluster."""
from tapestry.client.client import Client
from tapestry.kube.objects import *
from tapestry.kube.resources import *
from .worlds import in_a_world, live_pods, wait_until, settled

def a_set(replicas=3, **spec):
    return {"metadata": {"name": "db", "namespace": "default"}, "spec": {"replicas": replicas, "serviceName": "db",
      "selector": {"matchLabels": {"app": "db"}}, "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}, **spec}}

@in_a_world("statefulsets")
async def test_a_set_gets_its_pods(client: Client) -> None:
    await client.create(STATEFUL_SETS, a_set())
    got = await wait_until(client, STATEFUL_SETS, "db", lambda s: value_at(s, "status", "readyReplicas") == 3)
    await settled()
    print((await client.get(STATEFUL_SETS, "db", "default"))["status"], [name_of(p) for p in await live_pods(client)])
    assert 0
