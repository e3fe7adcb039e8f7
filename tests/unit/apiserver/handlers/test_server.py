"""API behaviour that clients rely on, verb by verb."""

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.core.requests import User
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.kube.objects import Object
from tapestry.kube.resources import CRDS

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


def new_pod(name: str = "web", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "nginx"}], **spec}}


def new_map(name: str = "a", **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


# -- create


async def test_created_object_has_server_fields_and_defaults(call: ServerClient) -> None:
    pod = await call.made(PODS, new_pod())
    assert pod["apiVersion"] == "v1"
    assert pod["metadata"]["generation"] == 1
    assert pod["metadata"]["uid"]
    assert pod["spec"]["restartPolicy"] == "Always"
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert pod["spec"]["priority"] == 0
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert {each["key"] for each in pod["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


async def test_generated_names_are_unique(call: ServerClient) -> None:
    created = [await call.made(MAPS, {"metadata": {"generateName": "a-"}}) for _ in range(3)]
    names = [each["metadata"]["name"] for each in created]
    assert len(set(names)) == 3
    assert all(name.startswith("a-") and len(name) == 7 for name in names)


async def test_duplicate_name_is_rejected(call: ServerClient) -> None:
    await call.made(MAPS, new_map())
    status, result = await call("POST", MAPS, new_map())
    assert (status, result["reason"], result["message"]) == (409, "AlreadyExists", 'configmaps "a" already exists')


async def test_dry_run_changes_nothing(call: ServerClient) -> None:
    status, result = await call("POST", MAPS, new_map(), dryRun="All")
    assert (status, result["metadata"]["name"]) == (201, "a")
    assert (await call("GET", f"{MAPS}/a"))[0] == 404


@pytest.mark.parametrize(
    ("mode", "status"),
    [("Strict", 400), ("Warn", 201), ("Ignore", 201)],
)
async def test_field_validation_handles_unknown_fields(call: ServerClient, mode: str, status: int) -> None:
    response = await call.answer("POST", PODS, new_pod(surprise=1), fieldValidation=mode)
    assert not isinstance(response, WatchResponse)
    assert response.status == status
    if mode == "Strict":
        assert b'strict decoding error: unknown field \\"spec.surprise\\"' in response.body
    else:
        assert ("Warning" in response.headers) is (mode == "Warn")
        assert b"surprise" not in response.body


async def test_duplicate_json_field_is_rejected(call: ServerClient) -> None:
    raw = b'{"metadata":{"name":"a"},"data":{"k":"1","k":"2"}}'
    status, result = await call("POST", MAPS, raw, fieldValidation="Strict")
    assert status == 400
    assert result["message"].endswith(
        'cannot be handled as a ConfigMap: strict decoding error: duplicate field "data.k"'
    )


@pytest.mark.parametrize(("mode", "status"), [("Strict", 400), ("Warn", 201), ("Ignore", 201)])
async def test_field_validation_handles_duplicate_yaml_keys(call: ServerClient, mode: str, status: int) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: one\n  x: two\n"
    query = {"fieldManager": "me", "fieldValidation": mode}
    response = await call.answer("PATCH", f"{MAPS}/a", body, kind="application/apply-patch+yaml", **query)
    assert not isinstance(response, WatchResponse)
    assert response.status == status
    output = response.body if mode == "Strict" else response.headers.get("Warning", "").encode()
    assert (b'line 7: key \\"x\\" already set in map' in output) == (mode != "Ignore")


async def test_wrong_type_is_rejected(call: ServerClient) -> None:
    status, result = await call("POST", PODS, new_pod(containers="many"))
    assert (status, result["reason"]) == (400, "BadRequest")
    assert "cannot unmarshal string into Go struct field spec.containers" in result["message"]


# -- update


async def test_unchanged_write_keeps_resource_version(call: ServerClient) -> None:
    created = await call.made(MAPS, new_map(k="v"))
    assert (await call("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, kind=MERGE))[1] == created
    assert (await call("PUT", f"{MAPS}/a", created))[1] == created


async def test_nulls_over_missing_fields_change_nothing(call: ServerClient) -> None:
    before = await call.made(MAPS, {"metadata": {"name": "m"}, "data": {"a": "b"}})
    nulls = {"binaryData": None, "nothing": None, "immutable": None}
    assert await call("PUT", f"{MAPS}/m", {**before, **nulls}) == (200, before)
    steps = [{"op": "add", "path": f"/{field}", "value": None} for field in nulls]
    assert await call("PATCH", f"{MAPS}/m", steps, kind="application/json-patch+json") == (200, before)
    status, result = await call("PUT", f"{MAPS}/m", {**before, **nulls}, fieldValidation="Strict")
    assert (status, 'unknown field "nothing"' in result["message"]) == (400, True)
    rules = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    role = await call.made(rules, {"metadata": {"name": "r"}})
    assert await call("PUT", f"{rules}/r", role) == (200, role)
    assert role["rules"] is None


async def test_stale_replace_conflicts(call: ServerClient) -> None:
    created = await call.made(MAPS, new_map(k="1"))
    await call("PATCH", f"{MAPS}/a", {"data": {"k": "2"}}, kind=MERGE)
    status, result = await call("PUT", f"{MAPS}/a", created)
    assert (status, result["reason"]) == (409, "Conflict")
    assert result["message"].startswith('Operation cannot be fulfilled on configmaps "a": the object has been modified')


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
async def test_patch_with_invalid_result_is_rejected(call: ServerClient, kind: str) -> None:
    await call.made(MAPS, new_map(x="1"))
    status, result = await call("PATCH", f"{MAPS}/a", {"data": {"x": 7}}, kind=kind)
    assert (status, result["details"]["causes"][0]["field"]) == (422, "patch")


async def test_strategic_patch_merges_containers_by_name(call: ServerClient) -> None:
    await call.made(PODS, new_pod())
    patch = {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}
    _, pod = await call("PATCH", f"{PODS}/web", patch, kind=STRATEGIC)
    assert [(each["name"], each["image"]) for each in pod["spec"]["containers"]] == [("c", "nginx:2")]
    assert pod["metadata"]["generation"] == 2


async def test_status_and_main_writes_are_separate(call: ServerClient) -> None:
    await call.made(PODS, new_pod())
    both = {"status": {"phase": "Running"}, "spec": {"hostname": "other"}}
    _, pod = await call("PATCH", f"{PODS}/web/status", both, kind=MERGE)
    assert (pod["status"]["phase"], pod["metadata"]["generation"]) == ("Running", 1)
    assert "hostname" not in pod["spec"]
    _, pod = await call("PATCH", f"{PODS}/web", {"status": {"phase": "Failed"}}, kind=MERGE)
    assert pod["status"]["phase"] == "Running"


async def test_concurrent_patches_are_all_applied(call: ServerClient) -> None:
    await call.made(MAPS, new_map())
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(call("PATCH", f"{MAPS}/a", {"data": {f"k{number}": "v"}}, kind=MERGE))
    _, result = await call("GET", f"{MAPS}/a")
    assert len(result["data"]) == 50


# -- delete


async def test_only_bound_pod_gets_grace_period(call: ServerClient) -> None:
    await call.made(PODS, new_pod("bound", nodeName="n1"))
    _, pod = await call("DELETE", f"{PODS}/bound")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    await call("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0})
    assert (await call("GET", f"{PODS}/bound"))[0] == 404
    await call.made(PODS, new_pod("waiting"))
    await call("DELETE", f"{PODS}/waiting")
    assert (await call("GET", f"{PODS}/waiting"))[0] == 404


async def test_object_is_removed_with_last_finalizer(call: ServerClient) -> None:
    await call.made(MAPS, {"metadata": {"name": "a", "finalizers": ["x.io/y"]}})
    _, marked = await call("DELETE", f"{MAPS}/a")
    assert marked["metadata"]["deletionTimestamp"]
    await call("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, kind=MERGE)
    assert (await call("GET", f"{MAPS}/a"))[0] == 404


async def test_delete_with_other_uid_conflicts(call: ServerClient) -> None:
    await call.made(MAPS, new_map())
    status, result = await call("DELETE", f"{MAPS}/a", {"preconditions": {"uid": "another"}})
    assert (status, result["reason"]) == (409, "Conflict")


async def test_delete_collection_respects_selector(call: ServerClient) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        await call.made(MAPS, {"metadata": {"name": name, "labels": {"app": app}}})
    await call("DELETE", MAPS, labelSelector="app=x")
    _, left = await call("GET", MAPS)
    assert [each["metadata"]["name"] for each in left["items"]] == ["b"]


# -- list and watch


async def test_all_pages_show_one_revision(call: ServerClient) -> None:
    for name in "abcd":
        await call.made(MAPS, new_map(name))
    _, first = await call("GET", MAPS, limit="2")
    await call("DELETE", f"{MAPS}/d")
    await call.made(MAPS, new_map("e"))
    _, rest = await call("GET", MAPS, limit="10", **{"continue": first["metadata"]["continue"]})
    names = [each["metadata"]["name"] for page in (first, rest) for each in page["items"]]
    assert names == ["a", "b", "c", "d"]
    assert first["metadata"]["remainingItemCount"] == 2
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_expired_page_offers_a_continue_token(call: ServerClient) -> None:
    for name in "abc":
        await call.made(MAPS, new_map(name))
    _, first = await call("GET", MAPS, limit="1")
    await call.made(MAPS, new_map("d"))
    call.server.verbs.store.compact_events(call.server.verbs.store.revision)
    status, expired = await call("GET", MAPS, limit="1", **{"continue": first["metadata"]["continue"]})
    assert (status, expired["reason"]) == (410, "Expired")
    _, second = await call("GET", MAPS, limit="2", **{"continue": expired["metadata"]["continue"]})
    assert [each["metadata"]["name"] for each in second["items"]] == ["b", "c"]
    assert second["metadata"]["remainingItemCount"] == 1
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    _, third = await call("GET", MAPS, **{"continue": second["metadata"]["continue"]})
    assert [each["metadata"]["name"] for each in third["items"]] == ["d"]


async def test_unset_boolean_field_matches_false(call: ServerClient) -> None:
    await call.made("/api/v1/nodes", {"metadata": {"name": "a"}})
    await call.made("/api/v1/nodes", {"metadata": {"name": "b"}, "spec": {"unschedulable": True}})
    _, result = await call("GET", "/api/v1/nodes", fieldSelector="spec.unschedulable=false")
    assert [each["metadata"]["name"] for each in result["items"]] == ["a"]


async def test_lists_are_filtered_by_fields_and_labels(call: ServerClient) -> None:
    await call.made(PODS, new_pod("one", nodeName="n1"))
    await call.made(PODS, new_pod("two"))
    _, result = await call("GET", "/api/v1/pods", fieldSelector="spec.nodeName=n1")
    assert [each["metadata"]["name"] for each in result["items"]] == ["one"]
    status, error = await call("GET", "/api/v1/pods", fieldSelector="spec.color=red")
    assert (status, error["message"]) == (400, "field label not supported: spec.color")
    assert (await call("GET", MAPS, labelSelector="a in (b"))[0] == 400


async def lines(watch: Any, count: int) -> list[Object]:
    """Return the first `count` events of a watch."""
    result: list[Object] = []
    async with asyncio.timeout(10):
        async for chunk in watch.chunks():
            result += [msgspec.json.decode(line) for line in chunk.splitlines()]
            if len(result) >= count:
                break
    return result


async def test_idle_watch_sends_bookmark_before_its_end(call: ServerClient) -> None:
    _, listed = await call("GET", MAPS)
    before = int(listed["metadata"]["resourceVersion"])
    watch = await call.answer(
        *("GET", MAPS),
        watch="1",
        resourceVersion="0",
        labelSelector="app=none",
        allowWatchBookmarks="true",
        timeoutSeconds="3",
    )
    assert isinstance(watch, WatchResponse)
    busy = asyncio.create_task(keep_busy(call))
    events = [msgspec.json.decode(line) async for chunk in watch.chunks() for line in chunk.splitlines()]
    busy.cancel()
    assert [each["type"] for each in events] == ["BOOKMARK"]
    assert int(events[0]["object"]["metadata"]["resourceVersion"]) > before


@pytest.mark.parametrize("bookmarks", ["true", "false"])
async def test_watch_ends_with_bookmark_when_store_finishes(call: ServerClient, bookmarks: str) -> None:
    watch = await call.answer("GET", MAPS, watch="1", resourceVersion="0", allowWatchBookmarks=bookmarks)
    assert isinstance(watch, WatchResponse)
    await call.made(MAPS, new_map("last"))
    store = call.server.verbs.store
    await store.finish()
    events = [msgspec.json.decode(line) async for chunk in watch.chunks() for line in chunk.splitlines()]
    assert [each["type"] for each in events[-2:]] == (["ADDED", "BOOKMARK"] if bookmarks == "true" else ["ADDED"])
    if bookmarks == "true":
        assert events[-1]["object"]["metadata"]["resourceVersion"] == str(store.revision)


async def keep_busy(call: ServerClient) -> None:
    """Change an object continuously."""
    await call.made(MAPS, new_map("busy"))
    for number in itertools.count():
        await call("PATCH", f"{MAPS}/busy", {"data": {"n": str(number)}}, kind=MERGE)


async def test_rejected_watch_leaves_no_subscription(call: ServerClient) -> None:
    store = call.server.verbs.store
    before = store.watcher_count("configmaps")
    assert (await call("GET", MAPS, watch="1", timeoutSeconds="soon"))[0] == 400
    assert store.watcher_count("configmaps") == before


async def test_watch_continues_after_list(call: ServerClient) -> None:
    await call.made(MAPS, new_map("a"))
    _, listed = await call("GET", MAPS)
    watch = await call.answer("GET", MAPS, watch="1", resourceVersion=listed["metadata"]["resourceVersion"])
    await call("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, kind=MERGE)
    await call("DELETE", f"{MAPS}/a")
    events = await lines(watch, 2)
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)
    assert events[1]["object"]["data"] == {"k": "v"}


async def test_object_that_leaves_selection_is_deleted_event(call: ServerClient) -> None:
    await call.made(MAPS, {"metadata": {"name": "a", "labels": {"app": "x"}}})
    watch = await call.answer("GET", MAPS, watch="1", resourceVersion="0", labelSelector="app=x")
    await call("PATCH", f"{MAPS}/a", {"metadata": {"labels": {"app": "y"}}}, kind=MERGE)
    await call("PATCH", f"{MAPS}/a", {"metadata": {"labels": {"app": "x"}}}, kind=MERGE)
    events = await lines(watch, 3)
    assert [event["type"] for event in events] == ["ADDED", "DELETED", "ADDED"]
    assert events[1]["object"]["metadata"]["labels"] == {"app": "x"}


async def test_streamed_list_ends_with_bookmark(call: ServerClient) -> None:
    await call.made(MAPS, new_map("a"))
    watch = await call.answer(
        *("GET", MAPS),
        watch="1",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    added, mark = await lines(watch, 2)
    assert (added["type"], mark["type"]) == ("ADDED", "BOOKMARK")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize("form", ["Table", "PartialObjectMetadata"])
async def test_bookmark_has_the_requested_form(call: ServerClient, form: str) -> None:
    watch = await call.answer(
        *("GET", MAPS),
        accept=f"application/json;as={form};v=v1;g=meta.k8s.io",
        watch="1",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    (mark,) = await lines(watch, 1)
    result = mark["object"]["rows"][0]["object"] if form == "Table" else mark["object"]
    assert (mark["type"], mark["object"]["kind"], result["kind"]) == ("BOOKMARK", form, "PartialObjectMetadata")
    assert result["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_compacted_revision_is_error_event(call: ServerClient) -> None:
    await call.made(MAPS, new_map("a"))
    call.server.verbs.store.compact_events(call.server.verbs.store.revision)
    response = await call.answer("GET", MAPS, watch="1", resourceVersion="1")
    assert not isinstance(response, WatchResponse)
    event = msgspec.json.decode(response.body)
    assert (response.status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)


# -- response forms


async def test_table_has_kubectl_columns(call: ServerClient) -> None:
    await call.made(PODS, new_pod())
    _, table = await call("GET", PODS, accept=TABLE)
    heads = [each["name"] for each in table["columnDefinitions"] if not each["priority"]]
    assert heads == ["Name", "Ready", "Status", "Restarts", "Age"]
    [row] = table["rows"]
    assert row["cells"][:4] == ["web", "0/1", "Pending", "0"]
    assert row["object"]["kind"] == "PartialObjectMetadata"


async def test_partial_metadata_can_be_requested(call: ServerClient) -> None:
    await call.made(MAPS, new_map("a", k="v"))
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    _, result = await call("GET", MAPS, accept=accept)
    assert result["kind"] == "PartialObjectMetadataList"
    assert "data" not in result["items"][0]


async def test_unsupported_form_is_not_acceptable(call: ServerClient) -> None:
    assert (await call("GET", MAPS, accept="application/cbor"))[0] == 406


@pytest.mark.parametrize("weight", ["much", "", "nan", "1e999"])
async def test_invalid_quality_value_is_ignored(call: ServerClient, weight: str) -> None:
    assert (await call("GET", MAPS, accept=f"application/json;q={weight}"))[0] == 200


async def test_review_has_no_table_form(call: ServerClient) -> None:
    review = {"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await call("POST", path, review, accept=TABLE.partition(",")[0]))[0] == 406
    assert (await call("POST", path, review, accept=TABLE))[0] == 201


async def test_discovery_lists_served_resources(call: ServerClient) -> None:
    _, legacy = await call("GET", "/api/v1")
    assert {"pods", "pods/status", "pods/eviction"} <= {each["name"] for each in legacy["resources"]}
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _, aggregated = await call("GET", "/apis", accept=accept)
    assert "apps" in {each["metadata"]["name"] for each in aggregated["items"]}
    _, index = await call("GET", "/openapi/v3")
    _, document = await call("GET", index["paths"]["apis/apps/v1"]["serverRelativeURL"].partition("?")[0])
    assert "io.k8s.api.apps.v1.Deployment" in document["components"]["schemas"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/namespaces"),
        ("GET", f"{PODS}/web/eviction"),
        ("DELETE", f"{PODS}/web/eviction"),
        ("PUT", f"{PODS}/web/binding"),
        ("DELETE", f"{PODS}/web/status"),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("GET", "/api/v1/namespaces/default/serviceaccounts/default/token"),
        ("PUT", PODS),
        ("POST", f"{PODS}/web"),
    ],
)
async def test_unsupported_verb_is_not_allowed(call: ServerClient, method: str, path: str) -> None:
    before = await call.made(PODS, new_pod())
    assert (await call(method, path, {}))[0] == 405
    assert (await call("GET", f"{PODS}/web"))[1] == before
    assert (await call("GET", "/api/v1/namespaces/default"))[1]["status"] == {"phase": "Active"}


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/api/v2/pods", "/api/v1/spoons", "/apis/none/v1/x", f"{PODS}/web/nothing", "/api/v1/pods/../pods"],
)
async def test_unknown_path_is_not_found(call: ServerClient, path: str) -> None:
    assert (await call("GET", path))[0] == 404


# -- malformed bodies


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "application/json"),
        (b"[1,2]", "application/json"),
        (b'"text"', "application/json"),
        (b'{"metadata":[]}', "application/json"),
        (b"a: [", "application/yaml"),
        (b"a: &a [x,x]\n" + b"".join(b"b%d: &b%d [*a,*a]\n" % (n, n) for n in range(2)), "application/yaml"),
        (b"\xff\xfe", "application/json"),
    ],
)
async def test_malformed_body_is_bad_request(call: ServerClient, body: bytes, kind: str) -> None:
    status, result = await call("POST", MAPS, body, kind=kind)
    assert 400 <= status < 500
    assert result["kind"] == "Status"


async def test_unknown_content_type_is_rejected(call: ServerClient) -> None:
    assert (await call("POST", MAPS, b"x", kind="text/plain"))[0] == 415


# -- authorization


async def test_role_allows_exactly_its_verbs(call: ServerClient) -> None:
    eve = call.being(User("eve", ("system:authenticated",)))
    status, result = await eve("GET", MAPS)
    assert (status, result["message"]) == (
        403,
        'configmaps is forbidden: User "eve" cannot list resource "configmaps" in API group "" '
        'in the namespace "default"',
    )
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    await call.made(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "User", "name": "eve"}
    reference = {"kind": "Role", "name": "reader"}
    await call.made(f"{rbac}/rolebindings", {"metadata": {"name": "eve"}, "subjects": [subject], "roleRef": reference})
    assert (await eve("GET", MAPS))[0] == 200
    assert (await eve("GET", "/api/v1/namespaces/kube-system/configmaps"))[0] == 403
    assert (await eve("POST", MAPS, new_map()))[0] == 403


async def test_token_is_invalid_after_pod_deletion(call: ServerClient) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await call.made(accounts, {"metadata": {"name": "robot"}})
    pod = await call.made(PODS, new_pod())
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": pod["metadata"]["uid"]}
    _, response = await call("POST", f"{accounts}/robot/token", {"spec": {"boundObjectRef": bound}})
    review = {"spec": {"token": response["status"]["token"]}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    _, result = await call("POST", path, review)
    assert result["status"]["user"]["username"] == "system:serviceaccount:default:robot"
    await call("DELETE", f"{PODS}/web")
    _, result = await call("POST", path, review)
    assert not result["status"].get("authenticated")


# -- custom resources


def new_definition() -> Object:
    color = {"type": "string", "enum": ["red", "blue"]}
    spec = {
        "type": "object",
        "required": ["color"],
        "properties": {"color": color, "size": {"type": "integer", "default": 3}},
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wi"]}
    definition = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": definition}


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


async def test_definition_is_served_and_validates_objects(call: ServerClient) -> None:
    definition = await call.made(DEFINITIONS, new_definition())
    assert {each["type"] for each in definition["status"]["conditions"]} == {"NamesAccepted", "Established"}
    widget = await call.made(WIDGETS, {"metadata": {"name": "w"}, "spec": {"color": "red", "extra": 1}})
    assert widget["spec"] == {"color": "red", "size": 3}
    status, result = await call("POST", WIDGETS, {"metadata": {"name": "x"}, "spec": {"color": "green"}})
    assert (status, result["reason"]) == (422, "Invalid")
    assert 'spec.color: Unsupported value: "green": supported values: "red", "blue"' in result["message"]
    status, result = await call("POST", WIDGETS, {"metadata": {"name": "x"}, "spec": {}})
    assert "spec.color: Required value" in result["message"]


async def test_deleted_definition_rejects_new_objects_until_finalized(
    call: ServerClient,
) -> None:
    await call.made(DEFINITIONS, new_definition())
    assert (await call("GET", WIDGETS))[0] == 200
    _, deleting = await call("DELETE", f"{DEFINITIONS}/widgets.example.com")
    assert deleting["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert (await call("GET", WIDGETS))[0] == 200
    status, result = await call("POST", WIDGETS, {"metadata": {"name": "w"}, "spec": {"color": "red"}})
    assert (status, "terminating" in result["message"]) == (405, True)
    done = {"metadata": {"finalizers": None}}
    await call("PATCH", f"{DEFINITIONS}/widgets.example.com", done, kind=MERGE)
    assert (await call("GET", WIDGETS))[0] == 404


async def test_only_finalize_removes_namespace_finalizers(call: ServerClient) -> None:
    await call.made("/api/v1/namespaces", {"metadata": {"name": "deleting"}})
    _, deleting = await call("DELETE", "/api/v1/namespaces/deleting")
    assert deleting["status"]["phase"] == "Terminating"
    emptied = {**deleting, "spec": {"finalizers": []}, "metadata": {**deleting["metadata"], "labels": {"a": "b"}}}
    _, unchanged = await call("PUT", "/api/v1/namespaces/deleting", emptied)
    assert (unchanged["spec"], unchanged["metadata"]["labels"]["a"]) == (deleting["spec"], "b")
    assert unchanged["status"]["phase"] == "Terminating"
    released = {**unchanged, "spec": {}, "metadata": {**unchanged["metadata"], "labels": {"c": "d"}}}
    status, removed = await call("PUT", "/api/v1/namespaces/deleting/finalize", released)
    assert (status, removed["metadata"]["labels"]["a"]) == (200, "b")
    assert (await call("GET", "/api/v1/namespaces/deleting"))[0] == 404


async def test_job_orphans_its_pods_by_default(call: ServerClient) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    for name, policy, left in (("a", {}, ["orphan"]), ("b", {"propagationPolicy": "Background"}, None)):
        await call.made(jobs, {"metadata": {"name": name}, "spec": {"template": template}})
        await call("DELETE", f"{jobs}/{name}", policy)
        status, result = await call("GET", f"{jobs}/{name}")
        assert (result["metadata"]["finalizers"] if status == 200 else None) == left


async def test_invalid_definition_is_rejected_or_skipped(call: ServerClient, caplog: pytest.LogCaptureFixture) -> None:
    definition = new_definition()
    [version] = definition["spec"]["versions"]
    items = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "text"}}}}
    for more, field in (
        ({"selectableFields": [{}]}, "selectableFields[0].jsonPath"),
        ({"additionalPrinterColumns": [{"name": "A", "type": "string"}]}, "additionalPrinterColumns[0].jsonPath"),
        ({"subresources": {"scale": {"specReplicasPath": ".spec.size"}}}, "subresources.scale.statusReplicasPath"),
        ({"schema": {"openAPIV3Schema": items}}, "openAPIV3Schema.items.properties[a].type"),
    ):
        bad = {**definition, "spec": {**definition["spec"], "versions": [{**version, **more}]}}
        status, result = await call("POST", DEFINITIONS, bad)
        assert (status, [each["field"].endswith(field) for each in result["details"]["causes"]]) == (422, [True])
    bad = {**definition, "spec": {**definition["spec"], "versions": [{**version, "selectableFields": [{}]}]}}
    row = call.server.registry.info_for(CRDS)
    key = Key(row.storage, "", "widgets.example.com")
    await call.server.verbs.store.put(key, None, encode_for_storage(row, bad))
    assert [each.message for each in caplog.records] == ["CustomResourceDefinition cannot be served"]
    await call.made(MAPS, {"metadata": {"name": "after"}})


@pytest.mark.parametrize("wrong", ["text", 7, [], [1], True])
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "spec"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "metadata"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "spec"),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "spec"),
        ("POST", f"{PODS}/web/binding", "target"),
        ("POST", f"{PODS}/web/eviction", "deleteOptions"),
        ("POST", "/api/v1/namespaces/default/bindings", "metadata"),
        ("PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale", "metadata"),
        ("PATCH", "/apis/apps/v1/namespaces/default/deployments/d/scale", "metadata"),
        ("DELETE", f"{PODS}/web", "preconditions"),
    ],
)
async def test_other_request_bodies_are_type_checked(
    call: ServerClient, method: str, path: str, field: str, wrong: object
) -> None:
    await call.made(PODS, new_pod())
    template = {"metadata": {"labels": {"a": "b"}}, "spec": new_pod()["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await call.made("/apis/apps/v1/namespaces/default/deployments", {"metadata": {"name": "d"}, "spec": spec})
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    assert (await call(method, path, {"spec": {"replicas": 1}, field: wrong}, kind=kind))[0] == 400
    assert (await call("GET", f"{PODS}/web"))[0] == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PROPFIND"])
async def test_unknown_method_is_not_allowed(call: ServerClient, method: str) -> None:
    await call.made(DEFINITIONS, new_definition())
    await call.made(WIDGETS, {"metadata": {"name": "w"}, "spec": {"color": "red"}})
    for path in (PODS, MAPS, WIDGETS, f"{WIDGETS}/w", f"{WIDGETS}/w/status"):
        assert (await call(method, path))[0] == 405


@pytest.mark.parametrize(("group", "field"), [("apps", "spec.group"), ("coordination.k8s.io", "spec.names.plural")])
async def test_definition_cannot_replace_built_in_resource(call: ServerClient, group: str, field: str) -> None:
    plural, kind = ("deployments", "Deployment") if group == "apps" else ("leases", "Lease")
    there = f"/apis/{group}/v1/namespaces/default/{plural}"
    definition = new_definition()
    spec = {**definition["spec"], "group": group, "names": {"plural": plural, "kind": kind}}
    status, result = await call("POST", DEFINITIONS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    assert (status, field in [each["field"] for each in result["details"]["causes"]]) == (422, True)
    status, result = await call("POST", there, {"metadata": {"name": "x"}, "spec": {"color": "red"}}, dryRun="All")
    assert "color" not in result.get("spec", {})


async def test_definition_with_wrong_name_is_rejected(call: ServerClient) -> None:
    invalid = {**new_definition(), "metadata": {"name": "other.example.com"}}
    status, result = await call("POST", DEFINITIONS, invalid)
    assert (status, result["details"]["causes"][0]["field"]) == (422, "metadata.name")


async def test_dry_run_in_delete_options_deletes_nothing(call: ServerClient) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    await call.made(maps, {"metadata": {"name": "unchanged", "labels": {"a": "b"}}})
    assert (await call("DELETE", f"{maps}/unchanged", {"dryRun": ["All"]}))[0] == 200
    assert (await call("DELETE", maps, {"dryRun": ["All"]}, labelSelector="a=b"))[0] == 200
    assert (await call("GET", f"{maps}/unchanged"))[0] == 200


async def test_long_field_manager_is_rejected(call: ServerClient) -> None:
    status, result = await call("POST", MAPS, new_map(), fieldManager="m" * 129)
    assert (status, result["details"]["causes"][0]["reason"]) == (422, "FieldValueTooLong")
    assert (await call("POST", MAPS, new_map(), fieldManager="m" * 128))[0] == 201


async def test_token_under_ten_minutes_is_rejected(call: ServerClient) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await call.made(accounts, {"metadata": {"name": "a"}})
    assert (await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": 599}}))[0] == 422
    assert (await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": 600}}))[0] == 201


async def test_dry_run_create_may_have_resource_version(call: ServerClient) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    copied = {"metadata": {"name": "other", "resourceVersion": "1"}}
    assert (await call("POST", maps, copied, dryRun="All"))[0] == 201
    assert (await call("POST", maps, copied))[0] == 500


async def test_only_custom_list_items_have_kind(call: ServerClient) -> None:
    await call.made(DEFINITIONS, new_definition())
    await call.made("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}, "data": {"k": "v"}})
    await call.made("/apis/example.com/v1/namespaces/default/widgets", {"metadata": {"name": "w"}})
    _, result = await call("GET", "/api/v1/configmaps")
    assert (result["kind"], result["apiVersion"]) == ("ConfigMapList", "v1")
    assert [each.get("kind") for each in result["items"]] == [None]
    assert result["items"][0]["data"] == {"k": "v"}
    _, result = await call("GET", "/apis/example.com/v1/widgets")
    assert [(each["apiVersion"], each["kind"]) for each in result["items"]] == [("example.com/v1", "Widget")]


async def test_status_has_its_own_defaults(call: ServerClient) -> None:
    services = "/api/v1/namespaces/default/services"
    await call.made(services, {"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}})
    status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    _, result = await call("PATCH", f"{services}/s/status", {"status": status}, kind="application/merge-patch+json")
    assert result["status"]["loadBalancer"]["ingress"] == [{"ip": "192.0.2.1", "ipMode": "VIP"}]
