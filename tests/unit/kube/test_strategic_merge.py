"""Tests of strategic merge patches: the published cases of Kubernetes and additional ones."""

from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tapestry.kube.patches import PatchError
from tapestry.kube.strategic_merge import PatchSchemas, apply_strategic_merge_patch

GOLDEN = yaml.safe_load((Path(__file__).parents[2] / "golden" / "strategic" / "cases.yaml").read_text())
PUBLISHED = {version: PatchSchemas(definitions) for version, definitions in GOLDEN["schemas"].items()}
OUR_MESSAGES = {
    "doesn't match": "mergingI?n?t?List: the elements of the patch are not in the order",
    "does not contain declared merge key": "mergingList: an element has no 'name', the merge key",
}

NAMED = {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"}
TYPED = {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "type"}
POD = PatchSchemas(
    {
        "Pod": {
            "properties": {
                "metadata": {"default": {}, "allOf": [{"$ref": "#/components/schemas/Meta"}]},
                "spec": {
                    "properties": {
                        "containers": {"items": {"allOf": [{"$ref": "#/components/schemas/Container"}]}, **NAMED},
                        "tolerations": {"items": {"type": "object"}},
                        "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys"},
                        "selector": {"type": "object", "x-kubernetes-patch-strategy": "replace"},
                        "gone": {"$ref": "#/components/schemas/Gone"},
                    }
                },
                "status": {"properties": {"conditions": {"items": {"type": "object"}, **TYPED}}},
            }
        },
        "Meta": {
            "properties": {
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "finalizers": {"items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
            }
        },
        "Container": {
            "properties": {
                "env": {"items": {"type": "object"}, **NAMED},
                "keyless": {"items": {"type": "object"}, "x-kubernetes-patch-strategy": "merge"},
            }
        },
    }
).of("Pod")


def patched_pod(original, patch):
    before = deepcopy((original, patch))
    try:
        return apply_strategic_merge_patch(original, patch, POD)
    finally:
        assert (original, patch) == before


def conditions(*names):
    return {"status": {"conditions": [{"type": name} for name in names]}}


def condition_names(pod):
    return [condition["type"] for condition in pod["status"]["conditions"]]


@pytest.mark.parametrize("version", PUBLISHED)
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_upstream_case_has_upstream_result(case, version):
    schema = PUBLISHED[version].of(case.get("type", "mergeItem"))
    before = deepcopy(case)
    if "error" in case:
        with pytest.raises(PatchError, match=OUR_MESSAGES[case["error"]]):
            apply_strategic_merge_patch(case["document"], case["patch"], schema)
    else:
        assert apply_strategic_merge_patch(case["document"], case["patch"], schema) == case["result"]
    assert case == before


# -- objects


def test_null_deletes_and_is_not_stored():
    pod = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"a": None, "c": None}}, "spec": {"new": {"x": None}, "list": [None, {"y": None}]}}
    assert patched_pod(pod, patch) == {"metadata": {"labels": {"b": "2"}}, "spec": {"new": {}, "list": [None, {}]}}


def test_value_of_other_type_is_replaced():
    assert patched_pod({"metadata": {"labels": "odd"}}, {"metadata": {"labels": {"a": "1"}}}) == {
        "metadata": {"labels": {"a": "1"}}
    }
    assert patched_pod({"metadata": None}, {"metadata": {"labels": {}}}) == {"metadata": {"labels": {}}}


def test_directive_for_missing_value_is_dropped():
    patch = {
        "spec": {"$patch": "delete"},
        "status": {"conditions": [{"type": "Ready", "$patch": "delete"}, {"type": "New"}]},
    }
    assert patched_pod({}, patch) == conditions("New")


def test_strategy_replace_replaces_object():
    pod = {"spec": {"selector": {"a": "1"}}}
    assert patched_pod(pod, {"spec": {"selector": {"b": "2"}}}) == {"spec": {"selector": {"b": "2"}}}


