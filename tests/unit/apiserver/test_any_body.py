"""Whatever a body says, it is answered: a client's mistake is the client's, and stops nobody else."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call
from tapestry.apiserver.resource_registry import published_api
from tapestry.apiserver.server import ApiResponse
from tapestry.kube.objects import Object
from tapestry.kube.patches import apply_json_patch

from .conftest import ADMIN

SPECIMENS = list(yaml.safe_load_all((Path(__file__).parents[2] / "integration" / "specimens.yaml").read_text()))
COLLECTIONS = {(row.resource.api_version, row.resource.kind): row.resource for row in published_api().resources}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
PODS, MAPS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
ACCESS = "/apis/authorization.k8s.io/v1"
BESIDE: list[tuple[str, str, Object]] = [
    ("POST", f"{ACCESS}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "p"}}}),
    ("POST", f"{ACCESS}/subjectaccessreviews", {"spec": {"user": "u", "groups": ["g"], "extra": {"a": ["b"]}}}),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "a.b.c", "audiences": ["x"]}}),
    (
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/specimen/token",
        {"spec": {"audiences": ["x"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "specimen"}}},
    ),
    ("POST", f"{PODS}/specimen/binding", {"metadata": {"name": "specimen"}, "target": {"kind": "Node", "name": "n"}}),
    (
        "POST",
        f"{PODS}/specimen/eviction",
        {"metadata": {"name": "specimen"}, "deleteOptions": {"gracePeriodSeconds": 1, "preconditions": {"uid": "u"}}},
    ),
    ("PUT", "/apis/apps/v1/namespaces/default/deployments/specimen/scale", {"metadata": {}, "spec": {"replicas": 3}}),
    ("PATCH", "/apis/apps/v1/namespaces/default/deployments/specimen/scale", {"metadata": {}, "spec": {"replicas": 3}}),
    ("PUT", f"{PODS}/specimen/resize", {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}]}}),
    ("DELETE", f"{PODS}/another", {"gracePeriodSeconds": 1, "preconditions": {"uid": "u"}, "orphanDependents": True}),
]
VALUES = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 2**40, 2**63, "", "a", "1", "x" * 300, "\0", "10.0.0.1", "1Gi", "*", "a/b/c", "["),
        *([], [None], [[]], [{}], {}, {"a": None}, {"": ""}, {"a": 1}, ["a", "a"], [{"name": "a"}] * 2),
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
    ]
)


def places(value: Any, at: str = "") -> Iterator[str]:
    """Pointers to everything in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        pointer = f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}"
        yield pointer
        yield from places(each, pointer)


def twisted(body: Object) -> st.SearchStrategy[Object]:
    """The body with something else in one place."""
    return st.builds(
        lambda at, value: apply_json_patch(body, [{"op": "replace", "path": at, "value": value}]),
        st.sampled_from(list(places(body))),
        VALUES,
    )


Asked = tuple[str, str, Any, str]


def of_specimen(specimen: Object) -> st.SearchStrategy[Asked]:
    there, name = of_kind(specimen), specimen["metadata"]["name"]
    ways = [("POST", there, "application/json"), ("PUT", f"{there}/{name}", "application/json")]
    ways += [("PATCH", f"{there}/{name}", kind) for kind in (MERGE, STRATEGIC)]
    return st.builds(lambda way, body: (way[0], way[1], body, way[2]), st.sampled_from(ways), twisted(specimen))


def beside(way: tuple[str, str, Object]) -> st.SearchStrategy[Asked]:
    method, path, body = way
    kind = MERGE if method == "PATCH" else "application/json"
    return twisted(body).map(lambda each: (method, path, each, kind))


ASKED = st.sampled_from(SPECIMENS).flatmap(of_specimen) | st.sampled_from(BESIDE).flatmap(beside)


async def codes(asked: list[Asked]) -> list[int]:
    """How a server that has one of each kind answers; in the end it takes one more."""
    made = [("POST", of_kind(each), each, "application/json") for each in SPECIMENS]
    last: Asked = ("POST", MAPS, {"metadata": {"name": "last"}}, "application/json")
    with tempfile.TemporaryDirectory() as folder:
        config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=folder, pod_accounts=False)
        async with run_apiserver(config) as served, asyncio.timeout(60):
            found = []
            for method, path, body, kind in [*made, *asked, last]:
                call = Call(method, path, {}, {"content-type": kind}, msgspec.json.encode(body), ADMIN)
                answer = await served.server.handle(call)
                assert isinstance(answer, ApiResponse)
                found.append(answer.status)
            return found[len(made) :]


def of_kind(specimen: Object) -> str:
    resource = COLLECTIONS[specimen["apiVersion"], specimen["kind"]]
    return resource.path("default" if resource.namespaced else None)


@settings(max_examples=12)
@given(asked=st.lists(ASKED, min_size=30, max_size=80))
def test_whatever_is_sent_is_answered_and_the_next_is_served(asked: list[Asked]) -> None:
    found = asyncio.run(codes(asked))
    assert [(code, each) for code, each in zip(found, asked, strict=False) if code >= 500] == []
    assert found[-1] == 201
