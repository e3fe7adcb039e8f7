"""YAML and JSON bodies that are slow to decode or expand: each is rejected or decoded in time."""

import asyncio
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.codec import MAX_BODY_BYTES, MAX_COLLECTIONS, decode_body
from tapestry.apiserver.core.workers import RequestBudget, Worker
from tapestry.apiserver.core.yaml_decoder import MAX_DUPLICATE_KEYS, YamlError, parse_document
from tapestry.kube.budget import CURRENT_BUDGET
from tapestry.kube.errors import BadRequest

from ..conftest import ServerClient

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAPS = "/api/v1/namespaces/default/configmaps"
YAML, APPLY = "application/yaml", "application/apply-patch+yaml"


def merges(levels: int, width: int = 9) -> bytes:
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, levels):
        before = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} {{<<: [{before}]}}")
    return "\n".join(lines).encode()


def aliases(levels: int, width: int = 9) -> bytes:
    lines = ["a0: &a0 [x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines).encode()


BOMBS = {
    "merge keys": merges(12),
    "aliases": aliases(12),
    "one list often": b"a: &a [" + b"x," * 1000 + b"]\nb: [" + b"*a," * 50_000 + b"]",
    "one text often": b"a: &a " + b"x" * 1_000_000 + b"\nb: [" + b"*a," * 1000 + b"]",
    "itself": b"a: &a [*a]",
    "deep lists": b"[" * 100_000,
    "deep mappings": b"".join(b"%ba:\n" % (b" " * at) for at in range(1000)),
    "directives": b"".join(b"%%TAG !a%d! x\n" % at for at in range(150_000)) + b"--- a\n",
    "directives behind": b"a: b\n...\n" + b"".join(b"%%TAG !a%d! x\n" % at for at in range(150_000)) + b"--- a\n",
    "directives in UTF-16": "".join(f"%TAG !a{at}! x\n" for at in range(70_000)).encode("utf-16"),
    "directives after a line separator": ("a: b\n...\u2028" + "%TAG !a! x\u2028" * 100_000).encode(),
    "many values": b"[" + b"a," * 1_400_000 + b"]",
    "many keys": b"".join(b"%d: a\n" % at for at in range(250_000)),
    "long integer": b"a: " + b"9" * 1_000_000,
    "long float": b"a: 1." + b"9" * 1_000_000,
    "large float": b"a: 1e999",
    "not a number": b"a: .nan",
    "infinity": b"a: -.inf",
    "objects": b"a: !!python/object/apply:os.system [id]",
    "sets": b"!!set {a, b}",
    "two documents": b"a: b\n---\nc: d\n",
    "a list as a key": b"[a]: b",
    "nothing as a key": b"? \n: b",
    "no anchor": b"a: *b",
    "a merge of a text": b"<<: a",
    "no UTF-8": b"a: \xff",
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bomb_is_rejected_early(name: str) -> None:
    started = time.process_time()
    with pytest.raises(YamlError):
        parse_document(BOMBS[name])
    assert time.process_time() - started < 5  # hours, or all memory, without limits


def test_sexagesimals_and_dates_are_strings() -> None:
    result = parse_document(b"a: " + b":".join([b"1"] * 240_000) + b"\nb: 12:30:45\nc: 2001-12-14\nd: 1:30.5").value
    assert len(result["a"]) == 479_999
    assert (result["b"], result["c"], result["d"]) == ("12:30:45", "2001-12-14", "1:30.5")


def test_scalars_are_decoded_as_in_kubernetes() -> None:
    text = b"""
texts: [a, "1", 'true', !!str 5, "", 1.2.3, 1_x, "~", .x, +x, 1:30]
numbers: [1, -1, +7, 0x1F, 0b11, 0o17, 017, 1_000, 0, 1.5, -.5, 1e3, 6.02E+2, 18446744073709551615, 1.]
others: [true, yes, On, false, NO, off, null, ~, {}, []]
empty:
1: integer
true: boolean
1.5: float
"""
    result = parse_document(text).value
    assert result["texts"] == ["a", "1", "true", "5", "", "1.2.3", "1_x", "~", ".x", "+x", "1:30"]
    assert result["numbers"] == [1, -1, 7, 31, 3, 15, 15, 1000, 0, 1.5, -0.5, 1000.0, 602.0, 2**64 - 1, 1.0]
    assert result["others"] == [True, True, True, False, False, False, None, None, {}, []]
    assert {key: result[key] for key in ("1", "true", "1.5")} == {"1": "integer", "true": "boolean", "1.5": "float"}
    assert result["empty"] is None


def test_anchors_and_merge_keys_are_resolved() -> None:
    text = b"""
base: &base {image: a, tag: b}
one: {<<: *base, tag: c}
two:
  <<: [{tag: first}, *base]
  name: d
same: *base
"""
    result = parse_document(text).value
    assert result["one"] == {"image": "a", "tag": "c"}
    assert result["two"] == {"image": "a", "tag": "first", "name": "d"}
    assert result["same"] == result["base"] == {"image": "a", "tag": "b"}


def test_duplicate_keys_are_reported_up_to_limit() -> None:
    assert parse_document(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3").duplicate_keys == (
        'line 4: key "c" already set in map',
        'line 5: key "a" already set in map',
    )
    assert len(parse_document(b"a: 1\n" * 1000).duplicate_keys) == MAX_DUPLICATE_KEYS


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Co", "Cn")), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdefxyz", min_size=1, max_size=8), inner),
    max_leaves=20,
)  # fmt: skip


