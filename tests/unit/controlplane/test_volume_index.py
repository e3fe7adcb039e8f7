"""Tests of the indexes of free volumes and unbound claims."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.volume_index import FreeVolumes, UnboundClaims
from tapestry.controlplane.volume_matching import (
    best_volume,
    capacity_of,
    claim_selector,
    is_suitable,
    requested_storage,
    storage_class_of,
)
from tapestry.kube.objects import Object, key_of, labels_of, name_of

from .volumes import new_claim, new_volume

MODES = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]
LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
SELECTORS = st.one_of(
    st.none(),
    st.builds(lambda labels: {"matchLabels": labels}, LABELS),
    st.builds(
        lambda operator, values: {
            "matchExpressions": [
                {"key": "a", "operator": operator, **({"values": values} if operator.endswith("n") else {})}
            ]
        },
        st.sampled_from(["In", "NotIn", "Exists"]),
        st.lists(st.sampled_from("xy"), min_size=1, unique=True),
    ),
)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "size": st.integers(1, 5).map("{}Gi".format),
    "accessModes": st.lists(st.sampled_from(MODES), min_size=1, unique=True),
    "storageClassName": st.sampled_from(["", "fast"]),
    "volumeMode": st.sampled_from(["Filesystem", "Filesystem", "Block"]),
}
CLAIMS = st.lists(st.fixed_dictionaries({**SHARED, "selector": SELECTORS}), max_size=8)
VOLUMES = st.lists(st.fixed_dictionaries({**SHARED, "labels": LABELS}), max_size=8)


def new_claims(fields: list[dict[str, Any]]) -> list[Object]:
    return [
        new_claim(f"c{number}", **{name: value for name, value in each.items() if value is not None})
        for number, each in enumerate(fields)
    ]


def new_volumes(fields: list[dict[str, Any]]) -> list[Object]:
    return [
        new_volume(
            f"v{number}",
            phase="Available",
            metadata={"labels": each["labels"]},
            **{name: value for name, value in each.items() if name != "labels"},
        )
        for number, each in enumerate(fields)
    ]


def is_match(volume: Object, claim: Object) -> bool:
    selector = claim_selector(claim)
    return (
        is_suitable(volume, claim)
        and storage_class_of(volume) == storage_class_of(claim)
        and capacity_of(volume) >= requested_storage(claim)
        and (selector is None or selector.matches(labels_of(volume)))
    )


@given(VOLUMES, CLAIMS, st.sets(st.integers(0, 7)))
def test_free_volumes_are_those_of_a_scan(
    volume_fields: list[dict[str, Any]], claim_fields: list[dict[str, Any]], removed: set[int]
) -> None:
    volumes, index = new_volumes(volume_fields), FreeVolumes()
    for volume in (*volumes, *volumes):  # a second put replaces the first
        index.put(volume)
    for number in removed:
        index.remove(f"v{number}")
    remaining = [each for number, each in enumerate(volumes) if number not in removed]
    for claim in new_claims(claim_fields):
        expected = [each for each in remaining if is_match(each, claim)]
        found = list(index.matches(claim))
        assert sorted(map(name_of, found)) == sorted(map(name_of, expected))
        counts = [len(each["spec"]["accessModes"]) for each in found]
        assert counts == sorted(counts)
        if found:
            fewest = [each for each in expected if len(each["spec"]["accessModes"]) == counts[0]]
            best = best_volume(claim, (), fewest)
            assert best is not None
            assert capacity_of(found[0]) == capacity_of(best)


@given(VOLUMES, CLAIMS, st.sets(st.integers(0, 7)))
def test_unbound_claim_is_the_largest_of_a_scan(
    volume_fields: list[dict[str, Any]], claim_fields: list[dict[str, Any]], removed: set[int]
) -> None:
    claims, index = new_claims(claim_fields), UnboundClaims()
    for claim in (*claims, *claims):
        index.put(claim)
    for number in removed:
        index.remove(f"default/c{number}")
    remaining = {key_of(each): each for number, each in enumerate(claims) if number not in removed}
    for volume in new_volumes(volume_fields):
        sizes = [requested_storage(each) for each in remaining.values() if is_match(volume, each)]
        found = index.largest_match(volume)
        assert (found is None) == (not sizes)
        if found is not None:
            assert is_match(volume, remaining[found])
            assert requested_storage(remaining[found]) == max(sizes)


def test_removed_objects_leave_nothing() -> None:
    volumes, claims = FreeVolumes(), UnboundClaims()
    volumes.put(new_volume(metadata={"labels": {"a": "b"}}))
    claims.put(new_claim())
    volumes.remove("v")
    claims.remove("default/c")
    for index in (volumes._index, claims._index):
        assert not index.groups
        assert not index.objects
