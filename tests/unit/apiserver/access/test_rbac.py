"""RBAC: default roles, privilege escalation checks and rule coverage."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.bootstrap_roles import bootstrap_objects, reconciled_object
from tapestry.apiserver.access.rbac import PolicyRule, RbacAuthorizer, matches_path, uncovered_rules
from tapestry.apiserver.assembly import ServerThreads, open_server
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import User
from tapestry.kube.objects import Object

from ..conftest import ServerClient

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES, BINDINGS = f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings"
GROUP = "rbac.authorization.k8s.io"
MERGE = "application/merge-patch+json"
BOB = User("bob", ("devs", "system:authenticated"))
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED = User("jane", ("system:authenticated",))


def new_role(name: str, *rules: Object, **more: Any) -> Object:
    return {"metadata": {"name": name}, "rules": list(rules), **more}


def new_rule(verbs: str, resources: str, groups: str = "", **more: Any) -> Object:
    return {"verbs": verbs.split(","), "apiGroups": groups.split(","), "resources": resources.split(","), **more}


def new_binding(name: str, role: str, user: str = "bob", kind: str = "ClusterRole") -> Object:
    reference = {"apiGroup": GROUP, "kind": kind, "name": role}
    return {
        "metadata": {"name": name},
        "roleRef": reference,
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }


async def grant_to_bob(call: ServerClient, *rules: Object) -> ServerClient:
    """Let Bob write roles and bindings, and grant him these rules; return his client."""
    writing = new_rule("create,update,patch,get", "clusterroles,clusterrolebindings,roles,rolebindings", GROUP)
    await call.made(ROLES, new_role("bobs", writing, *rules))
    await call.made(BINDINGS, new_binding("bobs", "bobs"))
    return call.being(BOB)


# -- default roles


async def test_default_roles_are_installed(call: ServerClient) -> None:
    _, result = await call("GET", ROLES)
    names = {each["metadata"]["name"] for each in result["items"]}
    assert {"cluster-admin", "admin", "edit", "view", "system:discovery", "system:public-info-viewer"} <= names
    assert all(each["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults" for each in result["items"])
    _, admin = await call("GET", f"{ROLES}/admin")
    assert admin["aggregationRule"]["clusterRoleSelectors"]
    assert (await call("GET", f"{RBAC}/namespaces/kube-system/roles/system::leader-locking-kube-scheduler"))[0] == 200


@pytest.mark.parametrize(
    ("path", "authenticated", "anonymous"), [("/version", 200, 200), ("/api", 200, 403), ("/apis", 200, 403)]
)
async def test_discovery_requires_authentication_except_version(
    call: ServerClient, path: str, authenticated: int, anonymous: int
) -> None:
    assert (await call.being(AUTHENTICATED)("GET", path))[0] == authenticated
    assert (await call.being(ANONYMOUS)("GET", path))[0] == anonymous


async def test_second_start_writes_nothing(call: ServerClient) -> None:
    before = call.server.verbs.store.revision
    await bootstrap.install(call.server)
    assert call.server.verbs.store.revision == before


async def test_start_restores_removed_and_keeps_added_rules(call: ServerClient) -> None:
    rules = [new_rule("get", "widgets", "example.com")]
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


async def test_start_skips_objects_without_autoupdate(call: ServerClient) -> None:
    annotations = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
    await call(
        "PATCH", f"{ROLES}/view", {"metadata": {"annotations": annotations}, "aggregationRule": None}, kind=MERGE
    )
    await bootstrap.install(call.server)
    assert "aggregationRule" not in (await call("GET", f"{ROLES}/view"))[1]


async def test_binding_to_another_role_is_recreated(call: ServerClient) -> None:
    await call("DELETE", f"{BINDINGS}/system:discovery")
    await call.made(BINDINGS, new_binding("system:discovery", "cluster-admin"))
    await bootstrap.install(call.server)
    _, binding = await call("GET", f"{BINDINGS}/system:discovery")
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("system:discovery", "system:authenticated")


async def test_two_servers_can_start_concurrently(call: ServerClient) -> None:
    for name in ("view", "edit", "system:discovery"):
        await call("DELETE", f"{ROLES}/{name}")
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(bootstrap.install(call.server))
    assert [(await call("GET", f"{ROLES}/{name}"))[0] for name in ("view", "edit", "system:discovery")] == [200] * 3


def test_expected_object_is_reconciled_to_itself() -> None:
    for obj in bootstrap_objects().values():
        assert reconciled_object(obj, obj) is obj


async def test_parsed_bootstrap_objects_are_shared(tmp_path: Path) -> None:
    with closing(ServerThreads()) as threads:
        indexes = []
        for name in ("a", "b"):
            config = ApiServerConfig(backend="memory", file_rootpath=str(tmp_path / name))
            async with open_server(config, threads) as opened:
                assert isinstance(opened.server.authorize, RbacAuthorizer)
                indexes.append(opened.server.authorize.roles)
        for name in ("admin", "view", "system:discovery"):
            assert indexes[0].rules("", name) is indexes[1].rules("", name) is not None
        user = User("someone", ("system:authenticated",))
        one, other = (list(each.grants(user, "")) for each in indexes)
        assert one
        assert all(first is second for first, second in zip(one, other, strict=True))


async def test_changed_bootstrap_role_has_its_own_rules(call: ServerClient) -> None:
    _, role = await call("GET", f"{ROLES}/view")
    await call("PUT", f"{ROLES}/view", {**role, "rules": [new_rule("get", "widgets")]})
    assert isinstance(call.server.authorize, RbacAuthorizer)
    rules = call.server.authorize.roles.rules("", "view") or ()
    assert [(each.verbs, each.resources) for each in rules] == [(("get",), ("widgets",))]


# -- escalation


async def test_role_beyond_rights_of_writer_is_rejected(call: ServerClient) -> None:
    bob = await grant_to_bob(call, new_rule("get,list", "pods"))
    role = new_role("r", new_rule("get,list,watch", "pods,nodes"), {"verbs": ["get"], "nonResourceURLs": ["/metrics"]})
    status, result = await bob("POST", ROLES, role)
    assert (status, result["reason"], result["details"]["name"]) == (403, "Forbidden", "r")
    assert result["message"] == (
        'clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["devs" "system:authenticated"]) '
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["nodes"], Verbs:["get" "list" "watch"]}\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}\n'
        '{NonResourceURLs:["/metrics"], Verbs:["get"]}'
    )


async def test_held_rights_can_be_granted(call: ServerClient) -> None:
    bob = await grant_to_bob(call, new_rule("get,list", "pods"))
    assert (await bob("POST", ROLES, new_role("r", new_rule("get", "pods", resourceNames=["a"]))))[0] == 201
    assert (await bob("POST", BINDINGS, new_binding("r", "r", "joe")))[0] == 201


async def test_escalate_allows_any_role(call: ServerClient) -> None:
    bob = await grant_to_bob(call, new_rule("escalate", "clusterroles", GROUP))
    assert (await bob("POST", ROLES, new_role("r", new_rule("*", "*", "*"))))[0] == 201
    status, result = await bob("POST", BINDINGS, new_binding("r", "r"))
    assert (status, '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}' in result["message"]) == (403, True)


async def test_bind_allows_only_the_named_role(call: ServerClient) -> None:
    bob = await grant_to_bob(call, new_rule("bind", "clusterroles", GROUP, resourceNames=["cluster-admin"]))
    await call.made(ROLES, new_role("other", new_rule("get", "secrets")))
    assert (await bob("POST", BINDINGS, new_binding("a", "cluster-admin")))[0] == 201
    # otherwise he would be cluster-admin now
    assert (await call("DELETE", f"{BINDINGS}/a"))[0] == 200
    assert (await bob("POST", BINDINGS, new_binding("b", "other")))[0] == 403


async def test_missing_role_can_be_bound_only_by_masters(call: ServerClient) -> None:
    bob = await grant_to_bob(call)
    status, result = await bob("POST", BINDINGS, new_binding("a", "ghost"))
    assert (status, result["message"]) == (404, 'clusterrolebindings.rbac.authorization.k8s.io "ghost" not found')
    assert (await call("POST", BINDINGS, new_binding("a", "ghost")))[0] == 201


async def test_aggregation_rule_requires_all_rights(call: ServerClient) -> None:
    bob = await grant_to_bob(call)
    selector = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    status, result = await bob("POST", ROLES, new_role("r", aggregationRule=selector))
    assert (status, result["message"].partition("forbidden: ")[2]) == (
        403,
        "must have cluster-admin privileges to use the aggregationRule",
    )


async def test_role_update_is_checked_against_result(call: ServerClient) -> None:
    bob = await grant_to_bob(call, new_rule("get", "pods"))
    await call.made(ROLES, new_role("r", new_rule("get", "secrets")))
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await bob("PATCH", f"{ROLES}/r", labels, kind=MERGE))[0] == 403
    finalizers = {"metadata": {"finalizers": ["example.com/wait"]}}
    assert (await bob("PATCH", f"{ROLES}/r", finalizers, kind=MERGE))[0] == 200
    assert (await bob("PATCH", f"{ROLES}/r", {"rules": [new_rule("get", "pods")]}, kind=MERGE))[0] == 200


async def test_namespaced_rights_can_be_granted_only_there(call: ServerClient) -> None:
    here = f"{RBAC}/namespaces/default"
    writing = new_rule("create", "roles,rolebindings", GROUP)
    await call.made(f"{here}/roles", new_role("bobs", writing, new_rule("get", "pods")))
    await call.made(f"{here}/rolebindings", new_binding("bobs", "bobs", kind="Role"))
    bob = call.being(BOB)
    assert (await bob("POST", f"{here}/roles", new_role("r", new_rule("get", "pods"))))[0] == 201
    assert (await bob("POST", f"{here}/roles", new_role("s", new_rule("get", "secrets"))))[0] == 403
    assert (await bob("POST", f"{RBAC}/namespaces/kube-public/roles", new_role("r", new_rule("get", "pods"))))[0] == 403


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
async def test_missing_resource_is_reported_only_if_authorized(call: ServerClient, path: str, message: str) -> None:
    status, result = await call.being(AUTHENTICATED)("GET", path)
    assert (status, result["message"]) == (403, message)
    assert (await call("GET", path))[0] == 404


# -- reviews


async def test_access_review_states_the_reason(call: ServerClient) -> None:
    await grant_to_bob(call, new_rule("get", "pods"))
    spec = {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    _, result = await call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert result["status"] == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "bobs" of ClusterRole "bobs" to User "bob"',
    }
    spec["resourceAttributes"] = {"verb": "get", "resource": "secrets"}
    _, result = await call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert result["status"] == {"allowed": False}


# -- rules

words = st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=3, unique=True).map(tuple)
resources = st.lists(st.sampled_from(["a", "b", "a/x", "b/x", "*/x", "*"]), min_size=1, max_size=3, unique=True)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2, unique=True).map(tuple)
rules = st.one_of(
    st.builds(PolicyRule, words, words, resources.map(tuple), names),
    st.builds(PolicyRule, words, paths=st.lists(st.sampled_from(["/a", "/a/*", "/b", "*"]), min_size=1).map(tuple)),
)


def single_rules(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Yield the smallest parts of a rule."""
    for group, resource, verb in product(rule.groups, rule.resources, rule.verbs):
        for name in rule.names or ("",):
            yield PolicyRule((verb,), (group,), (resource,), (name,) if name else ())
    for path, verb in product(rule.paths, rule.verbs):
        yield PolicyRule((verb,), paths=(path,))