def test_retain_keys_removes_other_fields():
    pod = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert patched_pod(pod, patch) == {"spec": {"strategy": {"type": "Recreate"}}}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"$patch": "merge"}, r"spec\.\$patch: 'merge' is neither replace nor delete"),
        ({"$patch": ["replace"]}, r"spec\.\$patch: \['replace'\] is neither"),
        ({"$retainKeys": "containers"}, r"spec\.\$retainKeys: a list of field names is expected, not a string"),
        ({"$retainKeys": ["a"], "b": 1}, r"spec\.b: the patch sets it, but \$retainKeys does not name it"),
        ({"$setElementOrder": []}, r"spec\.\$setElementOrder: write \$setElementOrder/<field>"),
        ({"$deleteFromPrimitiveList": []}, r"spec\.\$deleteFromPrimitiveList: write"),
        ({"$setElementOrder/containers": {}}, r"spec\.containers: .* an object has no order"),
        ({"$setElementOrder/containers": [], "containers": None}, r"spec\.containers: .* null has no order"),
        ({"$setElementOrder/other": []}, r"spec\.other: the schema does not define this field"),
        ({"unknown": {"b": 1}}, r"spec\.unknown: the schema does not define this field"),
        ({"containers": [{"image": "i"}]}, r"spec\.containers: an element has no 'name'"),
        ({"containers": [{"$patch": "delete"}]}, r"spec\.containers: an element has no 'name'"),
        ({"containers": [{"name": {}}]}, r"spec\.containers: an object cannot be the key of an element"),
        ({"containers": [{"name": "a", "$patch": "merge"}]}, r"spec\.containers: \$patch: 'merge' is neither"),
        ({"containers": ["a"]}, r"spec\.containers: only objects, or scalars of one kind, can be merged"),
        ({"containers": [None]}, r"spec\.containers: only objects, or scalars of one kind"),
        (
            {"containers": [{"name": "app", "env": [{"value": 1}]}]},
            r"spec\.containers\[name=app\]\.env: an element has no",
        ),
        ({"containers": [{"name": "app", "keyless": [{}]}]}, r"spec\.containers\[name=app\]\.keyless: .*no merge key"),
    ],
)
def test_invalid_patch_is_rejected_with_path(patch, message):
    app = {"name": "app", "env": [{"name": "E"}], "keyless": [{"a": 1}]}
    with pytest.raises(PatchError, match=f"^{message}"):
        patched_pod({"spec": {"containers": [app], "unknown": {"a": 1}}}, {"spec": patch})


def test_list_of_lists_cannot_be_merged():
    with pytest.raises(PatchError, match=r"^metadata\.finalizers: only objects, or scalars"):
        patched_pod({"metadata": {"finalizers": [["a"]]}}, {"metadata": {"finalizers": [["b"]]}})


def test_undefined_type_is_named():
    with pytest.raises(ValueError, match=r"^Gone: the OpenAPI document does not define this type"):
        patched_pod({"spec": {"gone": {}}}, {"spec": {"gone": {}}})


# -- lists


def test_elements_are_merged_by_key_recursively():
    pod = {"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}}
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}]}}
    env = [{"name": "X", "value": "2"}]
    assert patched_pod(pod, patch) == {"spec": {"containers": [{"name": "a", "image": "1", "env": env}, {"name": "b"}]}}


def test_list_without_strategy_is_replaced():
    pod = {"spec": {"tolerations": [{"key": "a"}, {"key": "b"}]}}
    assert patched_pod(pod, {"spec": {"tolerations": [{"key": "c"}]}}) == {"spec": {"tolerations": [{"key": "c"}]}}


def test_new_elements_precede_unnamed_elements():
    assert condition_names(patched_pod(conditions("A", "B"), conditions("New"))) == ["New", "A", "B"]
    assert condition_names(patched_pod(conditions("A", "B"), conditions("B", "New"))) == ["A", "B", "New"]


def test_set_order_inserts_unnamed_elements():
    patch = {"status": {"$setElementOrder/conditions": [{"type": name} for name in ("D", "B", "New")]}}
    assert condition_names(patched_pod(conditions("A", "B", "C", "D"), patch)) == ["A", "C", "D", "B"]


def test_replacement_takes_position_of_deleted_element():
    patch = {
        "status": {
            "$setElementOrder/conditions": [{"type": "New"}, {"type": "Y"}],
            "conditions": [{"type": "New"}, {"type": "Gone", "$patch": "delete"}],
        }
    }
    assert condition_names(patched_pod(conditions("Y", "X", "Gone"), patch)) == ["X", "New", "Y"]


def test_last_element_is_deleted_with_empty_order():
    patch = {"status": {"$setElementOrder/conditions": [], "conditions": [{"type": "A", "$patch": "delete"}]}}
    assert condition_names(patched_pod(conditions("A"), patch)) == []


