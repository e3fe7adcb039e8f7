"""Plain REST API over a complete API server in this process."""

from typing import Any

import pytest

from tapestry.apiext import lists, rest_api
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.core.requests import User
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS, CRDS, SECRETS, Resource

from .conftest import WIDGETS, Page, new_definition


async def create_widget(page: Page, name: str, **spec: Any) -> None:
    status, found = await page("POST", "/v1/widgets", {"name": name, "spec": spec})
    assert status == 201, found


async def set_phase(page: Page, name: str, phase: str) -> None:
    status = {"status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True", "reason": "Fine"}]}}
    await page.client.patch(WIDGETS, object_named(name, "default"), status, subresource="status")


async def test_created_object_is_flat_and_can_be_posted_again(page: Page) -> None:
    body = {"name": "a", "labels": {"app": "web"}, "spec": {"color": "red", "tags": ["x", "y"]}}
    created = await page.reply("POST", "/v1/widgets", body)
    assert created.status == 201
    assert created.headers["Location"] == "/apiext/v1/widgets.example.com/a?namespace=default"
    await set_phase(page, "a", "Running")
    status, found = await page("GET", "/v1/widgets/a")
    assert status == 200
    assert found["uid"]
    assert found["created"]
    assert {name: found[name] for name in ("kind", "name", "namespace", "deleting")} == {
        "kind": "Widget",
        "name": "a",
        "namespace": "default",
        "deleting": False,
    }
    assert found["labels"] == {"app": "web"}
    assert found["spec"] == {"color": "red", "tags": ["x", "y"]}
    assert found["phase"] == "Running"
    assert found["conditions"]["Ready"]["reason"] == "Fine"

    status, again = await page("POST", "/v1/widgets", {**found, "name": "b"})
    assert status == 201
    assert again["spec"] == found["spec"]
    assert again["labels"] == found["labels"]
    assert again["phase"] is None


async def test_object_with_metadata_can_be_posted(page: Page) -> None:
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"generateName": "w-"}, "spec": {"size": 1}}
    status, found = await page("POST", "/v1/widgets", body, namespace="kube-public")
    assert status == 201
    assert found["name"].startswith("w-")
    assert found["namespace"] == "kube-public"


async def test_kind_has_several_names_and_appears_when_defined(page: Page) -> None:
    assert await page.names("/v1/widgets") == []
    gadgets = Resource("example.com", "v1", "Gadget", "gadgets", namespaced=False)
    await page.client.create(CRDS, new_definition(gadgets))
    for name in ("gadgets", "gadget", "Gadget", "gadgets.example.com"):
        assert await page.names(f"/v1/{name}") == []
    assert await page.error("POST", "/v1/gadgets", {"name": "g", "namespace": "default"}) == (
        400,
        "namespace: gadgets.example.com are not namespaced; omit it",
    )
    assert (await page("POST", "/v1/gadgets", {"name": "g"}))[0] == 201


async def test_ambiguous_name_means_core_group(page: Page) -> None:
    for group in ("one.example", "two.example"):
        await page.client.create(CRDS, new_definition(Resource(group, "v1", "Thing", "things")))
        await page.client.create(CRDS, new_definition(Resource(group, "v1", "Pod", "pods")))
    assert await page.error("GET", "/v1/things") == (
        400,
        "kind 'things' is ambiguous; use things.one.example or things.two.example",
    )
    assert await page.names("/v1/things.two.example") == []
    _, index = await page("GET", "/v1")
    names = [each["name"] for each in index["kinds"]]
    assert {"pods", "pods.one.example", "things.one.example", "widgets", "deployments"} <= set(names)
    assert len(names) == len(set(names))


async def test_index_lists_verbs_of_each_kind(page: Page) -> None:
    _, index = await page("GET", "/v1")
    (widgets,) = [each for each in index["kinds"] if each["name"] == "widgets"]
    assert widgets == {
        "name": "widgets",
        "kind": "Widget",
        "group": "example.com",
        "version": "v1",
        "namespaced": True,
        "shortNames": ["wi"],
        "verbs": ["list", "get", "watch", "create", "update", "patch", "delete"],
        "actions": [],
        "path": "/apiext/v1/widgets",
    }


async def test_only_configured_kinds_are_served(page: Page) -> None:
    narrow = Page(page.server, RestApi(ResourceMapper(["*.example.com", "configmaps"])))
    _, index = await narrow("GET", "/v1")
    assert [each["name"] for each in index["kinds"]] == ["configmaps", "widgets"]
    assert await narrow.error("GET", "/v1/secrets") == (
        404,
        "no kind 'secrets'; /apiext/v1 lists the available kinds",
    )


