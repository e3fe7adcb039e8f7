"""Interning and memoization of object parts."""

from typing import Any

import pytest

from tapestry.apiserver.core import spec_cache
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.spec_cache import bounded_cache, intern, memoized, memoized_and_interned
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    spec_cache.clear_cache()


def interned(text: bytes, scope: str = "here") -> Object:
    result, _ = intern(text, scope, lambda: ({"text": text.decode()}, ()))
    return result


def test_equal_text_in_same_scope_is_same_value() -> None:
    assert interned(b"a") is interned(b"a")
    assert interned(b"a") is not interned(b"b")
    assert interned(b"a") is not interned(b"a", "elsewhere")


def test_memoized_function_runs_once_per_argument() -> None:
    calls = []

    @memoized
    def length(value: Object, more: int) -> int:
        calls.append(value["text"])
        return len(value["text"]) + more

    assert [length(interned(b"abc"), 1) for _ in range(3)] == [4, 4, 4]
    assert length(interned(b"abc"), 2) == 5
    assert length({"text": "abc"}, 1) == 4  # an equal value that is not interned
    assert calls == ["abc", "abc", "abc"]


def test_result_can_be_interned_too() -> None:
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


def test_long_texts_and_overflow_are_not_cached() -> None:
    long = b"x" * (spec_cache.MAX_TEXT_BYTES + 1)
    assert interned(long) is not interned(long)
    first = interned(b"first")
    for number in range(spec_cache.MAX_ENTRIES):
        interned(b"%d" % number)
    assert interned(b"first") is not first


def a_pod(name: str, **spec: Any) -> Object:
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
async def test_second_equal_pod_is_like_the_first(call: Hand, spec: Object) -> None:
    first, second = [await call.made(PODS, a_pod(name, **spec)) for name in ("one", "two")]
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
async def test_errors_are_repeated_for_equal_specs(call: Hand, spec: Object, code: int, words: str) -> None:
    for name in ("one", "two", "two"):
        status, response = await call("POST", PODS, a_pod(name, **spec))
        assert (status, words in response["message"]) == (code, True)
        assert name in response["message"] or code == 400


async def test_warnings_are_repeated_for_equal_specs(call: Hand) -> None:
    for name in ("one", "two"):
        response = await call.answer("POST", PODS, a_pod(name, sppec=1, imagePullSecrets=[{"name": "s"}] * 2))
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
