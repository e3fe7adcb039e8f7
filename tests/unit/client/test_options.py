"""Request options and their effects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.options import PatchType, delete_options, dry_run_query, selector_query, with_resource_version
from tapestry.kube.objects import Object
from tapestry.kube.patches import apply_json_patch, apply_merge_patch

SPECS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
METADATA = st.none() | st.fixed_dictionaries({"labels": SPECS})


def test_empty_options_are_not_sent() -> None:
    assert selector_query("", "") == dry_run_query(False) == {}
    assert delete_options({"metadata": {"name": "web"}}, None, None) == {"apiVersion": "v1", "kind": "DeleteOptions"}


@pytest.mark.parametrize("known", [{"uid": "u1"}, {"resourceVersion": "7"}, {"uid": "u1", "resourceVersion": "7"}])
def test_known_identity_becomes_delete_precondition(known: Object) -> None:
    assert delete_options({"metadata": {"name": "web", **known}}, None, None)["preconditions"] == known


def test_zero_grace_period_is_sent() -> None:
    assert delete_options({"metadata": {}}, 0, None)["gracePeriodSeconds"] == 0


@given(SPECS, SPECS, METADATA)
def test_versioned_patch_only_adds_the_version(has: Object, wants: Object, metadata: Object | None) -> None:
    there = {"metadata": {"name": "web", "resourceVersion": "7"}, "spec": has}
    patch = {"spec": wants, **({"metadata": metadata} if metadata is not None else {})}
    patched = apply_merge_patch(there, with_resource_version(patch, "6", PatchType.MERGE))
    plain = apply_merge_patch(there, patch)
    assert patched == {**plain, "metadata": {**plain["metadata"], "resourceVersion": "6"}}
    steps = [{"op": "add", "path": "/spec", "value": wants}]
    assert apply_json_patch(there, with_resource_version(steps, "6", PatchType.JSON)) == {
        "metadata": {"name": "web", "resourceVersion": "6"},
        "spec": wants,
    }
