"""Who may do what: the roles that are there from the start, and that nobody hands on what they do not have."""

import asyncio
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.bootstrap_roles import bootstrap_objects, reconciled_object
from tapestry.apiserver.access.rbac import PolicyRule, matches_path, uncovered_rules
from tapestry.apiserver.requests import User
from tapestry.kube.objects import Object

from .conftest import Hand

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES, BINDINGS = f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings"
GROUP = "rbac.authorization.k8s.io"
MERGE = "application/merge-patch+json"
BOB = User("bob", ("devs", "system:authenticated"))
NOBODY = User("system:anonymous", ("system:unauthenticated",))
EVERYBODY = User("jane", ("system:authenticated",))


def a_role(name: str, *rules: Object, **more: Any) -> Object:
    return {"metadata": {"name": name}, "rules": list(rules), **more}


def a_rule(verbs: str, resources: str, groups: str = "", **more: Any) -> Object:
    return {"verbs": verbs.split(","), "apiGroups": groups.split(","), "resources": resources.split(","), **more}


def a_binding(name: str, role: str, user: str = "bob", kind: str = "ClusterRole") -> Object:
    reference = {"apiGroup": GROUP, "kind": kind, "name": role}
    return {
        "metadata": {"name": name},
        "roleRef": reference,
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }


async def given_to_bob(call: Hand, *rules: Object) -> Hand:
    """Bob, who may write roles and bindings, and what else is given to him."""
    writing = a_rule("create,update,patch,get", "clusterroles,clusterrolebindings,roles,rolebindings", GROUP)
    await call.made(ROLES, a_role("bobs", writing, *rules))
    await call.made(BINDINGS, a_binding("bobs", "bobs"))
    return call.being(BOB)


# -- what is there from the start


async def test_kubernetes_own_roles_are_there(call: Hand) -> None:
    _, found = await call("GET", ROLES)
    names = {each["metadata"]["name"] for each in found["items"]}
    assert {"cluster-admin", "admin", "edit", "view", "system:discovery", "system:public-info-viewer"} <= names
    assert all(each["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults" for each in found["items"])
    _, admin = await call("GET", f"{ROLES}/admin")
    assert admin["aggregationRule"]["clusterRoleSelectors"]
    assert (await call("GET", f"{RBAC}/namespaces/kube-system/roles/system::leader-locking-kube-scheduler"))[0] == 200


@pytest.mark.parametrize(
    ("path", "everybody", "nobody"), [("/version", 200, 200), ("/api", 200, 403), ("/apis", 200, 403)]
)
async def test_everybody_may_discover_and_nobody_may_see_little_more_than_the_version(
    call: Hand, path: str, everybody: int, nobody: int
) -> None:
    assert (await call.being(EVERYBODY)("GET", path))[0] == everybody
    assert (await call.being(NOBODY)("GET", path))[0] == nobody


async def test_a_second_start_writes_nothing(call: Hand) -> None:
    before = call.server.verbs.store.revision
    await bootstrap.install(call.server)
    assert call.server.verbs.store.revision == before


async def test_a_start_gives_back_what_was_taken_and_keeps_what_was_added(call: Hand) -> None:
    rules = [a_rule("get", "widgets", "example.com")]
    await call("PATCH", f"{ROLES}/system:basic-user", {"rules": rules, "metadata": {"labels": None}}, kind=MERGE)
    await call("PATCH", f"{BINDINGS}/system:basic-user", {"subjects": []}, kind=MERGE)
    await bootstrap.install(call.server)
    _, role = await call("GET", f"{ROLES}/system:basic-user")
    assert role["rules"][0] == rules[0]
    assert {each["resources"][0] for each in role["rules"][1:]} == {
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
    }
    assert role["metadata"]["labels"] == {"kubernetes.io/bootstrapping": "rbac-defaults"}
    _, binding = await call("GET", f"{BINDINGS}/system:basic-user")
    assert [each["name"] for each in binding["subjects"]] == ["system:authenticated"]


async def test_a_start_leaves_alone_what_says_so(call: Hand) -> None:
    annotations = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
    await call(
        "PATCH", f"{ROLES}/view", {"metadata": {"annotations": annotations}, "aggregationRule": None}, kind=MERGE
    )
    await bootstrap.install(call.server)
    assert "aggregationRule" not in (await call("GET", f"{ROLES}/view"))[1]


async def test_a_binding_to_another_role_is_made_anew(call: Hand) -> None:
    await call("DELETE", f"{BINDINGS}/system:discovery")
    await call.made(BINDINGS, a_binding("system:discovery", "cluster-admin"))
    await bootstrap.install(call.server)
    _, binding = await call("GET", f"{BINDINGS}/system:discovery")
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("system:discovery", "system:authenticated")


async def test_two_servers_that_start_at_once_do_not_mind_each_other(call: Hand) -> None:
    for name in ("view", "edit", "system:discovery"):
        await call("DELETE", f"{ROLES}/{name}")
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(bootstrap.install(call.server))
    assert [(await call("GET", f"{ROLES}/{name}"))[0] for name in ("view", "edit", "system:discovery")] == [200] * 3


def test_what_is_as_expected_is_reconciled_to_itself() -> None:
    for _, obj in bootstrap_objects():
        assert reconciled_object(obj, obj) is obj


# -- escalation


async def test_a_role_with_more_than_its_writer_has_is_refused_in_kubernetes_words(call: Hand) -> None:
    bob = await given_to_bob(call, a_rule("get,list", "pods"))
    role = a_role("r", a_rule("get,list,watch", "pods,nodes"), {"verbs": ["get"], "nonResourceURLs": ["/metrics"]})
    status, found = await bob("POST", ROLES, role)
    assert (status, found["reason"], found["details"]["name"]) == (403, "Forbidden", "r")
    assert found["message"] == (
        'clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["devs" "system:authenticated"]) '
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["nodes"], Verbs:["get" "list" "watch"]}\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}\n'
        '{NonResourceURLs:["/metrics"], Verbs:["get"]}'
    )


