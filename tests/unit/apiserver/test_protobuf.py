"""Protobuf bodies: what they mean, to the letter of Kubernetes' own samples; and that no bytes do harm."""

import base64
import gzip
import json
import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.codec import PROTOBUF, decode_body
from tapestry.apiserver.protobuf import message_decoders
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

from .conftest import Hand

SAMPLES = Path(__file__).parents[2] / "golden" / "protobuf" / "kinds.json.gz"
MAPS = "/api/v1/namespaces/default/configmaps"
CRD = "apiextensions.k8s.io/v1/CustomResourceDefinition"


@cache
def samples() -> dict[str, Any]:
    """By kind: the bytes, and the JSON that Kubernetes says they mean."""
    found: dict[str, Any] = json.loads(gzip.decompress(SAMPLES.read_bytes()))["samples"]
    return found


def bytes_of(kind: str) -> bytes:
    return base64.b64decode(samples()[kind]["protobuf"])


def varint(value: int) -> bytes:
    rest, byte = divmod(value, 128)
    return bytes([byte | 128]) + varint(rest) if rest else bytes([byte])


def a_field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    return varint(number << 3 | 2) + varint(len(value)) + value


def a_body(kind: str, message: bytes) -> bytes:
    version, _, name = kind.rpartition("/")
    return b"k8s\0" + a_field(1, a_field(1, version.encode()) + a_field(2, name.encode())) + a_field(2, message)


def a_map(*fields: bytes, name: str = "a") -> bytes:
    return a_body("v1/ConfigMap", a_field(1, a_field(1, name.encode())) + b"".join(fields))


def read(kind: str, message: bytes) -> Object:
    found: Object = decode_body(a_body(kind, message), PROTOBUF)
    return found


