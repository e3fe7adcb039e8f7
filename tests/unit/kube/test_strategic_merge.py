"""The cases that Kubernetes publishes, each by itself, and what they leave out."""

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
OUR_WORDS = {
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


def applied(original, patch):
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
def test_a_published_case_comes_out_as_published(case, version):
    schema = PUBLISHED[version].of(case.get("type", "mergeItem"))
    before = deepcopy(case)
    if "error" in case:
        with pytest.raises(PatchError, match=OUR_WORDS[case["error"]]):
            apply_strategic_merge_patch(case["document"], case["patch"], schema)
    else:
        assert apply_strategic_merge_patch(case["document"], case["patch"], schema) == case["result"]
    assert case == before


# -- objects


def test_null_deletes_and_is_not_kept_where_there_is_nothing_to_delete():
    pod = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"a": None, "c": None}}, "spec": {"new": {"x": None}, "list": [None, {"y": None}]}}
    assert applied(pod, patch) == {"metadata": {"labels": {"b": "2"}}, "spec": {"new": {}, "list": [None, {}]}}


def test_a_value_of_another_type_is_replaced():
    assert applied({"metadata": {"labels": "odd"}}, {"metadata": {"labels": {"a": "1"}}}) == {
        "metadata": {"labels": {"a": "1"}}
    }
    assert applied({"metadata": None}, {"metadata": {"labels": {}}}) == {"metadata": {"labels": {}}}


def test_a_directive_for_what_is_not_there_leaves_no_trace():
    patch = {
        "spec": {"$patch": "delete"},
        "status": {"conditions": [{"type": "Ready", "$patch": "delete"}, {"type": "New"}]},
    }
    assert applied({}, patch) == conditions("New")


def test_an_object_with_the_strategy_replace_is_replaced():
    pod = {"spec": {"selector": {"a": "1"}}}
    assert applied(pod, {"spec": {"selector": {"b": "2"}}}) == {"spec": {"selector": {"b": "2"}}}


def test_retained_keys_are_all_that_stays():
    pod = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert applied(pod, patch) == {"spec": {"strategy": {"type": "Recreate"}}}


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
def test_a_patch_that_cannot_be_applied_is_refused_with_the_path(patch, message):
    app = {"name": "app", "env": [{"name": "E"}], "keyless": [{"a": 1}]}
    with pytest.raises(PatchError, match=f"^{message}"):
        applied({"spec": {"containers": [app], "unknown": {"a": 1}}}, {"spec": patch})


def test_a_list_of_lists_cannot_be_merged():
    with pytest.raises(PatchError, match=r"^metadata\.finalizers: only objects, or scalars"):
        applied({"metadata": {"finalizers": [["a"]]}}, {"metadata": {"finalizers": [["b"]]}})


def test_a_type_that_is_not_defined_is_named():
    with pytest.raises(ValueError, match=r"^Gone: the OpenAPI document does not define this type"):
        applied({"spec": {"gone": {}}}, {"spec": {"gone": {}}})


# -- lists


def test_elements_are_merged_by_their_key_at_every_depth():
    pod = {"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}}
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}]}}
    env = [{"name": "X", "value": "2"}]
    assert applied(pod, patch) == {"spec": {"containers": [{"name": "a", "image": "1", "env": env}, {"name": "b"}]}}


def test_a_list_without_a_strategy_is_replaced():
    pod = {"spec": {"tolerations": [{"key": "a"}, {"key": "b"}]}}
    assert applied(pod, {"spec": {"tolerations": [{"key": "c"}]}}) == {"spec": {"tolerations": [{"key": "c"}]}}


def test_new_elements_come_before_those_that_the_patch_does_not_name():
    assert condition_names(applied(conditions("A", "B"), conditions("New"))) == ["New", "A", "B"]
    assert condition_names(applied(conditions("A", "B"), conditions("B", "New"))) == ["A", "B", "New"]


def test_the_order_that_a_patch_sets_weaves_in_what_it_does_not_name():
    patch = {"status": {"$setElementOrder/conditions": [{"type": name} for name in ("D", "B", "New")]}}
    assert condition_names(applied(conditions("A", "B", "C", "D"), patch)) == ["A", "C", "D", "B"]