async def test_lists_are_filtered_sorted_and_paged(page: Page) -> None:
    for name, size in (("web-1", 10), ("web-2", 9), ("db", 30), ("web-3", 2)):
        await create_widget(page, name, size=size, color="red")
    await set_phase(page, "web-1", "Running")
    await set_phase(page, "db", "Running")
    assert await page.names("/v1/widgets", filter="phase=Running,name~WEB") == ["web-1"]
    assert await page.names("/v1/widgets", filter="phase!=Running", sort="name") == ["web-2", "web-3"]
    assert await page.names("/v1/widgets", filter="conditions.Ready.status=True", sort="-name") == ["web-1", "db"]
    assert await page.names("/v1/widgets", sort="spec.size") == ["web-3", "web-2", "web-1", "db"]
    assert await page.names("/v1/widgets", sort="spec.color,-spec.size") == ["db", "web-1", "web-2", "web-3"]
    _, second = await page("GET", "/v1/widgets", sort="name", limit="3", page="2")
    assert [each["name"] for each in second["items"]] == ["web-3"]
    assert (second["total"], second["page"], second["pages"], second["next"]) == (4, 2, 2, None)
    assert await page.names("/v1/widgets", page="9") == []


async def test_cursor_follows_server_pages_without_filter(page: Page) -> None:
    for number in range(5):
        await create_widget(page, f"w{number}")
    seen, query, totals = [], {"limit": "2"}, []
    while True:
        _, found = await page("GET", "/v1/widgets", **query)
        seen += [each["name"] for each in found["items"]]
        totals.append(found["total"])
        if found["next"] is None:
            break
        query = {"limit": "2", "cursor": found["next"]}
    assert seen == ["w0", "w1", "w2", "w3", "w4"]
    assert totals[0] == 5
    status, message = await page.error("GET", "/v1/widgets", cursor="nonsense")
    assert status == 400
    assert "continue" in message


async def test_list_covers_one_or_all_namespaces(page: Page) -> None:
    await create_widget(page, "here")
    await page("POST", "/v1/widgets", {"name": "there", "namespace": "kube-public"})
    assert await page.names("/v1/widgets") == ["here", "there"]
    assert await page.names("/v1/widgets", namespace="kube-public") == ["there"]
    assert (await page.error("GET", "/v1/widgets/there"))[0] == 404
    assert (await page("GET", "/v1/widgets/there", namespace="kube-public"))[0] == 200


async def test_lists_show_keys_but_never_values_of_data(page: Page) -> None:
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"password": "hunter2"}}
    await page.client.create(SECRETS, secret)
    await page.client.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": "b"}})
    _, found = await page("GET", "/v1/secrets", filter="name=s")
    assert found["items"][0]["data"] == ["password"]
    _, found = await page("GET", "/v1/configmaps/c")
    assert found["data"] == {"a": "b"}


async def test_deleted_object_is_gone_or_pending(page: Page) -> None:
    await create_widget(page, "a")
    assert await page("DELETE", "/v1/widgets/a") == (200, {"name": "a", "namespace": "default", "deleted": True})
    assert await page.error("DELETE", "/v1/widgets/a") == (404, 'widgets.example.com "a" not found')
    held = {"metadata": {"name": "b", "finalizers": ["example.com/hold"]}}
    await page("POST", "/v1/widgets", held)
    assert await page("DELETE", "/v1/widgets/b") == (202, {"name": "b", "namespace": "default", "deleted": False})
    assert (await page("GET", "/v1/widgets/b"))[1]["deleting"] is True


