"""Tests of competing autoscalers."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.autoscaling.target_selectors import TargetSelectors
from tapestry.kube.objects import Object, labels_of, namespace_of
from tapestry.kube.selectors import parse_label_selector

KEYS = st.builds("{}/{}".format, st.sampled_from(["one", "two"]), st.integers(0, 3))
SELECTORS = st.sampled_from(["a=x", "a=x,b=y", "b=y", "a in (x,y)", "a!=x", "b"])
PODS = st.builds(
    lambda namespace, labels: {"metadata": {"namespace": namespace, "name": "p", "labels": labels}},
    st.sampled_from(["one", "two"]),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
)


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), SELECTORS)), max_size=20), st.lists(PODS, max_size=4), KEYS)
def test_competitors_are_those_of_a_scan(changes: list[tuple[str, str | None]], pods: list[Object], key: str) -> None:
    index, expected = TargetSelectors(), {}
    for each, text in changes:
        if text is None:
            index.remove(each)
            expected.pop(each, None)
        else:
            selector = expected[each] = parse_label_selector(text)
            index.put(each, selector)
    found = {
        other
        for other, selector in expected.items()
        for pod in pods
        if other != key and other.startswith(f"{namespace_of(pod)}/") and selector.matches(labels_of(pod))
    }
    assert index.competitors(key, pods) == found
    for each in list(expected):
        index.remove(each)
    assert (index.selectors, index.by_label) == ({}, {})