def test_an_element_in_the_place_of_a_deleted_one_counts_as_having_stood_there():
    patch = {
        "status": {
            "$setElementOrder/conditions": [{"type": "New"}, {"type": "Y"}],
            "conditions": [{"type": "New"}, {"type": "Gone", "$patch": "delete"}],
        }
    }
    assert condition_names(applied(conditions("Y", "X", "Gone"), patch)) == ["X", "New", "Y"]


def test_the_last_element_can_be_deleted_with_an_empty_order():
    patch = {"status": {"$setElementOrder/conditions": [], "conditions": [{"type": "A", "$patch": "delete"}]}}
    assert condition_names(applied(conditions("A"), patch)) == []


def test_an_empty_list_cannot_be_put_in_order():
    patch = {"status": {"$setElementOrder/conditions": [{"type": "A"}]}}
    with pytest.raises(PatchError, match=r"^status\.conditions: \$setElementOrder has no elements"):
        applied(conditions(), patch)


def test_an_order_for_a_list_that_is_nowhere_does_nothing():
    assert applied({"status": {}}, {"status": {"$setElementOrder/conditions": [{"type": "A"}]}}) == {"status": {}}


def test_scalars_leave_a_list_and_enter_it():
    pod = {"metadata": {"finalizers": ["a", "b", "c"]}}
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["b"],
            "$setElementOrder/finalizers": ["d", "a"],
            "finalizers": ["d"],
        }
    }
    assert applied(pod, patch) == {"metadata": {"finalizers": ["d", "a", "c"]}}


def test_deleting_scalars_from_an_empty_list_adds_none():
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert applied({"metadata": {"finalizers": []}}, patch) == {"metadata": {"finalizers": []}}
    assert applied({"metadata": {}}, patch) == {"metadata": {}}


def test_merge_keys_of_different_json_types_are_different_keys():
    pod = {"spec": {"containers": [{"name": 1, "image": "i"}]}}
    merged = applied(pod, {"spec": {"containers": [{"name": True}, {"name": 1.0}]}})
    assert [container["name"] for container in merged["spec"]["containers"]] == [True, 1.0, 1]


def test_of_elements_with_one_key_the_first_is_patched_and_all_are_deleted():
    pod = {"status": {"conditions": [{"type": "A"}, {"type": "A"}, {"type": "B"}]}}
    patched = applied(pod, {"status": {"conditions": [{"type": "A", "status": "True"}]}})
    assert patched == {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "A"}, {"type": "B"}]}}
    assert applied(pod, {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}}) == conditions("B")


def test_what_a_patch_does_not_name_is_shared():
    pod = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "a"}]}, **conditions("A", "B")}
    patched = applied(pod, {"status": {"conditions": [{"type": "A", "status": "True"}]}})
    assert patched["metadata"] is pod["metadata"]
    assert patched["spec"] is pod["spec"]
    assert patched["status"]["conditions"][1] is pod["status"]["conditions"][1]


# -- rules

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
def test_an_object_is_its_own_patch_and_changes_nothing(pod):
    assert applied(pod, pod) == pod


@given(PODS, PODS)
def test_a_patch_applied_twice_is_a_patch_applied_once(pod, patch):
    once = applied(pod, patch)
    assert applied(once, patch) == once


@given(PODS, PODS)
def test_merged_lists_hold_what_either_side_holds_and_nothing_twice(pod, patch):
    merged = applied(pod, patch)
    for path, key in ((("spec", "containers"), "name"), (("status", "conditions"), "type")):
        before, asked, after = (
            [item[key] for item in source.get(path[0], {}).get(path[1], [])] for source in (pod, patch, merged)
        )
        assert sorted(after) == sorted({*before, *asked})
        assert [name for name in after if name in asked] == asked
        assert [name for name in after if name not in asked] == [name for name in before if name not in asked]


@given(PODS, PODS, st.permutations("abcdef"))
def test_a_set_order_is_the_order_of_what_it_names(pod, patch, order):
    wanted = [{"type": name} for name in order]
    plain = sorted(patch.get("status", {}).get("conditions", []), key=lambda item: order.index(item["type"]))
    assume(plain or pod.get("status", {}).get("conditions"))  # upstream refuses to order nothing, and so do we
    merged = applied(pod, {"status": {"conditions": plain, "$setElementOrder/conditions": wanted}})
    assert condition_names(merged) == [name for name in order if name in condition_names(merged)]