async def test_caller_needs_permission(page: Page) -> None:
    await create_widget(page, "a")
    await page.names("/v1/widgets")  # the kinds are now cached
    eve = page.as_user(User("eve"))
    for method, path, verb in (
        ("GET", "/v1/widgets", "list"),
        ("GET", "/v1/widgets/a", "get"),
        ("DELETE", "/v1/widgets/a", "delete"),
    ):
        status, message = await eve.error(method, path)
        assert status == 403
        assert f'User "eve" cannot {verb} resource "widgets"' in message
    status, message = await eve.error("POST", "/v1/widgets", {"name": "b"})
    assert status == 403
    assert message.startswith("you may not create widgets.example.com in namespace default; ask for a Role")
    assert (await page("GET", "/v1/widgets/a"))[0] == 200


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"filter": "phase"}, "write field=text, field!=text, field~part or field!~part"),
        ({"filter": "phas=x"}, "filter: there is no field 'phas'; use kind, name,"),
        ({"sort": "size"}, "sort: there is no field 'size'"),
        ({"limit": "0"}, "limit: '0' is not a number from 1 to 500"),
        ({"limit": "501"}, "limit: '501' is not a number from 1 to 500"),
        ({"page": "x"}, "page: 'x' is not a number from 1 on"),
        ({"lmit": "1"}, "lmit: no such parameter; valid are namespace, filter,"),
        ({"cursor": "x", "sort": "name"}, "cursor: not allowed with filter, sort or page"),
        ({"namespace": "a/b"}, "'a/b' may not be a name"),
    ],
)
async def test_invalid_query_is_rejected_with_advice(page: Page, query: dict[str, str], expected: str) -> None:
    status, message = await page.error("GET", "/v1/widgets", **query)
    assert status == 400
    assert expected in message


@pytest.mark.parametrize(
    ("body", "code", "expected"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        ([1], 400, "the body is not an object; send"),
        ({"spec": {}}, 400, "name: missing; send"),
        ({"name": "a", "kind": "Gadget"}, 400, "kind: 'Gadget' was sent to widgets.example.com"),
        ({"metadata": "a"}, 400, "metadata: this is not an object"),
        ({"name": "a", "spec": {"colour": "red"}}, 400, 'unknown field "spec.colour"'),
        ({"nam": "a", "name": "b"}, 400, 'unknown field "nam"'),
        ({"name": "a", "spec": {"color": 1}}, 422, "spec.color"),
        ({"name": "a", "namespace": "nowhere"}, 404, 'namespaces "nowhere" not found'),
        ({"name": "a", "namespace": 1}, 400, ""),
    ],
)
async def test_invalid_object_is_rejected_with_message(page: Page, body: Any, code: int, expected: str) -> None:
    status, message = await page.error("POST", "/v1/widgets", body)
    assert status == code
    assert expected in message


async def test_invalid_fields_are_named(page: Page) -> None:
    _, found = await page("POST", "/v1/widgets", {"name": "a", "spec": {"color": 1}})
    assert [each["field"] for each in found["fields"]] == ["spec.color"]


async def test_two_namespaces_in_one_request_are_rejected(page: Page) -> None:
    body = {"name": "a", "namespace": "default"}
    assert await page.error("POST", "/v1/widgets", body, namespace="kube-public") == (
        400,
        "namespace: 'default' in the body and 'kube-public' in the query; use one",
    )


async def test_unsupported_method_names_supported_ones(page: Page) -> None:
    reply = await page.reply("POST", "/v1/widgets/a", {})
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, PUT, PATCH, DELETE"
    assert (await page.error("GET", "/v2/widgets"))[0] == 404
    assert (await page.reply("POST", "/v1/widgets", {"name": "a"}, kind="text/plain")).status == 415
    assert (await page.error("GET", "/v1/widgets/a", filter="x=y"))[0] == 400


async def test_put_replaces_all_but_status_and_owners(page: Page) -> None:
    await create_widget(page, "a", color="red", size=1)
    await page.client.patch(WIDGETS, object_named("a", "default"), {"metadata": {"finalizers": ["example.com/keep"]}})
    await set_phase(page, "a", "Running")
    status, found = await page("PUT", "/v1/widgets/a", {"labels": {"app": "web"}, "spec": {"color": "blue"}})
    assert (status, found["spec"], found["labels"], found["phase"]) == (
        200,
        {"color": "blue"},
        {"app": "web"},
        "Running",
    )
    stored = await page.client.get(WIDGETS, "a", "default")
    assert stored["metadata"]["finalizers"] == ["example.com/keep"]
    assert (await page.error("PUT", "/v1/widgets/b", {"spec": {}}))[0] == 404
    assert (await page.error("PUT", "/v1/widgets/a", {"name": "b"}))[0] == 400
    assert (await page.error("PUT", "/v1/widgets/a", {"spec": {"colour": "red"}}))[0] == 400


async def test_change_with_old_version_is_rejected(page: Page) -> None:
    await create_widget(page, "a", size=1)
    _, found = await page("GET", "/v1/widgets/a")
    status, changed = await page("PUT", "/v1/widgets/a", {**found, "spec": {"size": 2}})
    assert (status, changed["spec"]) == (200, {"size": 2})
    assert (await page.error("PUT", "/v1/widgets/a", {**found, "spec": {"size": 3}}))[0] == 409
    assert (await page.error("PATCH", "/v1/widgets/a", {"version": found["version"], "spec": {"size": 3}}))[0] == 409
    status, changed = await page("PATCH", "/v1/widgets/a", {"version": changed["version"], "spec": {"size": 3}})
    assert (status, changed["spec"]) == (200, {"size": 3})


