"""What is remembered of a spec never tells: whatever is written, it comes out as if nothing had been met before."""

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver import spec_cache
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import ApiResponse
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


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Any = None
    kind: str = JSON
    query: tuple[tuple[str, str], ...] = ()


# -- what there is to be written

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
    {"containers": [{**CONTAINER, "args": ["x" * spec_cache.MAX_TEXT_BYTES]}]},
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


def a_pod(name: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def creation(metadata: Object, spec: Object, query: tuple[tuple[str, str], ...]) -> Asked:
    """Of one more: it is named after how many there were before."""
    return Asked("POST", PODS, a_pod("", metadata, spec), query=query)


def replacement(name: str, metadata: Object, spec: Object) -> Asked:
    return Asked("PUT", f"{PODS}/{name}", a_pod(name, metadata, spec))


def patch(name: str, patch: tuple[str, Any], part: str, query: tuple[tuple[str, str], ...]) -> Asked:
    return Asked("PATCH", f"{PODS}/{name}{part}", patch[1], patch[0], query)


def application(name: str, metadata: Object, spec: Object, manager: str) -> Asked:
    query = ("fieldManager", manager), ("force", "true")
    return Asked("PATCH", f"{PODS}/{name}", a_pod(name, metadata, spec), APPLY, query)


def deployment(name: str, spec: Object) -> Asked:
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    wanted = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": LABELS}, "template": template}}
    return Asked("POST", DEPLOYMENTS, wanted)


def debugging(name: str) -> Asked:
    one = {"name": "debug", "image": "busybox"}
    return Asked("PATCH", f"{PODS}/{name}/ephemeralcontainers", {"spec": {"ephemeralContainers": [one]}}, STRATEGIC)


def resizing(name: str, amount: str) -> Asked:
    changed = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": amount, "memory": "1Gi"}}}]}}
    return Asked("PATCH", f"{PODS}/{name}/resize", changed, STRATEGIC)


def priority(value: int) -> list[Asked]:
    """From now on, that of what is urgent."""
    made = Asked("POST", CLASSES, {"metadata": {"name": "urgent"}, "value": value})
    return [Asked("DELETE", f"{CLASSES}/urgent"), made]


def account(name: str, rest: Object) -> list[Asked]:
    return [Asked("PATCH", f"{CORE}/serviceaccounts/{name}", {"metadata": {"name": name}, **rest}, MERGE)]


def limits(*amount: str) -> list[Asked]:
    """From now on, what a container gets that does not say: this, or nothing."""
    ranges = [{"type": "Container", "default": {"cpu": each}} for each in amount]
    made = Asked("POST", f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": ranges}})
    return [Asked("DELETE", f"{CORE}/limitranges/l"), made]


AROUND = [
    *(priority(7), priority(8), limits("1"), limits("2"), limits()),
    *(account("default", {"automountServiceAccountToken": each}) for each in (True, False)),
    *(account("robot", {"imagePullSecrets": each}) for each in ([{"name": "s"}], None)),
]
"""What a pod depends on beside what it says."""


def requests(specs: list[Object]) -> st.SearchStrategy[list[Asked]]:
    """Some, about pods of these specs."""
    spec, metadata = st.sampled_from(specs), st.sampled_from(METADATA)
    asked = st.one_of(
        st.builds(creation, metadata, spec, DRY),
        st.builds(lambda other, each: [*other, creation({}, each, ())], st.sampled_from(AROUND), spec),
        st.builds(replacement, NAMES, metadata, spec),
        st.builds(patch, NAMES, st.sampled_from(PATCHES), st.sampled_from(["", "", "/status"]), DRY),
        st.builds(application, NAMES, st.sampled_from(METADATA[:3]), spec, st.sampled_from("mn")),
        st.builds(deployment, NAMES, spec),
        st.builds(debugging, NAMES),
        st.builds(resizing, NAMES, st.sampled_from("12")),
        st.builds(lambda name: Asked("DELETE", f"{PODS}/{name}"), NAMES),
    )
    return st.lists(asked, min_size=20, max_size=60).map(flat)


def flat(asked: list[Asked | list[Asked]]) -> list[Asked]:
    return [one for each in asked for one in (each if isinstance(each, list) else [each])]


BEFORE = [
    *(Asked("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": name}}) for name in ("default", "robot")),
    *priority(5),
    *(Asked("POST", PODS, a_pod(name, {}, SPECS[5])) for name in "ab"),
]


async def answers(asked: list[Asked], before: Callable[[], None]) -> list[tuple[int, str, bytes]]:
    """What a new server says, without what is drawn by lot."""
    with tempfile.TemporaryDirectory() as folder:
        config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=folder)
        async with run_apiserver(config, lambda: NOON) as served:
            found = []
            for method, path, body, kind, query in [*BEFORE, *asked, Asked("GET", PODS), Asked("GET", DEPLOYMENTS)]:
                before()
                raw = msgspec.json.encode(body).replace(b'"name":""', b'"name":"n%d"' % len(found)) if body else b""
                headers = {"content-type": kind, "user-agent": "test"}
                answer = await served.server.handle(Call(method, path, dict(query), headers, raw, ADMIN))
                assert isinstance(answer, ApiResponse)
                found.append((answer.status, answer.headers.get("Warning", ""), BY_LOT.sub(b"?", answer.body)))
            return found


@contextmanager
def room_for(most: int) -> Iterator[None]:
    kept, spec_cache.MAX_ENTRIES = spec_cache.MAX_ENTRIES, most
    try:
        yield
    finally:
        spec_cache.MAX_ENTRIES = kept
        spec_cache.clear_cache()


@settings(max_examples=25)
@given(asked=st.lists(st.sampled_from(SPECS), min_size=1, max_size=3).flatmap(requests), most=st.sampled_from([2, 256]))
def test_whatever_is_written_comes_out_as_if_nothing_were_remembered(asked: list[Asked], most: int) -> None:
    with room_for(most):
        remembering = asyncio.run(answers(asked, lambda: None))
        forgetful = asyncio.run(answers(asked, spec_cache.clear_cache))
    assert remembering == forgetful
    assert all(status < 500 for status, _, _ in remembering)
