"""Protobuf bodies: decoding as in the samples of Kubernetes, and rejection of malformed bytes."""

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

from tapestry.apiserver.core.codec import decode_body
from tapestry.apiserver.core.protobuf import message_decoders
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object

from ..conftest import ServerClient

SAMPLES = Path(__file__).parents[3] / "golden" / "protobuf" / "kinds.json.gz"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MAPS = "/api/v1/namespaces/default/configmaps"
CRD = "apiextensions.k8s.io/v1/CustomResourceDefinition"


@cache
def samples() -> dict[str, Any]:
    """Return, by kind, the encoded bytes and the expected JSON."""
    result: dict[str, Any] = json.loads(gzip.decompress(SAMPLES.read_bytes()))["samples"]
    return result


def bytes_of(kind: str) -> bytes:
    return base64.b64decode(samples()[kind]["protobuf"])


def varint(value: int) -> bytes:
    rest, byte = divmod(value, 128)
    return bytes([byte | 128]) + varint(rest) if rest else bytes([byte])


def new_field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    return varint(number << 3 | 2) + varint(len(value)) + value


def new_body(kind: str, message: bytes) -> bytes:
    version, _, name = kind.rpartition("/")
    return b"k8s\0" + new_field(1, new_field(1, version.encode()) + new_field(2, name.encode())) + new_field(2, message)


def new_map(*fields: bytes, name: str = "a") -> bytes:
    return new_body("v1/ConfigMap", new_field(1, new_field(1, name.encode())) + b"".join(fields))


def read(kind: str, message: bytes) -> Object:
    result: Object = decode_body(new_body(kind, message), PROTOBUF)
    return result