async def test_put_accepts_complete_object(page: Page) -> None:
    await create_widget(page, "a", size=1)
    stored = await page.client.get(WIDGETS, "a", "default")
    status, found = await page("PUT", "/v1/widgets/a", {**stored, "spec": {"size": 2}})
    assert (status, found["spec"]) == (200, {"size": 2})
    assert (await page.error("PUT", "/v1/widgets/a", stored))[0] == 409


async def test_put_without_version_succeeds_after_conflicts(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_widget(page, "a", size=1)
    send, failures = rest_api.send_for_object, [Conflict(409, "Conflict", "changed")] * 2

    async def conflicting(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await send(*arguments)

    monkeypatch.setattr(rest_api, "send_for_object", conflicting)
    assert (await page("PUT", "/v1/widgets/a", {"spec": {"size": 2}}))[0] == 200
    failures += [Conflict(409, "Conflict", "changed")] * 9
    assert (await page.error("PUT", "/v1/widgets/a", {"spec": {"size": 3}}))[0] == 409


async def test_patch_changes_only_given_fields(page: Page) -> None:
    await create_widget(page, "a", color="red", size=1)
    status, found = await page("PATCH", "/v1/widgets/a", {"labels": {"x": "y"}, "spec": {"size": 2, "color": None}})
    assert (status, found["spec"], found["labels"]) == (200, {"size": 2}, {"x": "y"})
    operations = [{"op": "replace", "path": "/spec/size", "value": 3}]
    reply = await page.reply("PATCH", "/v1/widgets/a", operations, kind="application/json-patch+json")
    assert reply.status == 200
    assert (await page.client.get(WIDGETS, "a", "default"))["spec"] == {"size": 3}
    for body in ({"phase": "Done"}, {"name": "b"}, {"spec": {"colour": 1}}, []):
        assert (await page.error("PATCH", "/v1/widgets/a", body))[0] == 400
    assert (await page.reply("PATCH", "/v1/widgets/a", {}, kind="application/apply-patch+yaml")).status == 415


async def test_changes_need_rights_of_their_own(page: Page) -> None:
    await create_widget(page, "a")
    bob = page.as_user(User("bob"))
    for method in ("PUT", "PATCH"):
        assert (await bob.error(method, "/v1/widgets/a", {"spec": {}}))[0] == 403


async def test_short_names_find_resources(page: Page) -> None:
    await create_widget(page, "a")
    assert await page.names("/v1/wi") == ["a"]
    assert (await page("GET", "/v1/cm"))[0] == 200
    assert (await page.error("GET", "/v1/xx"))[0] == 404
    await page.client.create(CRDS, new_definition(Resource("other.example.com", "v1", "Wig", "wigs")))
    await page("GET", "/v1")  # discovers again
    status, message = await page.error("GET", "/v1/wi")
    assert (status, message) == (400, "kind 'wi' is ambiguous; use widgets.example.com or wigs.other.example.com")


async def test_existing_name_is_rejected(page: Page) -> None:
    await create_widget(page, "a")
    expected = 'widgets.example.com "a" already exists'
    assert await page.error("POST", "/v1/widgets", {"name": "a"}) == (409, expected)


async def test_too_many_objects_to_sort_are_rejected(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "BATCH", 2)
    monkeypatch.setattr(lists, "MAX_OBJECTS_READ", 3)
    for number in range(4):
        await create_widget(page, f"w{number}")
    assert await page.names("/v1/widgets", sort="-name") == ["w3", "w2", "w1", "w0"]
    await create_widget(page, "w4")
    status, message = await page.error("GET", "/v1/widgets", sort="-name")
    assert status == 413
    assert "more than 3 widgets.example.com; query one namespace" in message


async def test_openapi_names_every_path_and_schema(page: Page) -> None:
    _, found = await page("GET", "/openapi.json")
    assert found["openapi"].startswith("3.")
    assert set(found["paths"]) == {"/apiext/v1", "/apiext/v1/{kind}", "/apiext/v1/{kind}/{name}"}
    known = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references(found) <= known
    await create_widget(page, "a")
    _, item = await page("GET", "/v1/widgets/a")
    assert set(found["components"]["schemas"]["Whole"]["required"]) <= set(item)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*(references(each) for each in value.values()))
    return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()