class QuotedStrings(yaml.SafeDumper):
    """PyYAML leaves strings such as 0E0 plain, which are numbers in Go's YAML and in ours."""


QuotedStrings.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@given(PLAIN)
def test_json_values_round_trip(value: Any) -> None:
    assert parse_document(yaml.dump(value, Dumper=QuotedStrings, allow_unicode=True).encode()).value == value


# -- JSON


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 250 + b"]" * 250,
        b'{"a":' * 250 + b"1" + b"}" * 250,
        b"[" + b"[]," * (MAX_COLLECTIONS + 1) + b"[]]",
        b"[" + b"{}," * 700_000 + b"{}]",
        b'"' + b'\\"' * 500_000 + b"[" * (MAX_COLLECTIONS + 1),
    ],
)
def test_oversized_json_is_rejected_quickly(body: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BadRequest):
        decode_body(body, "application/json")
    assert time.process_time() - started < 2


def test_brackets_within_strings_are_not_counted() -> None:
    body = b'{"a":"%b"}' % (b'[{\\"' * (MAX_COLLECTIONS // 2 + 1))
    assert decode_body(body, "application/json")["a"].count("[") == MAX_COLLECTIONS // 2 + 1


# -- requests


@pytest.mark.parametrize("kind", [YAML, APPLY])
async def test_other_requests_run_while_yaml_decodes(call: ServerClient, kind: str) -> None:
    lines = b"".join(b"  k%d: v\n" % at for at in range(90_000))
    head = b"apiVersion: v1\nkind: Other\nmetadata: {name: a}\ndata:\n"
    method, path = ("POST", MAPS) if kind == YAML else ("PATCH", f"{MAPS}/a")
    answered, worker = 0, Worker()
    CURRENT_BUDGET.set(RequestBudget(worker, "admin"))
    async with asyncio.TaskGroup() as group:
        decoding = group.create_task(call(method, path, head + lines, kind=kind, fieldManager="m"))
        while not decoding.done():
            assert (await call("GET", "/version"))[0] == 200
            answered += 1
            await asyncio.sleep(0)
    worker.close()
    assert decoding.result()[0] == 400
    assert answered > 20


async def test_bomb_without_rights_is_rejected_quickly(call: ServerClient) -> None:
    for name in ("merge keys", "aliases", "many values"):
        started = time.process_time()
        status, _ = await call("POST", REVIEWS, BOMBS[name], kind=YAML)
        assert status == 400
        assert time.process_time() - started < 5


async def test_duplicate_json_fields_are_reported_up_to_limit(call: ServerClient) -> None:
    body = b'{"metadata":{"name":"m"},"data":{%b"z":"z"}}' % (b'"a":"b",' * (MAX_BODY_BYTES // 10))
    response: Any = await call.answer("POST", MAPS, body)
    assert (response.status, response.headers["Warning"]) == (201, '299 - "duplicate field \\"data.a\\""')
    unknown = b",".join(b'"x%d":1' % at for at in range(5000))
    status, result = await call("POST", MAPS, b'{"metadata":{"name":"n"},%b}' % unknown, fieldValidation="Strict")
    assert (status, result["message"].count("unknown field")) == (400, 100)