def is_within(part: PolicyRule, whole: PolicyRule) -> bool:
    if part.verbs[0] not in whole.verbs and "*" not in whole.verbs:
        return False
    if part.paths:
        return any(matches_path(path, part.paths[0]) for path in whole.paths)
    if part.groups[0] not in whole.groups and "*" not in whole.groups:
        return False
    [resource] = part.resources
    _, slash, subresource = resource.partition("/")
    known = (resource, "*", *((f"*/{subresource}",) if slash else ()))
    if not any(each in whole.resources for each in known):
        return False
    return not whole.names or (bool(part.names) and part.names[0] in whole.names)


@given(st.lists(rules, max_size=4), st.lists(rules, max_size=4))
def test_uncovered_rules_match_single_part_comparison(required: list[PolicyRule], held: list[PolicyRule]) -> None:
    missing = uncovered_rules(required, held)
    singles = [
        part for rule in required for part in single_rules(rule) if not any(is_within(part, each) for each in held)
    ]
    assert list(dict.fromkeys(missing)) == list(dict.fromkeys(singles))
    assert uncovered_rules(required, [*held, *missing]) == []


@given(rules)
def test_rule_is_covered_by_itself_and_by_masters(rule: PolicyRule) -> None:
    assert uncovered_rules([rule], [rule]) == []
    assert uncovered_rules([rule], [PolicyRule(("*",), ("*",), ("*",)), PolicyRule(("*",), paths=("*",))]) == []


async def test_named_object_can_be_listed_by_its_name(call: ServerClient) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["list", "watch"]}
    await call.made(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "one"}, "rules": [rule]})
    subject = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "one", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "one"}, "subjects": [subject], "roleRef": reference}
    await call.made(f"{RBAC}/namespaces/default/rolebindings", binding)
    jane = ServerClient(call.server, call.accounts, User("jane"))
    path = "/api/v1/namespaces/default/configmaps"
    assert (await jane("GET", path, fieldSelector="metadata.name=mine"))[0] == 200
    assert (await jane("GET", path, fieldSelector="metadata.name=yours"))[0] == 403
    assert (await jane("GET", path))[0] == 403