def refusal(body: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_body(body, PROTOBUF)
    return str(caught.value)


# -- meaning


@pytest.mark.parametrize("kind", sorted(samples()))
def test_a_sample_means_what_kubernetes_says_it_does(kind: str) -> None:
    found = decode_body(bytes_of(kind), PROTOBUF)
    assert json.dumps(found, sort_keys=True) == json.dumps(samples()[kind]["json"], sort_keys=True)


def test_there_is_a_sample_of_every_kind_but_one() -> None:
    """Kubernetes publishes none of an APIService; options of deletions and Status are of every group."""
    known = {f"v1/{kind}" if "/" not in kind else kind for kind in message_decoders().kinds}
    assert known - set(samples()) == {"apiregistration.k8s.io/v1/APIService"}


def test_an_api_service_can_be_read_without_a_sample() -> None:
    spec = a_field(1, a_field(1, b"ns") + a_field(2, b"svc") + a_field(3, 443)) + a_field(2, b"g") + a_field(7, 15)
    found = read("apiregistration.k8s.io/v1/APIService", a_field(2, spec))
    service = {"namespace": "ns", "name": "svc", "port": 443}
    assert found["spec"] == {"service": service, "group": "g", "groupPriorityMinimum": 15}


def test_zeroes_are_left_out_where_json_leaves_them_out_and_kept_where_a_pointer_says_them() -> None:
    metadata = a_field(1, a_field(1, b"d") + a_field(3, b"") + a_field(7, 0) + a_field(8, b"") + a_field(10, 0))
    spec = a_field(2, a_field(1, 0) + a_field(5, 0) + a_field(4, b""))
    found = read("apps/v1/Deployment", metadata + spec)
    assert found["metadata"] == {"name": "d", "deletionGracePeriodSeconds": 0}
    assert found["spec"] == {"replicas": 0, "strategy": {}}
    container = a_field(1, b"") + a_field(2, b"")
    assert read("v1/Pod", a_field(2, a_field(2, container)))["spec"] == {"containers": [{"name": ""}]}


def test_a_port_that_was_not_set_is_the_number_zero() -> None:
    port = a_field(3, 80) + a_field(4, a_field(1, 0) + a_field(2, 0) + a_field(3, b""))
    assert read("v1/Service", a_field(2, a_field(1, port)))["spec"]["ports"] == [{"port": 80, "targetPort": 0}]


def test_numbers_have_the_sign_and_the_size_of_their_type() -> None:
    assert read("v1/Pod", a_field(2, a_field(25, -5)))["spec"] == {"priority": -5}
    assert read("v1/Pod", a_field(2, a_field(25, (1 << 32) + 5)))["spec"] == {"priority": 5}
    assert read("v1/Pod", a_field(2, a_field(4, -(1 << 63))))["spec"] == {"terminationGracePeriodSeconds": -(1 << 63)}


def test_numbers_may_come_packed() -> None:
    apart = a_field(4, 1) + a_field(4, 300)
    packed = a_field(4, varint(1) + varint(300))
    for groups in (apart, packed):
        context = a_field(2, a_field(14, groups))
        assert read("v1/Pod", context)["spec"]["securityContext"] == {"supplementalGroups": [1, 300]}


def test_what_comes_twice_is_merged_or_replaces_what_came_first() -> None:
    body = a_map(a_field(1, a_field(1, b"b")), a_field(1, a_field(11, a_field(1, b"k") + a_field(2, b"v"))))
    assert decode_body(body, PROTOBUF)["metadata"] == {"name": "b", "labels": {"k": "v"}}
    assert decode_body(a_map(a_field(1, a_field(1, b""))), PROTOBUF)["metadata"] == {}


def test_an_entry_of_a_map_may_lack_its_key_or_its_value() -> None:
    assert decode_body(a_map(a_field(2, b"")), PROTOBUF)["data"] == {"": ""}
    assert decode_body(a_map(a_field(3, a_field(1, b"k"))), PROTOBUF)["binaryData"] == {"k": ""}


def schema(fields: bytes) -> Object:
    versions = a_field(7, a_field(1, b"v1") + a_field(4, a_field(1, fields)))
    found: Object = read(CRD, a_field(2, versions))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize(("number", "written"), [(7.0, "7"), (-0.5, "-0.5"), (1e300, "1e+300")])
def test_a_number_is_written_as_go_writes_it(number: float, written: str) -> None:
    assert json.dumps(schema(varint(9 << 3 | 1) + struct.pack("<d", number))["maximum"]) == written


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_number_that_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(BadRequest, match="no number that JSON has"):
        schema(varint(9 << 3 | 1) + struct.pack("<d", number))


def test_a_schema_may_be_a_schema_a_list_or_a_truth() -> None:
    text = a_field(5, b"string")
    assert schema(a_field(24, a_field(1, text)))["items"] == {"type": "string"}
    assert schema(a_field(24, a_field(2, text) + a_field(2, b"")))["items"] == [{"type": "string"}, {}]
    assert schema(a_field(30, a_field(1, 0)))["additionalProperties"] is False
    assert schema(a_field(30, a_field(1, 1)))["additionalProperties"] is True
    assert schema(a_field(30, a_field(1, 1) + a_field(2, text)))["additionalProperties"] == {"type": "string"}


def test_options_of_deletions_are_the_same_in_every_group() -> None:
    for group in ("v1", "apps/v1", "example.com/v7"):
        assert read(f"{group}/DeleteOptions", a_field(1, 0))["gracePeriodSeconds"] == 0


def test_fields_that_are_not_known_are_passed_over() -> None:
    unknown = (a_field(99, b"x"), a_field(98, 7), varint(97 << 3 | 1) + bytes(8), varint(96 << 3 | 5) + bytes(4))
    assert decode_body(a_map(*unknown), PROTOBUF) == decode_body(a_map(), PROTOBUF)


# -- bytes that mean nothing


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"garbage", "does not appear to be a protobuf message"),
        (b"k8s\0", "no kind"),
        (a_body("v1/Nonsense", b""), 'no kind "Nonsense" is registered for version "v1"'),
        (a_body("v7/ConfigMap", b""), 'no kind "ConfigMap" is registered for version "v7"'),
        (b"k8s\0" + b"\xff" * 11, "integer overflow"),
        (a_map(varint(2 << 3 | 2) + varint(1 << 62)), "unexpected EOF"),
        (a_map(varint(2 << 3 | 2)), "unexpected EOF"),
        (a_map(varint(99 << 3) + b"\x80"), "unexpected EOF"),
        (a_map(varint(99 << 3 | 1) + b"\0"), "unexpected EOF"),
        (a_map(varint(99 << 3 | 3)), "illegal tag"),
        (a_map(a_field(0, b"")), "illegal tag"),
        (a_map(a_field(2, 5)), "wrong wireType"),
        (a_map(a_field(2, a_field(1, b"\xff"))), "not UTF-8"),
        (a_map(a_field(1, a_field(8, a_field(1, 1 << 62)))), "not in this calendar"),
        (a_body("apps/v1/ControllerRevision", a_field(2, a_field(1, b"{"))), "JSON within the message"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, why: str) -> None:
    assert why in refusal(body)


