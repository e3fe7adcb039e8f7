"""Desired copies of ConfigMaps and Secrets, and the fields that we own."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.kube.errors import Forbidden, Invalid
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.kube.patches import apply_merge_patch
from tapestry.syncer.translate.copies import (
    copied_content,
    copy_metadata,
    copy_needs_recreate,
    copy_patch,
    copy_rejection,
    desired_copy,
    digest_view,
    is_current,
    is_edited,
    redacted_errors,
    secret_renewal,
    token_renewal,
    tokens_secret,
)
from tapestry.syncer.translate.metadata import source_key, virtual_key

EAST = Binding(
    "east", "binding-uid", "virtual-cluster", ClusterBindingSpec("east", SecretReference("k", "s"), "leased")
)
NOW = datetime(2026, 5, 1, tzinfo=UTC)

texts = st.text("abc.", min_size=1, max_size=4)
contents = st.fixed_dictionaries(
    {},
    optional={
        "data": st.dictionaries(texts, texts, max_size=4),
        "binaryData": st.dictionaries(texts, texts, max_size=2),
        "immutable": st.booleans(),
    },
)
foreign_metadata = st.fixed_dictionaries(
    {}, optional={"labels": st.dictionaries(texts, texts), "annotations": st.dictionaries(texts, texts)}
)


def new_config_map(**content: Any) -> Object:
    metadata = {"name": "settings", "namespace": "shop", "uid": "u", "resourceVersion": "1"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content}


def new_secret(**content: Any) -> Object:
    return {**new_config_map(**content), "kind": "Secret"}


def new_pod() -> Object:
    metadata = {"name": "web", "namespace": "shop", "uid": "pod-uid", "labels": {"app": "web"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


@given(contents)
def test_copy_has_the_content_of_its_source(content: Object) -> None:
    source = new_config_map(**content)
    copy = desired_copy(source, EAST)
    assert {field: copy.get(field) for field in ("data", "binaryData", "immutable") if copy.get(field)} == {
        field: value for field, value in content.items() if value
    }
    assert copied_content(copy) == copied_content(source)
    assert is_current(digest_view(copy), digest_view(source), EAST)
    assert source_key(copy) == ["shop/settings"]
    assert EAST.owns(copy)


@given(contents, contents)
def test_different_contents_have_different_digests(one: Object, other: Object) -> None:
    first, second = new_config_map(**one), new_config_map(**other)
    assert (digest_view(first)["digest"] == digest_view(second)["digest"]) == (
        copied_content(first) == copied_content(second)
    )


@given(contents, contents, foreign_metadata)
def test_patch_updates_copy_and_keeps_additions(before: Object, after: Object, theirs: Object) -> None:
    created = desired_copy(new_config_map(**before), EAST)
    existing = apply_merge_patch(created, {"metadata": theirs})
    wanted = desired_copy(new_config_map(**after), EAST)
    if copy_needs_recreate(existing, wanted):
        assert before["immutable"]
        return
    changed = apply_merge_patch(existing, copy_patch(existing, wanted))
    assert copied_content(changed) == copied_content(wanted)
    assert is_current(digest_view(changed), digest_view(new_config_map(**after)), EAST)
    assert copy_patch(changed, wanted) == {}
    for field in theirs:
        assert theirs[field].items() <= changed["metadata"][field].items()


@given(contents, contents)
def test_edit_is_distinguished_from_source_change(before: Object, after: Object) -> None:
    source = new_config_map(**before)
    copy = desired_copy(source, EAST)
    ours = copy_metadata(source, "", EAST)
    assert not is_edited(digest_view(copy), ours)
    edited = {**copy, **copied_content(new_config_map(**after))}
    assert is_edited(digest_view(edited), ours) == (copied_content(edited) != copied_content(copy))


@pytest.mark.parametrize(
    "patch",
    [
        {"labels": {keys.VIRTUAL_NAMESPACE: "other"}},
        {"annotations": {keys.VIRTUAL_NAME: None}},
        {"annotations": {keys.WRITTEN_DIGEST: None}},
        {"annotations": None},
    ],
)
def test_changed_identity_metadata_is_an_edit(patch: Object) -> None:
    source = new_config_map(data={"k": "v"})
    copy = apply_merge_patch(desired_copy(source, EAST), {"metadata": patch})
    assert is_edited(digest_view(copy), copy_metadata(source, "", EAST))
    assert not is_current(digest_view(copy), digest_view(source), EAST)


def test_foreign_metadata_is_no_edit() -> None:
    source = new_config_map(data={"k": "v"})
    foreign = {"labels": {"a": "b", keys.PREFIX + "new": "c"}, "annotations": {"d": "e"}}
    copy = apply_merge_patch(desired_copy(source, EAST), {"metadata": foreign})
    assert not is_edited(digest_view(copy), copy_metadata(source, "", EAST))
    assert is_current(digest_view(copy), digest_view(source), EAST)


@pytest.mark.parametrize(
    ("source_type", "copy_type"),
    [
        (None, "Opaque"),
        ("Opaque", "Opaque"),
        ("kubernetes.io/service-account-token", "Opaque"),
        ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockerconfigjson"),
        ("kubernetes.io/tls", "kubernetes.io/tls"),
    ],
)
def test_secret_type_is_copied_unless_controllers_use_it(source_type: str | None, copy_type: str) -> None:
    source = new_secret(data={"k": "dg=="}, **({"type": source_type} if source_type else {}))
    copy = desired_copy(source, EAST)
    assert copy["type"] == copy_type
    assert is_current(digest_view(copy), digest_view(source), EAST)
    assert not copy_needs_recreate(copy, desired_copy(source, EAST))


def test_other_type_needs_recreation() -> None:
    assert copy_needs_recreate(desired_copy(new_secret(type="a/b"), EAST), desired_copy(new_secret(type="a/c"), EAST))


def test_only_bootstrap_tokens_are_rejected() -> None:
    assert "bootstrap.kubernetes.io/token" in (copy_rejection(new_secret(type="bootstrap.kubernetes.io/token")) or "")
    assert copy_rejection(new_secret(type="Opaque")) is None
    assert copy_rejection(new_config_map()) is None


def test_tenant_metadata_is_not_copied() -> None:
    source = new_config_map()
    source["metadata"] |= {
        "labels": {"app": "x", keys.CLUSTER_BINDING_UID: "forged"},
        "annotations": {"note": "y", keys.VIRTUAL_NAME: "forged"},
        "ownerReferences": [{"kind": "Deployment"}],
        "finalizers": ["example.com/keep"],
    }
    copy = desired_copy(source, EAST)
    assert copy["metadata"].keys() == {"name", "namespace", "labels", "annotations"}
    assert labels_of(copy)[keys.CLUSTER_BINDING_UID] == "binding-uid"
    assert annotations_of(copy)[keys.VIRTUAL_NAME] == "settings"
    assert "app" not in labels_of(copy)
    assert "note" not in annotations_of(copy)


def test_digest_view_has_no_content() -> None:
    secret = new_secret(data={"key": "aHVzaA=="}, type="Opaque")
    secret["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "aHVzaA=="}
    assert "aHVzaA==" not in str(digest_view(secret))


# -- tokens


def test_token_secret_names_its_pod_and_is_no_copy() -> None:
    secret = tokens_secret(new_pod(), EAST, {"access.0": "a.b.c"}, NOW)
    assert base64.b64decode(secret["data"]["access.0"]) == b"a.b.c"
    assert virtual_key(secret) == ["shop/web"]
    assert source_key(secret) == []
    assert EAST.owns(secret)
    assert "app" not in labels_of(secret)
    assert secret_renewal(digest_view(secret), NOW - timedelta(days=1)) == NOW


@pytest.mark.parametrize(
    "change", [{"data": {"access.0": "eA=="}}, {"metadata": {"annotations": {keys.TOKENS_RENEWAL: "never"}}}]
)
def test_edited_tokens_are_due(change: Object) -> None:
    secret = apply_merge_patch(tokens_secret(new_pod(), EAST, {"access.0": "a.b.c"}, NOW + timedelta(hours=1)), change)
    assert secret_renewal(digest_view(secret), NOW) == NOW


@pytest.mark.parametrize(
    ("life", "after"),
    [
        (timedelta(seconds=600), timedelta(seconds=480)),
        (timedelta(hours=1), timedelta(minutes=48)),
        (timedelta(days=365), timedelta(days=1)),
        (timedelta(0), timedelta(minutes=1)),
        (timedelta(hours=-1), timedelta(minutes=1)),
    ],
)
def test_token_renewal_depends_on_lifetime(life: timedelta, after: timedelta) -> None:
    assert token_renewal(NOW, NOW + life) == NOW + after


# -- redacted errors


def test_rejection_names_fields_without_values() -> None:
    causes = [{"field": "data[k]", "message": "hush"}, {"field": "type", "message": "hush"}]
    with pytest.raises(Invalid) as caught, redacted_errors(desired_copy(new_secret(), EAST)):
        raise Invalid(422, "Invalid", "hush is bad", details={"causes": causes})
    assert "data[k], type" in str(caught.value)
    assert "hush" not in f"{caught.value!s} {caught.value.details} {caught.value.__cause__}"


def test_other_errors_are_unchanged() -> None:
    with pytest.raises(Forbidden, match="exceeded quota"), redacted_errors(desired_copy(new_secret(), EAST)):
        raise Forbidden(403, "Forbidden", "exceeded quota")
