"""Parts that come again: looked at once, never mixed up, and forgotten in time."""

from typing import Any

import pytest

from tapestry.apiserver import spec_cache
from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.spec_cache import bounded_cache, intern, memoized, memoized_and_interned
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    spec_cache.clear_cache()


def part(text: bytes, place: str = "here") -> Object:
    found, _ = intern(text, place, lambda: ({"text": text.decode()}, ()))
    return found


def test_a_text_is_the_same_part_whenever_it_comes_to_the_same_place() -> None:
    assert part(b"a") is part(b"a")
    assert part(b"a") is not part(b"b")
    assert part(b"a") is not part(b"a", "elsewhere")


def test_a_question_about_a_part_is_asked_once() -> None:
    asked = []

    @memoized
    def length(value: Object, more: int) -> int:
        asked.append(value["text"])
        return len(value["text"]) + more

    assert [length(part(b"abc"), 1) for _ in range(3)] == [4, 4, 4]
    assert length(part(b"abc"), 2) == 5
    assert length({"text": "abc"}, 1) == 4  # the same, but nobody knows it
    assert asked == ["abc", "abc", "abc"]


def test_what_is_made_of_a_part_is_a_part() -> None:
    asked = []

    @memoized_and_interned
    def louder(value: Object) -> Object:
        return {"text": value["text"].upper()}

    @memoized
    def shown(value: Object) -> str:
        asked.append(value["text"])
        return f"<{value['text']}>"

    assert [shown(louder(part(b"a"))) for _ in range(2)] == ["<A>", "<A>"]
    assert louder(part(b"a")) is louder(part(b"a"))
    assert asked == ["A"]


def test_what_is_long_is_not_kept_nor_more_than_there_is_room_for() -> None:
    long = b"x" * (spec_cache.MAX_TEXT_BYTES + 1)
    assert part(long) is not part(long)
    first = part(b"first")
    for number in range(spec_cache.MAX_ENTRIES):
        part(b"%d" % number)
    assert part(b"first") is not first


def a_pod(name: str, **spec: Any) -> Object:
    container = {"name": "c", "image": "nginx", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": {"of": name}},
        "spec": {"containers": [container], **spec},
    }


def alike(pod: Object) -> Object:
    """A pod without what is its own."""
    own = ("name", "uid", "resourceVersion", "creationTimestamp", "labels", "annotations", "managedFields")
    fields = [each["fieldsV1"] for each in pod["metadata"]["managedFields"]]
    return {**pod, "metadata": {key: each for key, each in pod["metadata"].items() if key not in own}, "fields": fields}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeName": "n", "restartPolicy": "Never"},
        {"hostNetwork": True, "tolerations": [{"operator": "Exists"}]},
        {"automountServiceAccountToken": False, "volumes": [{"name": "v"}, {"name": "c", "configMap": {"name": "m"}}]},
    ],
)
async def test_the_second_of_two_like_pods_is_as_the_first(call: Hand, spec: Object) -> None:
    first, second = [await call.made(PODS, a_pod(name, **spec)) for name in ("one", "two")]
    assert alike(second) == alike(first)
    assert [pod["metadata"]["labels"]["app"] for pod in (first, second)] == ["one", "two"]


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"restartPolicy": "Sometimes"}, 422, "spec.restartPolicy: Unsupported value"),
        ({"containers": "none"}, 400, "cannot unmarshal string"),
        ({"priority": 5}, 403, "must not be provided in pod spec"),
    ],
)
async def test_what_is_wrong_is_wrong_each_time(call: Hand, spec: Object, code: int, words: str) -> None:
    for name in ("one", "two", "two"):
        status, answer = await call("POST", PODS, a_pod(name, **spec))
        assert (status, words in answer["message"]) == (code, True)
        assert name in answer["message"] or code == 400


async def test_a_warning_is_given_each_time(call: Hand) -> None:
    for name in ("one", "two"):
        answer = await call.answer("POST", PODS, a_pod(name, sppec=1, imagePullSecrets=[{"name": "s"}] * 2))
        assert isinstance(answer, ApiResponse)
        assert 'unknown field \\"spec.sppec\\"' in answer.headers["Warning"]
        assert "spec.imagePullSecrets[1].name" in answer.headers["Warning"]


def test_caches_do_not_keep_long_texts() -> None:
    seen = []

    @bounded_cache(4)
    def length(text: str) -> int:
        seen.append(len(text))
        return len(text)

    assert [length(text) for text in ("a", "a", "b" * 300, "b" * 300)] == [1, 1, 300, 300]
    assert seen == [1, 300, 300]