def test_a_body_cut_short_is_refused_wherever_it_is_cut() -> None:
    whole = a_map(a_field(2, a_field(1, b"key") + a_field(2, b"value")))
    beginning = len(a_body("v1/ConfigMap", b"")) - 2
    assert decode_body(whole[:beginning], PROTOBUF) == {"apiVersion": "v1", "kind": "ConfigMap"}
    for length in range(beginning + 1, len(whole)):
        assert "unexpected EOF" in refusal(whole[:length])


@pytest.mark.parametrize("depth", [300, 10_000])
def test_a_body_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    deep = b""
    for _ in range(depth):
        deep = a_field(28, deep)  # `not`: a schema in a schema
    with pytest.raises(BadRequest, match="nested"):
        schema(deep)


def test_a_body_that_is_larger_than_it_looks_is_refused() -> None:
    assert "more than" in refusal(a_body("v1/Pod", a_field(2, a_field(2, b"") * 600_000)))


@given(st.binary(max_size=200), st.sampled_from(sorted(message_decoders().kinds)))
def test_no_message_does_harm(message: bytes, kind: str) -> None:
    body = a_body(kind if "/" in kind else f"v1/{kind}", message)
    assert_harmless(body)


@given(st.binary(max_size=100))
def test_no_envelope_does_harm(envelope: bytes) -> None:
    assert_harmless(b"k8s\0" + envelope)


@given(st.data())
def test_no_damaged_sample_does_harm(data: st.DataObject) -> None:
    body = bytearray(bytes_of(data.draw(st.sampled_from(sorted(samples())))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert_harmless(bytes(body))


def assert_harmless(body: bytes) -> None:
    """It is an object that JSON can say, or it is refused."""
    try:
        found = decode_body(body, PROTOBUF)
    except BadRequest:
        return
    json.dumps(found, allow_nan=False)


# -- at the server


async def test_objects_are_created_replaced_and_deleted(call: Hand) -> None:
    data = a_field(2, a_field(1, b"k") + a_field(2, b"v"))
    status, made = await call("POST", MAPS, a_map(data), kind=PROTOBUF)
    assert (status, made["data"], made["metadata"]["name"]) == (201, {"k": "v"}, "a")
    status, replaced = await call("PUT", f"{MAPS}/a", a_map(), kind=PROTOBUF)
    assert (status, replaced.get("data")) == (200, None)
    stranger = a_body("v1/DeleteOptions", a_field(2, a_field(1, b"another")))
    assert (await call("DELETE", f"{MAPS}/a", stranger, kind=PROTOBUF))[0] == 409
    options = a_body("apps/v1/DeleteOptions", b"")
    assert (await call("DELETE", f"{MAPS}/a", options, kind=PROTOBUF))[0] == 200


async def test_reviews_are_answered(call: Hand) -> None:
    wanted = a_field(3, b"get") + a_field(6, b"pods")
    review = a_body("authorization.k8s.io/v1/SelfSubjectAccessReview", a_field(2, a_field(1, wanted)))
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    status, found = await call("POST", path, review, kind=PROTOBUF)
    assert (status, found["status"]["allowed"]) == (201, True)


async def test_the_ports_of_a_service_get_their_defaults_though_go_says_zero(call: Hand) -> None:
    port = a_field(3, 80) + a_field(4, a_field(1, 0) + a_field(2, 0) + a_field(3, b""))
    service = a_body("v1/Service", a_field(1, a_field(1, b"s")) + a_field(2, a_field(1, port)))
    status, found = await call("POST", "/api/v1/namespaces/default/services", service, kind=PROTOBUF)
    assert (status, found["spec"]["ports"]) == (201, [{"port": 80, "targetPort": 80, "protocol": "TCP"}])


async def test_another_kind_and_one_that_nobody_knows_are_refused(call: Hand) -> None:
    for kind in ("v1/Secret", "v1/Nonsense", "example.com/v1/Widget"):
        status, found = await call("POST", MAPS, a_body(kind, b""), kind=PROTOBUF)
        assert (status, found["reason"]) == (400, "BadRequest")


async def test_a_patch_is_never_protobuf(call: Hand) -> None:
    await call.made(MAPS, {"metadata": {"name": "a"}})
    status, found = await call("PATCH", f"{MAPS}/a", a_map(), kind=PROTOBUF)
    assert (status, found["reason"]) == (415, "UnsupportedMediaType")