def rejection(body: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_body(body, PROTOBUF)
    return str(caught.value)


# -- decoding


@pytest.mark.parametrize("kind", sorted(samples()))
def test_sample_decodes_to_published_json(kind: str) -> None:
    result = decode_body(bytes_of(kind), PROTOBUF)
    assert json.dumps(result, sort_keys=True) == json.dumps(samples()[kind]["json"], sort_keys=True)


def test_every_kind_but_one_has_a_sample() -> None:
    """APIService has no published sample; DeleteOptions and Status belong to every group."""
    known = {f"v1/{kind}" if "/" not in kind else kind for kind in message_decoders().kinds}
    assert known - set(samples()) == {"apiregistration.k8s.io/v1/APIService"}


def test_api_service_is_decoded_without_sample() -> None:
    spec = (
        new_field(1, new_field(1, b"ns") + new_field(2, b"svc") + new_field(3, 443))
        + new_field(2, b"g")
        + new_field(7, 15)
    )
    result = read("apiregistration.k8s.io/v1/APIService", new_field(2, spec))
    service = {"namespace": "ns", "name": "svc", "port": 443}
    assert result["spec"] == {"service": service, "group": "g", "groupPriorityMinimum": 15}


def test_zero_values_are_omitted_unless_pointers() -> None:
    metadata = new_field(
        1, new_field(1, b"d") + new_field(3, b"") + new_field(7, 0) + new_field(8, b"") + new_field(10, 0)
    )
    spec = new_field(2, new_field(1, 0) + new_field(5, 0) + new_field(4, b""))
    result = read("apps/v1/Deployment", metadata + spec)
    assert result["metadata"] == {"name": "d", "deletionGracePeriodSeconds": 0}
    assert result["spec"] == {"replicas": 0, "strategy": {}}
    container = new_field(1, b"") + new_field(2, b"")
    assert read("v1/Pod", new_field(2, new_field(2, container)))["spec"] == {"containers": [{"name": ""}]}


def test_unset_port_is_zero() -> None:
    port = new_field(3, 80) + new_field(4, new_field(1, 0) + new_field(2, 0) + new_field(3, b""))
    assert read("v1/Service", new_field(2, new_field(1, port)))["spec"]["ports"] == [{"port": 80, "targetPort": 0}]


def test_integers_have_sign_and_size_of_their_type() -> None:
    assert read("v1/Pod", new_field(2, new_field(25, -5)))["spec"] == {"priority": -5}
    assert read("v1/Pod", new_field(2, new_field(25, (1 << 32) + 5)))["spec"] == {"priority": 5}
    assert read("v1/Pod", new_field(2, new_field(4, -(1 << 63))))["spec"] == {
        "terminationGracePeriodSeconds": -(1 << 63)
    }


def test_packed_integers_are_decoded() -> None:
    repeated = new_field(4, 1) + new_field(4, 300)
    packed = new_field(4, varint(1) + varint(300))
    for groups in (repeated, packed):
        context = new_field(2, new_field(14, groups))
        assert read("v1/Pod", context)["spec"]["securityContext"] == {"supplementalGroups": [1, 300]}


def test_repeated_field_is_merged_or_replaced() -> None:
    body = new_map(
        new_field(1, new_field(1, b"b")), new_field(1, new_field(11, new_field(1, b"k") + new_field(2, b"v")))
    )
    assert decode_body(body, PROTOBUF)["metadata"] == {"name": "b", "labels": {"k": "v"}}
    assert decode_body(new_map(new_field(1, new_field(1, b""))), PROTOBUF)["metadata"] == {}


def test_map_entry_may_lack_key_or_value() -> None:
    assert decode_body(new_map(new_field(2, b"")), PROTOBUF)["data"] == {"": ""}
    assert decode_body(new_map(new_field(3, new_field(1, b"k"))), PROTOBUF)["binaryData"] == {"k": ""}


def schema(fields: bytes) -> Object:
    versions = new_field(7, new_field(1, b"v1") + new_field(4, new_field(1, fields)))
    result: Object = read(CRD, new_field(2, versions))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return result


@pytest.mark.parametrize(("number", "written"), [(7.0, "7"), (-0.5, "-0.5"), (1e300, "1e+300")])
def test_double_is_encoded_as_go_does(number: float, written: str) -> None:
    assert json.dumps(schema(varint(9 << 3 | 1) + struct.pack("<d", number))["maximum"]) == written


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_non_finite_double_is_rejected(number: float) -> None:
    with pytest.raises(BadRequest, match="not a valid JSON number"):
        schema(varint(9 << 3 | 1) + struct.pack("<d", number))


def test_schema_union_may_be_schema_list_or_boolean() -> None:
    text = new_field(5, b"string")
    assert schema(new_field(24, new_field(1, text)))["items"] == {"type": "string"}
    assert schema(new_field(24, new_field(2, text) + new_field(2, b"")))["items"] == [{"type": "string"}, {}]
    assert schema(new_field(30, new_field(1, 0)))["additionalProperties"] is False
    assert schema(new_field(30, new_field(1, 1)))["additionalProperties"] is True
    assert schema(new_field(30, new_field(1, 1) + new_field(2, text)))["additionalProperties"] == {"type": "string"}


def test_delete_options_decode_in_every_group() -> None:
    for group in ("v1", "apps/v1", "example.com/v7"):
        assert read(f"{group}/DeleteOptions", new_field(1, 0))["gracePeriodSeconds"] == 0


def test_unknown_fields_are_skipped() -> None:
    unknown = (new_field(99, b"x"), new_field(98, 7), varint(97 << 3 | 1) + bytes(8), varint(96 << 3 | 5) + bytes(4))
    assert decode_body(new_map(*unknown), PROTOBUF) == decode_body(new_map(), PROTOBUF)


# -- malformed bytes


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"garbage", "does not appear to be a protobuf message"),
        (b"k8s\0", "no kind"),
        (new_body("v1/Nonsense", b""), 'no kind "Nonsense" is registered for version "v1"'),
        (new_body("v7/ConfigMap", b""), 'no kind "ConfigMap" is registered for version "v7"'),
        (b"k8s\0" + b"\xff" * 11, "integer overflow"),
        (new_map(varint(2 << 3 | 2) + varint(1 << 62)), "unexpected EOF"),
        (new_map(varint(2 << 3 | 2)), "unexpected EOF"),
        (new_map(varint(99 << 3) + b"\x80"), "unexpected EOF"),
        (new_map(varint(99 << 3 | 1) + b"\0"), "unexpected EOF"),
        (new_map(varint(99 << 3 | 3)), "illegal tag"),
        (new_map(new_field(0, b"")), "illegal tag"),
        (new_map(new_field(2, 5)), "wrong wireType"),
        (new_map(new_field(2, new_field(1, b"\xff"))), "not UTF-8"),
        (new_map(new_field(1, new_field(8, new_field(1, 1 << 62)))), "is out of range"),
        (new_body("apps/v1/ControllerRevision", new_field(2, new_field(1, b"{"))), "JSON within the message"),
    ],
)
def test_malformed_message_is_rejected(body: bytes, why: str) -> None:
    assert why in rejection(body)


