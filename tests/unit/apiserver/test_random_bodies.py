"""Random bodies: no body causes an internal error or stops the server."""

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
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.objects import Object
from tapestry.kube.patches import apply_json_patch

from .conftest import ADMIN

SPECIMENS = list(yaml.safe_load_all((Path(__file__).parents[2] / "integration" / "specimens.yaml").read_text()))
COLLECTIONS = {(row.resource.api_version, row.resource.kind): row.resource for row in published_api().resources}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
PODS, MAPS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
ACCESS = "/apis/authorization.k8s.io/v1"
OTHER_REQUESTS: list[tuple[str, str, Object]] = [
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


def pointers(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield JSON pointers to all values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        pointer = f"{prefix}/{str(key).replace('~', '~0').replace('/', '~1')}"
        yield pointer
        yield from pointers(each, pointer)


def mutated_bodies(body: Object) -> st.SearchStrategy[Object]:
    """Return the body with one value replaced."""
    return st.builds(
        lambda pointer, value: apply_json_patch(body, [{"op": "replace", "path": pointer, "value": value}]),
        st.sampled_from(list(pointers(body))),
        VALUES,
    )


RequestCase = tuple[str, str, Any, str]


def object_requests(specimen: Object) -> st.SearchStrategy[RequestCase]:
    collection, name = collection_path(specimen), specimen["metadata"]["name"]
    targets = [("POST", collection, "application/json"), ("PUT", f"{collection}/{name}", "application/json")]
    targets += [("PATCH", f"{collection}/{name}", kind) for kind in (MERGE, STRATEGIC)]
    return st.builds(
        lambda target, body: (target[0], target[1], body, target[2]), st.sampled_from(targets), mutated_bodies(specimen)
    )


def other_requests(case: tuple[str, str, Object]) -> st.SearchStrategy[RequestCase]:
    method, path, body = case
    kind = MERGE if method == "PATCH" else "application/json"
    return mutated_bodies(body).map(lambda each: (method, path, each, kind))


REQUESTS = st.sampled_from(SPECIMENS).flatmap(object_requests) | st.sampled_from(OTHER_REQUESTS).flatmap(other_requests)


async def status_codes(cases: list[RequestCase]) -> list[int]:
    """Return the status codes of a server with one object of each kind; the last request is valid."""
    created = [("POST", collection_path(each), each, "application/json") for each in SPECIMENS]
    last: RequestCase = ("POST", MAPS, {"metadata": {"name": "last"}}, "application/json")
    with tempfile.TemporaryDirectory() as folder:
        config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=folder, pod_accounts=False)
        async with run_apiserver(config) as running, asyncio.timeout(60):
            statuses = []
            for method, path, body, kind in [*created, *cases, last]:
                call = Call(method, path, {}, {"content-type": kind}, msgspec.json.encode(body), ADMIN)
                response = await running.server.handle(call)
                assert isinstance(response, ApiResponse)
                statuses.append(response.status)
            return statuses[len(created) :]


def collection_path(specimen: Object) -> str:
    resource = COLLECTIONS[specimen["apiVersion"], specimen["kind"]]
    return resource.path("default" if resource.namespaced else None)


@settings(max_examples=12)
@given(cases=st.lists(REQUESTS, min_size=30, max_size=80))
def test_any_body_gets_a_response(cases: list[RequestCase]) -> None:
    statuses = asyncio.run(status_codes(cases))
    assert [(code, each) for code, each in zip(statuses, cases, strict=False) if code >= 500] == []
    assert statuses[-1] == 201