async def test_what_one_has_one_may_give(call: Hand) -> None:
    bob = await given_to_bob(call, a_rule("get,list", "pods"))
    assert (await bob("POST", ROLES, a_role("r", a_rule("get", "pods", resourceNames=["a"]))))[0] == 201
    assert (await bob("POST", BINDINGS, a_binding("r", "r", "joe")))[0] == 201


async def test_whoever_may_escalate_gives_anything(call: Hand) -> None:
    bob = await given_to_bob(call, a_rule("escalate", "clusterroles", GROUP))
    assert (await bob("POST", ROLES, a_role("r", a_rule("*", "*", "*"))))[0] == 201
    status, found = await bob("POST", BINDINGS, a_binding("r", "r"))
    assert (status, '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}' in found["message"]) == (403, True)


async def test_whoever_may_bind_a_role_binds_it_and_no_other(call: Hand) -> None:
    bob = await given_to_bob(call, a_rule("bind", "clusterroles", GROUP, resourceNames=["cluster-admin"]))
    await call.made(ROLES, a_role("other", a_rule("get", "secrets")))
    assert (await bob("POST", BINDINGS, a_binding("a", "cluster-admin")))[0] == 201
    # he is somebody else's cluster admin now only if he bound himself
    assert (await call("DELETE", f"{BINDINGS}/a"))[0] == 200
    assert (await bob("POST", BINDINGS, a_binding("b", "other")))[0] == 403


async def test_a_role_that_is_not_there_cannot_be_bound_by_those_who_would_have_to_hold_it(call: Hand) -> None:
    bob = await given_to_bob(call)
    status, found = await bob("POST", BINDINGS, a_binding("a", "ghost"))
    assert (status, found["message"]) == (404, 'clusterrolebindings.rbac.authorization.k8s.io "ghost" not found')
    assert (await call("POST", BINDINGS, a_binding("a", "ghost")))[0] == 201


async def test_aggregation_is_for_those_who_may_do_everything(call: Hand) -> None:
    bob = await given_to_bob(call)
    selector = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    status, found = await bob("POST", ROLES, a_role("r", aggregationRule=selector))
    assert (status, found["message"].partition("forbidden: ")[2]) == (
        403,
        "must have cluster-admin privileges to use the aggregationRule",
    )


async def test_a_change_of_a_role_is_judged_by_what_it_then_gives(call: Hand) -> None:
    bob = await given_to_bob(call, a_rule("get", "pods"))
    await call.made(ROLES, a_role("r", a_rule("get", "secrets")))
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await bob("PATCH", f"{ROLES}/r", labels, kind=MERGE))[0] == 403
    finalizers = {"metadata": {"finalizers": ["example.com/wait"]}}
    assert (await bob("PATCH", f"{ROLES}/r", finalizers, kind=MERGE))[0] == 200
    assert (await bob("PATCH", f"{ROLES}/r", {"rules": [a_rule("get", "pods")]}, kind=MERGE))[0] == 200