def test_empty_list_cannot_be_ordered():
    patch = {"status": {"$setElementOrder/conditions": [{"type": "A"}]}}
    with pytest.raises(PatchError, match=r"^status\.conditions: \$setElementOrder has no elements"):
        patched_pod(conditions(), patch)


def test_order_for_missing_list_is_ignored():
    assert patched_pod({"status": {}}, {"status": {"$setElementOrder/conditions": [{"type": "A"}]}}) == {"status": {}}


def test_scalars_are_deleted_and_added():
    pod = {"metadata": {"finalizers": ["a", "b", "c"]}}
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["b"],
            "$setElementOrder/finalizers": ["d", "a"],
            "finalizers": ["d"],
        }
    }
    assert patched_pod(pod, patch) == {"metadata": {"finalizers": ["d", "a", "c"]}}


def test_deleting_from_empty_list_adds_nothing():
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert patched_pod({"metadata": {"finalizers": []}}, patch) == {"metadata": {"finalizers": []}}
    assert patched_pod({"metadata": {}}, patch) == {"metadata": {}}


def test_merge_keys_distinguish_json_types():
    pod = {"spec": {"containers": [{"name": 1, "image": "i"}]}}
    merged = patched_pod(pod, {"spec": {"containers": [{"name": True}, {"name": 1.0}]}})
    assert [container["name"] for container in merged["spec"]["containers"]] == [True, 1.0, 1]


def test_duplicate_keys_patch_first_delete_all():
    pod = {"status": {"conditions": [{"type": "A"}, {"type": "A"}, {"type": "B"}]}}
    patched = patched_pod(pod, {"status": {"conditions": [{"type": "A", "status": "True"}]}})
    assert patched == {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "A"}, {"type": "B"}]}}
    assert patched_pod(pod, {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}}) == conditions("B")


def test_untouched_parts_are_shared():
    pod = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "a"}]}, **conditions("A", "B")}
    patched = patched_pod(pod, {"status": {"conditions": [{"type": "A", "status": "True"}]}})
    assert patched["metadata"] is pod["metadata"]
    assert patched["spec"] is pod["spec"]
    assert patched["status"]["conditions"][1] is pod["status"]["conditions"][1]


# -- properties

NAMES = st.sampled_from("abcdef")
VALUES = st.sampled_from(["1", "2", "3"])


def keyed_lists(key, **others):
    element = st.fixed_dictionaries({key: NAMES}, optional=others)
    return st.lists(element, max_size=5, unique_by=lambda item: item[key])


PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(NAMES, VALUES, max_size=3),
                "finalizers": st.lists(NAMES, unique=True, max_size=4),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": keyed_lists("name", image=VALUES, env=keyed_lists("name", value=VALUES)),
                "tolerations": st.lists(st.fixed_dictionaries({"key": NAMES}), max_size=2),
                "selector": st.dictionaries(NAMES, VALUES, max_size=2),
            },
        ),
        "status": st.fixed_dictionaries(
            {}, optional={"phase": VALUES, "conditions": keyed_lists("type", status=VALUES)}
        ),
    },
)


@given(PODS)
def test_object_as_own_patch_changes_nothing(pod):
    assert patched_pod(pod, pod) == pod


@given(PODS, PODS)
def test_patch_is_idempotent(pod, patch):
    once = patched_pod(pod, patch)
    assert patched_pod(once, patch) == once


@given(PODS, PODS)
def test_merged_lists_are_the_union(pod, patch):
    merged = patched_pod(pod, patch)
    for path, key in ((("spec", "containers"), "name"), (("status", "conditions"), "type")):
        before, named, after = (
            [item[key] for item in source.get(path[0], {}).get(path[1], [])] for source in (pod, patch, merged)
        )
        assert sorted(after) == sorted({*before, *named})
        assert [name for name in after if name in named] == named
        assert [name for name in after if name not in named] == [name for name in before if name not in named]


@given(PODS, PODS, st.permutations("abcdef"))
def test_set_order_orders_named_elements(pod, patch, order):
    order_items = [{"type": name} for name in order]
    elements = sorted(patch.get("status", {}).get("conditions", []), key=lambda item: order.index(item["type"]))
    assume(
        elements or pod.get("status", {}).get("conditions")
    )  # upstream rejects an order without elements, and so do we
    merged = patched_pod(pod, {"status": {"conditions": elements, "$setElementOrder/conditions": order_items}})
    assert condition_names(merged) == [name for name in order if name in condition_names(merged)]
