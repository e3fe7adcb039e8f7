"""Linear time of work that depends on the size of a request.

Most of these cases took longer than the limit, some of them minutes, when items were compared pairwise.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from tapestry.apiserver.access.rbac import PolicyRule, uncovered_rules
from tapestry.apiserver.core.faults import first_faults
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.store import Key, ObjectVersion
from tapestry.apiserver.core.type_decoders import DecodeReport, array_decoder, decode_any, map_decoder
from tapestry.apiserver.customresources.structural_schema import PatternBudget, compile_schema, pattern_matches
from tapestry.apiserver.fieldmanager.fieldsets import union_all
from tapestry.apiserver.fieldmanager.managed_fields import ManagedFieldsEntry, Manager, cap_update_managers
from tapestry.apiserver.fieldmanager.merge_schemas import merged_order
from tapestry.apiserver.handlers.selections import selection_of
from tapestry.apiserver.warnings.pods import path_collisions, port_warnings
from tapestry.kube.budget import CURRENT_BUDGET, Budget, BudgetExceeded
from tapestry.kube.patches import apply_json_patch
from tapestry.kube.resources import CONFIGMAPS
from tapestry.kube.selectors import Operator, label_selector, parse_label_selector, requirement
from tapestry.kube.strategic_merge import PatchSchemas, apply_strategic_merge_patch

MAX_CPU_SECONDS = 2.0
INFO = ResourceInfo(CONFIGMAPS, "configmap", (), storage="configmaps")


@contextmanager
def assert_fast() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < MAX_CPU_SECONDS


@pytest.fixture
def budget() -> Iterator[Budget]:
    budget = Budget(lambda: False)
    token = CURRENT_BUDGET.set(budget)
    yield budget
    CURRENT_BUDGET.reset(token)


# -- patches


def test_json_patch_copies_each_container_once() -> None:
    document = {"data": {f"k{n}": "v" for n in range(100_000)}, "list": list(range(100_000))}
    patch = [{"op": "add", "path": f"/data/n{n}", "value": n} for n in range(5_000)]
    patch += [{"op": "replace", "path": f"/list/{n}", "value": 0} for n in range(5_000)]
    with assert_fast():
        patched = apply_json_patch(document, patch)
    assert len(patched["data"]) == 105_000
    assert len(document["data"]) == 100_000
    assert document["list"][1] == 1


def test_copied_values_are_independent_of_source() -> None:
    patch = [
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/a/y", "value": 2},
        {"op": "move", "from": "/b", "path": "/c"},
        {"op": "add", "path": "/c/z", "value": 3},
    ]
    assert apply_json_patch({"a": {}}, patch) == {"a": {"x": 1, "y": 2}, "c": {"x": 1, "z": 3}}


def test_repeated_strategic_merges_exceed_budget(budget: Budget) -> None:
    fields = {"name": {"type": "string"}, "limits": {"type": "object", "additionalProperties": {"type": "string"}}}
    items = {
        "type": "array",
        "items": {"type": "object", "properties": fields},
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "name",
    }
    schema = PatchSchemas({"T": {"properties": {"list": items}}}).of("T")
    live = {"list": [{"name": "a", "limits": {f"k{n}": "1" for n in range(20_000)}}]}
    patch = {"list": [{"name": "a", "limits": {"x": str(n)}} for n in range(20_000)]}
    with pytest.raises(BudgetExceeded):
        apply_strategic_merge_patch(live, patch, schema)


# -- pods


def test_port_warnings_take_linear_time() -> None:
    ports = [(f"p[{n}]", {"containerPort": 80, "protocol": "TCP", "hostPort": n + 1}) for n in range(30_000)]
    with assert_fast():
        assert list(port_warnings(ports)) == []
    equal = [(f"p[{n}]", {"containerPort": 80, "protocol": "TCP"}) for n in range(30_000)]
    with assert_fast():
        assert len(list(islice(port_warnings(equal), 200))) == 200


def test_path_collisions_take_linear_time() -> None:
    with assert_fast():
        assert list(path_collisions([(f"{n}/file", "") for n in range(20_000)])) == []
    paths = [("a/b", ""), ("c", ""), ("a", "S"), ("a/b/c", ""), ("a/b", "")]
    assert list(path_collisions(paths)) == [
        '"a" (S) with "a/b"',
        '"a/b/c" with "a/b"',
        '"a/b/c" with "a" (S)',
        '"a/b" with "a/b"',
        '"a/b" with "a" (S)',
        '"a/b" with "a/b/c"',
    ]


# -- permissions


def test_uncovered_rules_are_not_expanded() -> None:
    names = [tuple(f"{kind}{n}" for n in range(60)) for kind in "vgr"]
    granted = [PolicyRule(("get", f"v{n}"), ("*",), (f"r{n}",)) for n in range(40)]
    with assert_fast():
        assert len(uncovered_rules([PolicyRule(*names, tuple("abcde"))], granted, 1_000)) == 1_000
        assert uncovered_rules([PolicyRule(*names, tuple("abcde"))], [PolicyRule(("*",), ("*",), ("*",))]) == []


# -- managed fields


def test_many_field_managers_are_merged() -> None:
    managed = {}
    for n in range(20_000):
        manager = Manager(f"m{n}", "Update", "v1")
        managed[manager] = ManagedFieldsEntry(manager, {"f:data": {f"f:k{n}": {}}}, f"2024-01-01T00:00:{n:06}")
    with assert_fast():
        capped = cap_update_managers(managed)
    assert len(capped) == 10
    assert len(union_all(each.fields for each in capped.values())["f:data"]) == 20_000


def test_long_lists_merge_in_linear_time() -> None:
    steps = [f"k{n}" for n in range(200_000)]
    with assert_fast():
        assert [step for step, _ in merged_order(steps, steps)] == steps


# -- custom resources


def test_duplicates_in_set_take_linear_time() -> None:
    node = compile_schema({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"})
    with assert_fast():
        assert list(node.faults([f"s{n}" for n in range(50_000)], "spec")) == []
    [fault] = node.faults(["a", "b", "a"], "spec")
    assert str(fault) == 'spec[2]: Duplicate value: "a"'


def test_large_enum_takes_constant_time_per_value() -> None:
    node = compile_schema({"type": "array", "items": {"type": "string", "enum": [f"v{n}" for n in range(10_000)]}})
    with assert_fast():
        assert first_faults(node.faults(["v9999"] * 100_000, "spec")) == []


def test_patterns_of_object_share_budget() -> None:
    budget = PatternBudget()
    assert pattern_matches("a{50}", "a" * 50, budget) is True
    assert pattern_matches("(a?){100}b", "a" * 10_000_000, budget) is None
    assert pattern_matches("a", "a", budget) is None


def test_faults_of_object_are_limited() -> None:
    node = compile_schema({"type": "array", "items": {"type": "integer"}})
    assert len(first_faults(node.faults(["a"] * 100_000, "spec"))) == 1_000


def test_long_key_is_not_copied_for_every_path() -> None:
    decode = map_decoder(array_decoder(decode_any))
    value = {"k" * 1_000_000: [1] * 100_000}
    with assert_fast():
        assert decode(value, "spec", DecodeReport()) == value


# -- selectors


def versions(count: int) -> list[ObjectVersion]:
    keys = [Key("configmaps", "default", f"m{n}") for n in range(count)]
    return [ObjectVersion(key, 1, b"{}", {"app": f"a{n}"}, {"metadata.name": key.name}) for n, key in enumerate(keys)]


@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": f"app in ({','.join(f'x{n}' for n in range(10_000))})"},
        {"labelSelector": ",".join(f"!x{n}" for n in range(10_000))},
        {"labelSelector": ",".join(f"app!=x{n}" for n in range(10_000))},
        {"fieldSelector": ",".join(f"metadata.name!=x{n}" for n in range(5_000))},
    ],
    ids=["in", "absent", "not equal", "fields"],
)
def test_long_selector_takes_linear_time(query: dict[str, str]) -> None:
    objects = versions(5_000)
    with assert_fast():
        selection = selection_of(INFO, query)
        assert selection.matches is not None
        matching = sum(map(selection.matches, objects))
    assert matching == (0 if "app in" in query.get("labelSelector", "") else 5_000)


LABELS = [{}, {"a": "1"}, {"a": "2", "b": "x"}, {"b": "y"}, {"a": "9", "c": "z"}]


def test_long_selector_matches_like_short_selector() -> None:
    kinds = {
        "few": ["a", "a in (1,2)", "a notin (1)", "!a", "a>1", "a<5", "b=x", "b!=x", "c"],
    }
    for one in kinds["few"]:
        for other in kinds["few"]:
            short = parse_label_selector(f"{one},{other}")
            long = parse_label_selector(",".join([one, other, *(f"!none{n}" for n in range(20))]))
            assert [short.matches(each) for each in LABELS] == [long.matches(each) for each in LABELS], (one, other)


def test_requirement_with_many_values_keeps_its_text() -> None:
    values = [f"v{n:02}" for n in range(20)]
    selector = label_selector({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]})
    assert selector.matches({"a": "v07"})
    assert not selector.matches({"a": "w"})
    assert str(selector) == f"a in ({','.join(values)})"
    assert requirement("a", Operator.IN, values).matches({"a": "v07"})