async def test_rights_in_a_namespace_can_be_given_there_and_nowhere_else(call: Hand) -> None:
    here = f"{RBAC}/namespaces/default"
    writing = a_rule("create", "roles,rolebindings", GROUP)
    await call.made(f"{here}/roles", a_role("bobs", writing, a_rule("get", "pods")))
    await call.made(f"{here}/rolebindings", a_binding("bobs", "bobs", kind="Role"))
    bob = call.being(BOB)
    assert (await bob("POST", f"{here}/roles", a_role("r", a_rule("get", "pods"))))[0] == 201
    assert (await bob("POST", f"{here}/roles", a_role("s", a_rule("get", "secrets"))))[0] == 403
    assert (await bob("POST", f"{RBAC}/namespaces/kube-public/roles", a_role("r", a_rule("get", "pods"))))[0] == 403


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere", 'forbidden: User "jane" cannot get path "/nowhere"'),
        (
            "/apis/example.com/v1/namespaces/default/widgets",
            'widgets.example.com is forbidden: User "jane" cannot list resource "widgets" in API group "example.com" '
            'in the namespace "default"',
        ),
    ],
)
async def test_what_is_not_there_is_said_only_to_those_who_might_see_it(call: Hand, path: str, message: str) -> None:
    status, found = await call.being(EVERYBODY)("GET", path)
    assert (status, found["message"]) == (403, message)
    assert (await call("GET", path))[0] == 404


# -- why


async def test_a_review_says_by_what_somebody_may(call: Hand) -> None:
    await given_to_bob(call, a_rule("get", "pods"))
    spec = {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    _, found = await call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert found["status"] == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "bobs" of ClusterRole "bobs" to User "bob"',
    }
    spec["resourceAttributes"] = {"verb": "get", "resource": "secrets"}
    _, found = await call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert found["status"] == {"allowed": False}


# -- rules

words = st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=3, unique=True).map(tuple)
resources = st.lists(st.sampled_from(["a", "b", "a/x", "b/x", "*/x", "*"]), min_size=1, max_size=3, unique=True)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2, unique=True).map(tuple)
rules = st.one_of(
    st.builds(PolicyRule, words, words, resources.map(tuple), names),
    st.builds(PolicyRule, words, paths=st.lists(st.sampled_from(["/a", "/a/*", "/b", "*"]), min_size=1).map(tuple)),
)


def single(rule: PolicyRule) -> Iterator[PolicyRule]:
    """The rule in its smallest parts."""
    for group, resource, verb in product(rule.groups, rule.resources, rule.verbs):
        for name in rule.names or ("",):
            yield PolicyRule((verb,), (group,), (resource,), (name,) if name else ())
    for path, verb in product(rule.paths, rule.verbs):
        yield PolicyRule((verb,), paths=(path,))


def is_within(part: PolicyRule, whole: PolicyRule) -> bool:
    if part.verbs[0] not in whole.verbs and "*" not in whole.verbs:
        return False
    if part.paths:
        return any(matches_path(own, part.paths[0]) for own in whole.paths)
    if part.groups[0] not in whole.groups and "*" not in whole.groups:
        return False
    [resource] = part.resources
    _, slash, subresource = resource.partition("/")
    known = (resource, "*", *((f"*/{subresource}",) if slash else ()))
    if not any(each in whole.resources for each in known):
        return False
    return not whole.names or (bool(part.names) and part.names[0] in whole.names)


@given(st.lists(rules, max_size=4), st.lists(rules, max_size=4))
def test_uncovered_rights_are_those_of_each_single_part(wanted: list[PolicyRule], held: list[PolicyRule]) -> None:
    missing = uncovered_rules(wanted, held)
    singles = [part for rule in wanted for part in single(rule) if not any(is_within(part, own) for own in held)]
    assert list(dict.fromkeys(missing)) == list(dict.fromkeys(singles))
    assert uncovered_rules(wanted, [*held, *missing]) == []


@given(rules)
def test_a_rule_covers_itself_and_masters_cover_it(rule: PolicyRule) -> None:
    assert uncovered_rules([rule], [rule]) == []
    assert uncovered_rules([rule], [PolicyRule(("*",), ("*",), ("*",)), PolicyRule(("*",), paths=("*",))]) == []


async def test_who_may_see_one_object_may_list_and_watch_it_by_its_name(call: Hand) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["list", "watch"]}
    await call.made(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "one"}, "rules": [rule]})
    subject = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "one", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "one"}, "subjects": [subject], "roleRef": reference}
    await call.made(f"{RBAC}/namespaces/default/rolebindings", binding)
    jane = Hand(call.server, call.accounts, User("jane"))
    path = "/api/v1/namespaces/default/configmaps"
    assert (await jane("GET", path, fieldSelector="metadata.name=mine"))[0] == 200
    assert (await jane("GET", path, fieldSelector="metadata.name=yours"))[0] == 403
    assert (await jane("GET", path))[0] == 403
