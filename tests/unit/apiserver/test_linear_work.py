"""Work grows with the bytes of a request and not with their square: counts that took minutes take a moment.

Most of these took longer than their bar, some of them minutes, when items were compared pair by pair.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from tapestry.apiserver.access.rbac import PolicyRule, uncovered_rules
from tapestry.apiserver.customresources.structural_schema import (
    PatternBudget,
    compile_schema,
    first_faults,
    pattern_matches,
)
from tapestry.apiserver.fieldmanager.fieldsets import union_all
from tapestry.apiserver.fieldmanager.managed_fields import ManagedFieldsEntry, Manager, cap_update_managers
from tapestry.apiserver.fieldmanager.merge_schemas import merged_order
from tapestry.apiserver.requests import selection_of
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import ObjectVersion
from tapestry.apiserver.type_decoders import DecodeReport, array_decoder, decode_any, map_decoder
from tapestry.apiserver.warnings.pods import path_collisions, port_warnings
from tapestry.kube.budget import CURRENT_BUDGET, Budget, BudgetExceeded
from tapestry.kube.patches import apply_json_patch
from tapestry.kube.resources import CONFIGMAPS
from tapestry.kube.selectors import Operator, label_selector, parse_label_selector, requirement
from tapestry.kube.strategic_merge import PatchSchemas, apply_strategic_merge_patch

BAR = 2.0
ROW = ResourceInfo(CONFIGMAPS, "configmap", (), storage="configmaps")


@contextmanager
def a_moment() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < BAR


@pytest.fixture
def budget() -> Iterator[Budget]:
    found = Budget(lambda: False)
    token = CURRENT_BUDGET.set(found)
    yield found
    CURRENT_BUDGET.reset(token)


# -- patches


def test_a_json_patch_copies_a_container_once() -> None:
    document = {"data": {f"k{n}": "v" for n in range(100_000)}, "list": list(range(100_000))}
    patch = [{"op": "add", "path": f"/data/n{n}", "value": n} for n in range(5_000)]
    patch += [{"op": "replace", "path": f"/list/{n}", "value": 0} for n in range(5_000)]
    with a_moment():
        found = apply_json_patch(document, patch)
    assert len(found["data"]) == 105_000
    assert len(document["data"]) == 100_000
    assert document["list"][1] == 1


def test_copied_values_change_apart_from_their_source() -> None:
    patch = [
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/a/y", "value": 2},
        {"op": "move", "from": "/b", "path": "/c"},
        {"op": "add", "path": "/c/z", "value": 3},
    ]
    assert apply_json_patch({"a": {}}, patch) == {"a": {"x": 1, "y": 2}, "c": {"x": 1, "z": 3}}


def test_a_strategic_patch_that_names_one_element_often_is_over_budget(budget: Budget) -> None:
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


def test_ports_are_compared_by_what_they_have_in_common() -> None:
    ports = [(f"p[{n}]", {"containerPort": 80, "protocol": "TCP", "hostPort": n + 1}) for n in range(30_000)]
    with a_moment():
        assert list(port_warnings(ports)) == []
    equal = [(f"p[{n}]", {"containerPort": 80, "protocol": "TCP"}) for n in range(30_000)]
    with a_moment():
        assert len(list(islice(port_warnings(equal), 200))) == 200


def test_paths_are_compared_by_their_folders() -> None:
    with a_moment():
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


# -- rights


def test_rules_are_compared_as_products() -> None:
    many = [tuple(f"{kind}{n}" for n in range(60)) for kind in "vgr"]
    held = [PolicyRule(("get", f"v{n}"), ("*",), (f"r{n}",)) for n in range(40)]
    with a_moment():
        assert len(uncovered_rules([PolicyRule(*many, tuple("abcde"))], held, 1_000)) == 1_000
        assert uncovered_rules([PolicyRule(*many, tuple("abcde"))], [PolicyRule(("*",), ("*",), ("*",))]) == []


# -- ownership


def test_many_managers_become_one() -> None:
    managed = {}
    for n in range(20_000):
        manager = Manager(f"m{n}", "Update", "v1")
        managed[manager] = ManagedFieldsEntry(manager, {"f:data": {f"f:k{n}": {}}}, f"2024-01-01T00:00:{n:06}")
    with a_moment():
        found = cap_update_managers(managed)
    assert len(found) == 10
    assert len(union_all(each.fields for each in found.values())["f:data"]) == 20_000


def test_long_lists_are_merged_in_one_pass() -> None:
    steps = [f"k{n}" for n in range(200_000)]
    with a_moment():
        assert [step for step, _ in merged_order(steps, steps)] == steps


# -- custom resources


def test_items_of_sets_and_maps_are_looked_up() -> None:
    node = compile_schema({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"})
    with a_moment():
        assert list(node.faults([f"s{n}" for n in range(50_000)], "spec")) == []
    [fault] = node.faults(["a", "b", "a"], "spec")
    assert str(fault) == 'spec[2]: Duplicate value: "a"'


def test_listed_values_are_looked_up() -> None:
    node = compile_schema({"type": "array", "items": {"type": "string", "enum": [f"v{n}" for n in range(10_000)]}})
    with a_moment():
        assert first_faults(node.faults(["v9999"] * 100_000, "spec")) == []


def test_patterns_of_an_object_share_what_they_may_take() -> None:
    left = PatternBudget()
    assert pattern_matches("a{50}", "a" * 50, left) is True
    assert pattern_matches("(a?){100}b", "a" * 10_000_000, left) is None
    assert pattern_matches("a", "a", left) is None


def test_faults_of_an_object_are_not_all_listed() -> None:
    node = compile_schema({"type": "array", "items": {"type": "integer"}})
    assert len(first_faults(node.faults(["a"] * 100_000, "spec"))) == 1_000


def test_a_long_key_is_not_repeated_in_every_path() -> None:
    read = map_decoder(array_decoder(decode_any))
    value = {"k" * 1_000_000: [1] * 100_000}
    with a_moment():
        assert read(value, "spec", DecodeReport()) == value


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
def test_a_long_selector_is_asked_once_of_each_object(query: dict[str, str]) -> None:
    found = versions(5_000)
    with a_moment():
        selection = selection_of(ROW, query)
        assert selection.matches is not None
        chosen = sum(map(selection.matches, found))
    assert chosen == (0 if "app in" in query.get("labelSelector", "") else 5_000)


LABELS = [{}, {"a": "1"}, {"a": "2", "b": "x"}, {"b": "y"}, {"a": "9", "c": "z"}]


def test_many_requirements_hold_as_each_of_them() -> None:
    kinds = {
        "few": ["a", "a in (1,2)", "a notin (1)", "!a", "a>1", "a<5", "b=x", "b!=x", "c"],
    }
    for one in kinds["few"]:
        for other in kinds["few"]:
            short = parse_label_selector(f"{one},{other}")
            long = parse_label_selector(",".join([one, other, *(f"!none{n}" for n in range(20))]))
            assert [short.matches(each) for each in LABELS] == [long.matches(each) for each in LABELS], (one, other)


def test_a_requirement_with_many_values_keeps_its_text() -> None:
    values = [f"v{n:02}" for n in range(20)]
    selector = label_selector({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]})
    assert selector.matches({"a": "v07"})
    assert not selector.matches({"a": "w"})
    assert str(selector) == f"a in ({','.join(values)})"
    assert requirement("a", Operator.IN, values).matches({"a": "v07"})
