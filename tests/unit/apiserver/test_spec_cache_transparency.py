"""The spec cache is transparent: responses are the same with and without cached specs."""

import asyncio
import re
import tempfile
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.spec_cache import MAX_TEXT_BYTES, SpecCache
from tapestry.kube.objects import Object

from .conftest import ADMIN

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CORE = "/api/v1/namespaces/default"
PODS, CLASSES = f"{CORE}/pods", "/apis/scheduling.k8s.io/v1/priorityclasses"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BY_LOT = re.compile(rb"[0-9a-f]{8}-[0-9a-f-]{27}|kube-api-access-[a-z0-9]{5}")
JSON, MERGE = "application/json", "application/merge-patch+json"
STEPS, STRATEGIC = "application/json-patch+json", "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class RequestCase(NamedTuple):
    method: str
    path: str
    body: Any = None
    kind: str = JSON
    query: tuple[tuple[str, str], ...] = ()


# -- requests

LABELS = {"app": "x"}
CONTAINER: Object = {"name": "c", "image": "nginx"}
SPECS: list[Object] = [
    {"containers": [CONTAINER], "priorityClassName": "urgent"},
    {"containers": [CONTAINER]},
    {"containers": [dict(reversed(CONTAINER.items()))]},
    {"containers": [{**CONTAINER, "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}]},
    {"containers": [{**CONTAINER, "ports": [{"containerPort": 80.0}], "env": [{"name": "A", "value": 1}]}]},
    {"containers": [{**CONTAINER, "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]},
    {"containers": [{**CONTAINER, "resources": {"limits": {"cpu": 1.0, "memory": "1024Mi"}}}]},
    {"containers": [{**CONTAINER, "tty": True}], "hostNetwork": 1},
    {"containers": [{**CONTAINER, "tty": True}], "hostNetwork": True, "unknown": None},
    {"containers": [CONTAINER], "initContainers": [{"name": "i", "image": "i:1"}], "volumes": [{"name": "v"}]},
    {"containers": [CONTAINER], "serviceAccountName": "robot"},
    {"containers": [CONTAINER], "nodeName": "n", "tolerations": [], "nodeSelector": {}},
    {"containers": [CONTAINER], "schedulingGates": [{"name": "g"}]},
    {"containers": [{**CONTAINER, "args": ["x" * MAX_TEXT_BYTES]}]},
    {"containers": []},
    {},
]
METADATA: list[Object] = [
    {},
    {"labels": LABELS},
    {"labels": {"app": "y"}, "annotations": {"a": "b"}},
    {"annotations": {}, "finalizers": ["example.com/f"]},
    {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]},
    {"managedFields": []},
]
PATCHES: list[tuple[str, Any]] = [
    (MERGE, {"metadata": {"labels": {"app": "z"}}}),
    (MERGE, {"spec": {"activeDeadlineSeconds": 9}}),
    (MERGE, {"spec": None}),
    (MERGE, {"metadata": {"finalizers": None}}),
    (STRATEGIC, {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}),
    (STRATEGIC, {"spec": {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}}),
    (STRATEGIC, {"spec": {"schedulingGates": [{"$patch": "delete", "name": "g"}]}}),
    (STEPS, [{"op": "add", "path": "/spec/containers/0/image", "value": "nginx:3"}]),
    (STEPS, [{"op": "copy", "from": "/spec/containers/0", "path": "/spec/containers/-"}]),
    (STEPS, [{"op": "add", "path": "/nothing", "value": None}]),
]
NAMES = st.sampled_from("abc")
DRY = st.sampled_from(((), (("dryRun", "All"),)))


def new_pod(name: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def creation(metadata: Object, spec: Object, query: tuple[tuple[str, str], ...]) -> RequestCase:
    """Return a request to create a pod, which is named after the number of earlier requests."""
    return RequestCase("POST", PODS, new_pod("", metadata, spec), query=query)


def replacement(name: str, metadata: Object, spec: Object) -> RequestCase:
    return RequestCase("PUT", f"{PODS}/{name}", new_pod(name, metadata, spec))


def patch(name: str, patch: tuple[str, Any], part: str, query: tuple[tuple[str, str], ...]) -> RequestCase:
    return RequestCase("PATCH", f"{PODS}/{name}{part}", patch[1], patch[0], query)


def application(name: str, metadata: Object, spec: Object, manager: str) -> RequestCase:
    query = ("fieldManager", manager), ("force", "true")
    return RequestCase("PATCH", f"{PODS}/{name}", new_pod(name, metadata, spec), APPLY, query)


def deployment(name: str, spec: Object) -> RequestCase:
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": LABELS}, "template": template}}
    return RequestCase("POST", DEPLOYMENTS, body)


def debugging(name: str) -> RequestCase:
    container = {"name": "debug", "image": "busybox"}
    return RequestCase(
        "PATCH", f"{PODS}/{name}/ephemeralcontainers", {"spec": {"ephemeralContainers": [container]}}, STRATEGIC
    )


def resizing(name: str, amount: str) -> RequestCase:
    changed = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": amount, "memory": "1Gi"}}}]}}
    return RequestCase("PATCH", f"{PODS}/{name}/resize", changed, STRATEGIC)


def priority(value: int) -> list[RequestCase]:
    """Return requests that change the value of the priority class `urgent`."""
    create = RequestCase("POST", CLASSES, {"metadata": {"name": "urgent"}, "value": value})
    return [RequestCase("DELETE", f"{CLASSES}/urgent"), create]


def account(name: str, rest: Object) -> list[RequestCase]:
    return [RequestCase("PATCH", f"{CORE}/serviceaccounts/{name}", {"metadata": {"name": name}, **rest}, MERGE)]


def limits(*amount: str) -> list[RequestCase]:
    """Return requests that change the default CPU limit: to this amount, or to none."""
    ranges = [{"type": "Container", "default": {"cpu": each}} for each in amount]
    create = RequestCase("POST", f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": ranges}})
    return [RequestCase("DELETE", f"{CORE}/limitranges/l"), create]


CONTEXT_CHANGES = [
    *(priority(7), priority(8), limits("1"), limits("2"), limits()),
    *(account("default", {"automountServiceAccountToken": each}) for each in (True, False)),
    *(account("robot", {"imagePullSecrets": each}) for each in ([{"name": "s"}], None)),
]
"""Changes of other objects that affect pods."""


def requests(specs: list[Object]) -> st.SearchStrategy[list[RequestCase]]:
    """Return lists of requests about pods with these specs."""
    spec, metadata = st.sampled_from(specs), st.sampled_from(METADATA)
    request = st.one_of(
        st.builds(creation, metadata, spec, DRY),
        st.builds(lambda other, each: [*other, creation({}, each, ())], st.sampled_from(CONTEXT_CHANGES), spec),
        st.builds(replacement, NAMES, metadata, spec),
        st.builds(patch, NAMES, st.sampled_from(PATCHES), st.sampled_from(["", "", "/status"]), DRY),
        st.builds(application, NAMES, st.sampled_from(METADATA[:3]), spec, st.sampled_from("mn")),
        st.builds(deployment, NAMES, spec),
        st.builds(debugging, NAMES),
        st.builds(resizing, NAMES, st.sampled_from("12")),
        st.builds(lambda name: RequestCase("DELETE", f"{PODS}/{name}"), NAMES),
    )
    return st.lists(request, min_size=20, max_size=60).map(flat)


def flat(requests: list[RequestCase | list[RequestCase]]) -> list[RequestCase]:
    return [one for each in requests for one in (each if isinstance(each, list) else [each])]


SETUP = [
    *(RequestCase("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": name}}) for name in ("default", "robot")),
    *priority(5),
    *(RequestCase("POST", PODS, new_pod(name, {}, SPECS[5])) for name in "ab"),
]


async def responses(requests: list[RequestCase], cache: SpecCache) -> list[tuple[int, str, bytes]]:
    """Return the responses of a new server, without random parts."""
    with tempfile.TemporaryDirectory() as folder:
        config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=folder)
        async with run_apiserver(config, lambda: NOON, spec_cache=cache) as running:
            result = []
            for method, path, body, kind, query in [
                *SETUP,
                *requests,
                RequestCase("GET", PODS),
                RequestCase("GET", DEPLOYMENTS),
            ]:
                raw = msgspec.json.encode(body).replace(b'"name":""', b'"name":"n%d"' % len(result)) if body else b""
                headers = {"content-type": kind, "user-agent": "test"}
                response = await running.server.handle(Call(method, path, dict(query), headers, raw, ADMIN))
                assert isinstance(response, ApiResponse)
                result.append((response.status, response.headers.get("Warning", ""), BY_LOT.sub(b"?", response.body)))
            return result


@settings(max_examples=25)
@given(
    cases=st.lists(st.sampled_from(SPECS), min_size=1, max_size=3).flatmap(requests), entries=st.sampled_from([2, 256])
)
def test_responses_do_not_depend_on_cached_specs(cases: list[RequestCase], entries: int) -> None:
    cached = asyncio.run(responses(cases, SpecCache(entries)))
    assert cached == asyncio.run(responses(cases, SpecCache(0)))
    assert all(status < 500 for status, _, _ in cached)
