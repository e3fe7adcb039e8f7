"""Interning and memoization of object parts."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.assembly import ServerThreads, open_server
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.spec_cache import (
    MAX_ENTRIES,
    MAX_TEXT_BYTES,
    RESULTS_PER_ENTRY,
    SpecCache,
    Variant,
    bounded_cache,
    memoized,
    memoized_and_interned,
    variant,
    variant_text,
)
from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"


Interner = Callable[..., Object]


@pytest.fixture
def interned() -> Interner:
    """Function that interns a text in the cache of one server."""
    return interner(SpecCache())


def interner(cache: SpecCache) -> Interner:
    def interned(text: bytes, scope: str = "here") -> Object:
        result, _ = cache.intern(text, scope, lambda: ({"text": text.decode()}, ()))
        return result

    return interned


def test_equal_text_in_same_scope_is_same_value(interned: Interner) -> None:
    assert interned(b"a") is interned(b"a")
    assert interned(b"a") is not interned(b"b")
    assert interned(b"a") is not interned(b"a", "elsewhere")


def test_servers_share_no_values(interned: Interner) -> None:
    assert interned(b"a") is not interner(SpecCache())(b"a")


def test_cache_without_entries_is_off() -> None:
    calls = []

    @memoized
    def length(value: Object) -> int:
        calls.append(value)
        return len(value["text"])

    interned = interner(SpecCache(0))
    assert [length(interned(b"abc")) for _ in range(2)] == [3, 3]
    assert len(calls) == 2


def test_memoized_function_runs_once_per_argument(interned: Interner) -> None:
    calls = []

    @memoized
    def length(value: Object, more: int) -> int:
        calls.append(value["text"])
        return len(value["text"]) + more

    assert [length(interned(b"abc"), 1) for _ in range(3)] == [4, 4, 4]
    assert length(interned(b"abc"), 2) == 5
    assert length({"text": "abc"}, 1) == 4  # an equal value that is not interned
    assert calls == ["abc", "abc", "abc"]


def test_result_can_be_interned_too(interned: Interner) -> None:
    calls = []

    @memoized_and_interned
    def upper(value: Object) -> Object:
        return {"text": value["text"].upper()}

    @memoized
    def tagged(value: Object) -> str:
        calls.append(value["text"])
        return f"<{value['text']}>"

    assert [tagged(upper(interned(b"a"))) for _ in range(2)] == ["<A>", "<A>"]
    assert upper(interned(b"a")) is upper(interned(b"a"))
    assert calls == ["A"]


def test_long_texts_and_overflow_are_not_cached(interned: Interner) -> None:
    long = b"x" * (MAX_TEXT_BYTES + 1)
    assert interned(long) is not interned(long)
    first = interned(b"first")
    for number in range(MAX_ENTRIES):
        interned(b"%d" % number)
    assert interned(b"first") is not first


def test_results_of_all_values_are_bounded() -> None:
    @memoized_and_interned
    def tagged(value: Object, tag: int) -> Object:
        return {"text": value["text"], "tag": tag}

    interned = interner(SpecCache(2))
    first = interned(b"first")
    for number in range(RESULTS_PER_ENTRY):
        tagged(tagged(interned(b"first"), number), number)  # two results each
        assert interned(b"first") is first
    tagged(interned(b"first"), -1)
    assert interned(b"first") is not first


def test_variants_share_results_but_no_values(interned: Interner) -> None:
    calls = []

    @memoized
    def length(value: Object) -> int:
        calls.append(value["name"])
        return len(value["text"])

    @memoized_and_interned
    def upper(value: Object) -> Object:
        return {**value, "text": value["text"].upper()}

    def named(name: str) -> Object:
        result = variant(interned(b"abc"), named, name, 1)
        result["name"] = name
        return result

    assert [length(named(name)) for name in "xy"] == [3, 3]
    assert calls == ["x"]
    assert [upper(named(name))["name"] for name in "xy"] == ["x", "y"]


@pytest.mark.parametrize("text", [b"abc", b"first", b"none of them"])
def test_text_of_variant_is_its_own(interned: Interner, text: bytes) -> None:
    """Also if the random part of the first one occurs elsewhere in the object."""

    def named(name: str) -> Object:
        result = variant(interned(text), named, name, 2)
        result["name"], result["mounts"] = name, [{"name": name}]
        return result

    for name in ("first", "second", "third"):
        value = named(name)
        assert isinstance(value, Variant)
        assert variant_text(value, msgspec.json.encode) == msgspec.json.encode(dict(value))


def new_pod(name: str, **spec: Any) -> Object:
    container = {"name": "c", "image": "nginx", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": {"of": name}},
        "spec": {"containers": [container], **spec},
    }


def comparable(pod: Object) -> Object:
    """Return a pod without its individual fields."""
    individual = ("name", "uid", "resourceVersion", "creationTimestamp", "labels", "annotations", "managedFields")
    fields = [each["fieldsV1"] for each in pod["metadata"]["managedFields"]]
    return {
        **pod,
        "metadata": {key: each for key, each in pod["metadata"].items() if key not in individual},
        "fields": fields,
    }


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeName": "n", "restartPolicy": "Never"},
        {"hostNetwork": True, "tolerations": [{"operator": "Exists"}]},
        {"automountServiceAccountToken": False, "volumes": [{"name": "v"}, {"name": "c", "configMap": {"name": "m"}}]},
    ],
)
async def test_second_equal_pod_is_like_the_first(call: ServerClient, spec: Object) -> None:
    first, second = [await call.made(PODS, new_pod(name, **spec)) for name in ("one", "two")]
    assert comparable(second) == comparable(first)
    assert [pod["metadata"]["labels"]["app"] for pod in (first, second)] == ["one", "two"]


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"restartPolicy": "Sometimes"}, 422, "spec.restartPolicy: Unsupported value"),
        ({"containers": "none"}, 400, "cannot unmarshal string"),
        ({"priority": 5}, 403, "must not be provided in pod spec"),
    ],
)
async def test_errors_are_repeated_for_equal_specs(call: ServerClient, spec: Object, code: int, words: str) -> None:
    for name in ("one", "two", "two"):
        status, response = await call("POST", PODS, new_pod(name, **spec))
        assert (status, words in response["message"]) == (code, True)
        assert name in response["message"] or code == 400


async def test_warnings_are_repeated_for_equal_specs(call: ServerClient) -> None:
    for name in ("one", "two"):
        response = await call.answer("POST", PODS, new_pod(name, sppec=1, imagePullSecrets=[{"name": "s"}] * 2))
        assert isinstance(response, ApiResponse)
        assert 'unknown field \\"spec.sppec\\"' in response.headers["Warning"]
        assert "spec.imagePullSecrets[1].name" in response.headers["Warning"]


def test_bounded_cache_skips_long_texts() -> None:
    seen = []

    @bounded_cache(4)
    def length(text: str) -> int:
        seen.append(len(text))
        return len(text)

    assert [length(text) for text in ("a", "a", "b" * 300, "b" * 300)] == [1, 1, 300, 300]
    assert seen == [1, 300, 300]


async def test_repeated_specs_with_duplicate_fields_are_reported_each_time(call: ServerClient) -> None:
    for number, field in enumerate(("image", "image", "labels", "none")):
        text = msgspec.json.encode(new_pod(f"p{number}")).decode()
        if field == "image":
            text = text.replace('"image":', '"image":"first","image":')
        elif field == "labels":
            text = text.replace('"labels":', '"labels":{"a":"b"},"labels":')
        response = await call.answer("POST", PODS, text.encode())
        assert isinstance(response, ApiResponse)
        assert response.status == 201, response.body
        assert ("duplicate field" in response.headers.get("Warning", "")) == (field != "none")


async def test_collection_is_served_while_it_is_registered(call: ServerClient) -> None:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    definitions, collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/example.com/v1/widgets"
    assert (await call("GET", collection))[0] == 404
    await call.made(definitions, {"metadata": {"name": "widgets.example.com"}, "spec": spec})
    for _ in range(2):
        assert (await call("GET", collection))[0] == 200
    call.server.registry.remove("example.com", "widgets")
    assert (await call("GET", collection))[0] == 404


async def test_cache_is_cleared_when_its_server_closes(tmp_path: Path) -> None:
    cache = SpecCache()
    config = ApiServerConfig(backend="memory", file_rootpath=str(tmp_path))
    with closing(ServerThreads()) as threads:
        async with open_server(config, threads, spec_cache=cache):
            first = interner(cache)(b"a")
            assert interner(cache)(b"a") is first
    assert interner(cache)(b"a") is not first