def test_truncated_body_is_rejected() -> None:
    whole = new_map(new_field(2, new_field(1, b"key") + new_field(2, b"value")))
    beginning = len(new_body("v1/ConfigMap", b"")) - 2
    assert decode_body(whole[:beginning], PROTOBUF) == {"apiVersion": "v1", "kind": "ConfigMap"}
    for length in range(beginning + 1, len(whole)):
        assert "unexpected EOF" in rejection(whole[:length])


@pytest.mark.parametrize("depth", [300, 10_000])
def test_deeply_nested_body_is_rejected(depth: int) -> None:
    deep = b""
    for _ in range(depth):
        deep = new_field(28, deep)  # `not`: a schema in a schema
    with pytest.raises(BadRequest, match="nested"):
        schema(deep)


def test_body_that_expands_too_much_is_rejected() -> None:
    assert "more than" in rejection(new_body("v1/Pod", new_field(2, new_field(2, b"") * 600_000)))


@given(st.binary(max_size=200), st.sampled_from(sorted(message_decoders().kinds)))
def test_random_message_causes_no_failure(message: bytes, kind: str) -> None:
    body = new_body(kind if "/" in kind else f"v1/{kind}", message)
    assert_decoded_or_rejected(body)


@given(st.binary(max_size=100))
def test_random_envelope_causes_no_failure(envelope: bytes) -> None:
    assert_decoded_or_rejected(b"k8s\0" + envelope)


@given(st.data())
def test_damaged_sample_causes_no_failure(data: st.DataObject) -> None:
    body = bytearray(bytes_of(data.draw(st.sampled_from(sorted(samples())))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert_decoded_or_rejected(bytes(body))


def assert_decoded_or_rejected(body: bytes) -> None:
    """Decode to valid JSON, or raise BadRequest."""
    try:
        result = decode_body(body, PROTOBUF)
    except BadRequest:
        return
    json.dumps(result, allow_nan=False)


# -- requests


async def test_objects_are_created_replaced_and_deleted(call: ServerClient) -> None:
    data = new_field(2, new_field(1, b"k") + new_field(2, b"v"))
    status, created = await call("POST", MAPS, new_map(data), kind=PROTOBUF)
    assert (status, created["data"], created["metadata"]["name"]) == (201, {"k": "v"}, "a")
    status, replaced = await call("PUT", f"{MAPS}/a", new_map(), kind=PROTOBUF)
    assert (status, replaced.get("data")) == (200, None)
    other_uid = new_body("v1/DeleteOptions", new_field(2, new_field(1, b"another")))
    assert (await call("DELETE", f"{MAPS}/a", other_uid, kind=PROTOBUF))[0] == 409
    options = new_body("apps/v1/DeleteOptions", b"")
    assert (await call("DELETE", f"{MAPS}/a", options, kind=PROTOBUF))[0] == 200


async def test_reviews_are_answered(call: ServerClient) -> None:
    attributes = new_field(3, b"get") + new_field(6, b"pods")
    review = new_body("authorization.k8s.io/v1/SelfSubjectAccessReview", new_field(2, new_field(1, attributes)))
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    status, result = await call("POST", path, review, kind=PROTOBUF)
    assert (status, result["status"]["allowed"]) == (201, True)


async def test_service_port_gets_defaults_despite_zero(call: ServerClient) -> None:
    port = new_field(3, 80) + new_field(4, new_field(1, 0) + new_field(2, 0) + new_field(3, b""))
    service = new_body("v1/Service", new_field(1, new_field(1, b"s")) + new_field(2, new_field(1, port)))
    status, result = await call("POST", "/api/v1/namespaces/default/services", service, kind=PROTOBUF)
    assert (status, result["spec"]["ports"]) == (201, [{"port": 80, "targetPort": 80, "protocol": "TCP"}])


async def test_other_or_unknown_kind_is_rejected(call: ServerClient) -> None:
    for kind in ("v1/Secret", "v1/Nonsense", "example.com/v1/Widget"):
        status, result = await call("POST", MAPS, new_body(kind, b""), kind=PROTOBUF)
        assert (status, result["reason"]) == (400, "BadRequest")


async def test_protobuf_patch_is_unsupported(call: ServerClient) -> None:
    await call.made(MAPS, {"metadata": {"name": "a"}})
    status, result = await call("PATCH", f"{MAPS}/a", new_map(), kind=PROTOBUF)
    assert (status, result["reason"]) == (415, "UnsupportedMediaType")
