"""The index of what pods need."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.manager.pod_needs import (
    POD,
    REVOCATION_DELAY,
    TOKEN,
    Need,
    NeedIndex,
    PodNeeds,
    Scope,
    names_of_kind,
    pod_needs,
)

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = NOW + REVOCATION_DELAY
SCOPE = Scope("uid", "team-a")


def new_pod(**spec: Any) -> Object:
    metadata = {"name": "web", "namespace": "team-a", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"nodeName": "vnode-a-1", **spec}}


def needing(key: str, node: str, *names: str, is_daemon: bool = False) -> PodNeeds:
    return PodNeeds("u", "1", key, "team-a", node, is_daemon, (Need(POD), *(Need("secrets", each) for each in names)))


def current(index: NeedIndex, now: datetime = LATER, *, with_daemons: bool = False) -> set[str]:
    return names_of_kind(index.needs(SCOPE, now, with_daemons=with_daemons)[0], "secrets")


def test_needs_are_read_from_the_spec() -> None:
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}, "name": "t"}
    volumes = [
        {"name": "a", "secret": {"secretName": "password"}},
        {"name": "b", "configMap": {"name": "settings"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "d", "secret": {"secretName": "../west"}},
        {"name": "e", "secret": {"secretName": 7}},
        token,
    ]
    found = pod_needs(new_pod(volumes=volumes, serviceAccountName="robot", imagePullSecrets=[{"name": "pull"}]))
    assert set(found.needs) == {
        *(Need(POD), Need("secrets", "password"), Need("secrets", "pull"), Need(TOKEN, "robot")),
        *(Need("configmaps", "settings"), Need("persistentvolumeclaims", "data")),
    }
    assert pod_needs(new_pod(volumes=[token])).needs == (Need(POD), Need(TOKEN, "default"))
    assert pod_needs(new_pod(serviceAccountName="robot")).needs == (Need(POD),)


def test_pods_on_nodes_of_no_binding_need_nothing() -> None:
    index = NeedIndex()
    pod = needing("team-a/web", "vnode-a-1", "password")
    assert index.set_pod(None, pod, NOW) == set()
    assert index.set_node("vnode-a-1", "uid", NOW) == {SCOPE}
    assert current(index) == {"password"}
    assert index.set_node("vnode-a-1", None, NOW) == {SCOPE}
    assert current(index) == set()


def test_only_the_first_and_the_last_pod_change_needs() -> None:
    index = NeedIndex()
    index.set_node("vnode-a-1", "uid", NOW)
    first, second = (needing(f"team-a/{name}", "vnode-a-1", "password") for name in ("first", "second"))
    assert index.set_pod(None, first, NOW) == {SCOPE}
    assert index.set_pod(None, second, NOW) == set()
    assert index.set_pod(second, second, NOW) == set()
    assert index.set_pod(first, None, NOW) == set()
    assert index.set_pod(second, None, NOW) == {SCOPE}


def test_needs_last_a_while_longer_than_pods() -> None:
    index = NeedIndex()
    index.set_node("vnode-a-1", "uid", NOW)
    pod = needing("team-a/web", "vnode-a-1", "password")
    index.set_pod(None, pod, NOW)
    index.set_pod(pod, None, NOW)
    assert index.needs(SCOPE, NOW, with_daemons=False) == ({Need(POD), Need("secrets", "password")}, LATER)
    assert index.namespaces("uid") == {"team-a"}
    assert index.needs(SCOPE, LATER, with_daemons=False) == (set(), None)
    assert index.namespaces("uid") == set()


def test_daemon_pods_count_on_request() -> None:
    index = NeedIndex()
    index.set_node("vnode-a-1", "uid", NOW)
    pod = needing("team-a/agent", "vnode-a-1", "password", is_daemon=True)
    index.set_pod(None, pod, NOW)
    assert current(index) == set()
    assert current(index, with_daemons=True) == {"password"}
    index.set_pod(pod, None, NOW)
    assert current(index, NOW) == set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["n1", "n2", None]),
        st.sets(st.sampled_from(["x", "y", "z"])),
    )
)
NODES = st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(["uid", "other", None])))


@given(STEPS, NODES, st.randoms())
def test_index_equals_the_sum_of_pods(steps: list[Any], nodes: list[Any], order: Any) -> None:
    index, pods, bindings = NeedIndex(), dict[str, PodNeeds](), dict[str, str | None]()
    actions = [*(("pod", step) for step in steps), *(("node", node) for node in nodes)]
    order.shuffle(actions)
    for kind, action in actions:
        if kind == "node":
            bindings[action[0]] = action[1]
            index.set_node(*action, NOW)
            continue
        key, node, names = action
        new = needing(f"team-a/{key}", node, *sorted(names)) if node else None
        index.set_pod(pods.pop(key, None), new, NOW)
        if new is not None:
            pods[key] = new
    expected = {need.name for pod in pods.values() if bindings.get(pod.node) == "uid" for need in pod.needs}
    assert current(index, NOW + timedelta(days=1)) == expected - {""}
