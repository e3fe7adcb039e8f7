"""The VerticalPodAutoscaler of a syncer, with and without that kind in the cluster."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import DEPLOYMENTS, VERTICAL_AUTOSCALERS
from tapestry.manager.autoscaling import ensure_autoscaler

NAME, PLACE = "tapestry-syncer-east", "tapestry-system"


def binding(autoscale: str, *conditions: Object) -> Object:
    spec = {"clusterID": "east", "secretRef": {"name": "s", "namespace": PLACE}, "syncer": {"autoscale": autoscale}}
    return {"metadata": {"name": "east", "uid": "u"}, "spec": spec, "status": {"conditions": list(conditions)}}


async def deployed(client: Client, name: str = NAME) -> Object:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return await client.create(DEPLOYMENTS, {"metadata": {"name": name, "namespace": PLACE}, "spec": spec})


async def ensure(client: Client, obj: Object, deployment: Object) -> tuple[str, str]:
    condition: Any = await ensure_autoscaler(client, obj, decode_spec(CLUSTER_BINDING, obj), deployment) or {}
    return condition.get("status", ""), condition.get("reason", "")


async def test_autoscaler_follows_the_binding() -> None:
    client = Client(InProcessApi([DEPLOYMENTS, VERTICAL_AUTOSCALERS], now=partial(datetime.now, UTC)).connect())
    deployment = await deployed(client)
    assert await ensure(client, binding("none"), deployment) == ("", "")
    for _ in range(2):  # the second time, nothing changes
        assert await ensure(client, binding("vertical"), deployment) == ("True", "Autoscaled")
    (autoscaler,) = await client.list(VERTICAL_AUTOSCALERS, PLACE)
    assert autoscaler["spec"]["targetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    assert autoscaler["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
    before = {"type": "Autoscaled", "status": "True", "reason": "Autoscaled"}
    assert await ensure(client, binding("none", before), deployment) == ("False", "Disabled")
    assert await client.list(VERTICAL_AUTOSCALERS, PLACE) == []
    assert await ensure(client, binding("none", {**before, "reason": "Disabled"}), deployment) == ("", "")


async def test_missing_kind_is_reported() -> None:
    client = Client(InProcessApi([DEPLOYMENTS], now=partial(datetime.now, UTC)).connect())
    assert await ensure(client, binding("vertical"), await deployed(client)) == ("False", "KindMissing")


async def test_autoscaler_of_somebody_else_is_left_alone() -> None:
    client = Client(InProcessApi([DEPLOYMENTS, VERTICAL_AUTOSCALERS], now=partial(datetime.now, UTC)).connect())
    foreign = {"metadata": {"name": NAME, "namespace": PLACE}, "spec": {"targetRef": {"kind": "Deployment"}}}
    await client.create(VERTICAL_AUTOSCALERS, foreign)
    assert await ensure(client, binding("vertical"), await deployed(client)) == ("False", "NameTaken")
    (found,) = await client.list(VERTICAL_AUTOSCALERS, PLACE)
    assert name_of(found) == NAME
    assert "ownerReferences" not in found["metadata"]
