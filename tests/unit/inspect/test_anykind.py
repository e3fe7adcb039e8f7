"""Objects of any kind, on an API server in this process: what `tapestry k` shows, makes, ends and waits for."""

import asyncio
import io
import json
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.inspect.anykind import manifests, views
from tapestry.inspect.anykind.kubectl_lite import KubectlLite, kind_rows, split_annotation_arguments
from tapestry.inspect.anykind.resource_mapper import Target
from tapestry.inspect.anykind.views import ListOptions
from tapestry.inspect.anykind.wait_conditions import parse_wait_condition
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, PODS

SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
HERE = ListOptions("default")


# -- names


@pytest.mark.parametrize(
    "word", ["deployments", "deployment", "deploy", "Deployment", "deployments.apps", "deploy.apps"]
)
async def test_a_kind_has_many_names(hand: KubectlLite, word: str) -> None:
    assert await hand.targets([word, "web"]) == [Target(DEPLOYMENTS, ("web",))]


async def test_kinds_and_objects_can_be_several(hand: KubectlLite) -> None:
    assert await hand.targets(["po,cm"]) == [Target(PODS), Target(CONFIGMAPS)]
    assert await hand.targets(["po/a", "cm/b"]) == [Target(PODS, ("a",)), Target(CONFIGMAPS, ("b",))]
    assert {"Pod", "Deployment", "Job"} <= {aim.resource.kind for aim in await hand.targets(["all"])}


async def test_of_namesakes_the_core_is_meant(hand: KubectlLite) -> None:
    assert [aim.resource for aim in await hand.targets(["events"])] == [EVENTS]
    assert [aim.resource.group for aim in await hand.targets(["events.events.k8s.io"])] == ["events.k8s.io"]


async def test_a_word_that_means_nothing_is_said(hand: KubectlLite) -> None:
    with pytest.raises(QueryError, match="no kind 'gizmos'; `tapestry k kinds`"):
        await hand.targets(["gizmos"])
    with pytest.raises(ValueError, match="'b': KIND/NAME was expected"):
        await hand.targets(["po/a", "b"])


async def test_the_kinds_are_listed_with_their_short_names(hand: KubectlLite) -> None:
    assert ["deployments", "deploy", "apps/v1", "yes", "Deployment"] in kind_rows(await hand.served_resources())


# -- showing


async def test_objects_are_shown_in_the_tables_of_the_server(hand: KubectlLite) -> None:
    await hand.create(manifests.deployment("web", "nginx", 2))
    tables = await views.fetch_responses(hand.client, Target(DEPLOYMENTS), HERE, views.TABLE_ACCEPT)
    header, row = views.table_text(tables, wide=False, with_namespace=False).splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:2] == ["web", "0/2"]
    wide = views.table_text(tables, wide=True, with_namespace=True, prefix="deployment.apps/").splitlines()
    assert wide[0].split()[0] == "NAMESPACE"
    assert wide[1].split()[:2] == ["default", "deployment.apps/web"]
    assert "nginx" in wide[1]


async def test_nothing_is_shown_of_nothing(hand: KubectlLite) -> None:
    tables = await views.fetch_responses(hand.client, Target(PODS), HERE, views.TABLE_ACCEPT)
    assert views.table_text(tables, wide=False, with_namespace=False) == ""


async def test_objects_are_shown_as_they_are_but_for_managed_fields(hand: KubectlLite) -> None:
    await hand.apply(SETTINGS)
    found = await views.fetch_objects(hand.client, Target(CONFIGMAPS, ("settings",)), HERE)
    shown = yaml.safe_load(views.objects_text(found, "yaml", single=True))
    assert shown["data"] == {"a": "1"}
    assert "managedFields" not in shown["metadata"]
    listed = await views.fetch_objects(
        hand.client, Target(CONFIGMAPS), ListOptions("default", fields="metadata.name=settings")
    )
    assert yaml.safe_load(views.objects_text(listed, "json", single=False)) == {
        "apiVersion": "v1",
        "kind": "List",
        "items": [shown],
    }
    assert views.objects_text(listed, "name", single=False) == "configmap/settings"


async def test_labels_choose(hand: KubectlLite) -> None:
    for name in ("web", "db"):
        await hand.create(manifests.deployment(name, "x"))
    found = await views.fetch_objects(hand.client, Target(DEPLOYMENTS), ListOptions("default", labels="app=db"))
    assert [each["metadata"]["name"] for each in found] == ["db"]


@pytest.mark.parametrize("accept", [views.TABLE_ACCEPT, "application/json"])
async def test_changes_are_shown_as_they_come(hand: KubectlLite, accept: str) -> None:
    aim = Target(CONFIGMAPS, ("settings",))
    await hand.apply(SETTINGS)
    (first,) = await views.fetch_responses(hand.client, aim, HERE, accept)
    changes = views.watch_events(hand.client, aim, HERE, views.list_version(first), accept)
    async with asyncio.timeout(10), aclosing(changes):
        await hand.apply({**SETTINGS, "metadata": {"name": "other"}})
        await hand.apply({**SETTINGS, "data": {"a": "2"}})
        type, found = await anext(changes)
        assert type == "MODIFIED"
        own = found["rows"][0]["object"] if accept == views.TABLE_ACCEPT else found
        assert own["metadata"]["name"] == "settings"
        await hand.delete(CONFIGMAPS, SETTINGS, grace=None, wait=0)
        assert (await anext(changes))[0] == "DELETED"


async def test_a_description_ends_with_the_events_about_the_object(hand: KubectlLite) -> None:
    await hand.apply(SETTINGS)
    (obj,) = await views.fetch_objects(hand.client, Target(CONFIGMAPS, ("settings",)), HERE)
    assert (await hand.describe(obj)).endswith("Events: none")
    for name, uid in (("mine", obj["metadata"]["uid"]), ("another", "of-a-namesake")):
        about = {"kind": "ConfigMap", "namespace": "default", "name": "settings", "uid": uid}
        event = {"involvedObject": about, "reason": "Read", "message": name, "type": "Normal", "count": 3}
        await hand.client.create(EVENTS, {**object_named(name, "default"), **event})
    told = (await hand.describe(obj)).splitlines()
    assert told[-1].split("   ")[-1] == "mine (x3)"
    assert told[-2].startswith("  LAST")


# -- making and ending


async def test_apply_says_what_came_of_it(hand: KubectlLite) -> None:
    assert await hand.apply(SETTINGS) == "configmap/settings created"
    assert await hand.apply(SETTINGS) == "configmap/settings unchanged"
    assert await hand.apply({**SETTINGS, "data": {"a": "2"}}) == "configmap/settings configured"


async def test_the_fields_of_others_are_taken_over_only_when_told_so(hand: KubectlLite) -> None:
    theirs = {**SETTINGS, "metadata": {"name": "settings", "namespace": "default"}}
    await hand.client.apply(CONFIGMAPS, theirs, manager="somebody")
    wanted = {**SETTINGS, "data": {"a": "2"}}
    with pytest.raises(QueryError, match=r"configmap/settings: .*somebody.*--force-conflicts overrides"):
        await hand.apply(wanted)
    assert await hand.apply(wanted, force=True) == "configmap/settings configured"


async def test_a_kind_that_the_server_does_not_have_is_said(hand: KubectlLite) -> None:
    with pytest.raises(QueryError, match=r"no kind Gizmo of example.com/v1; is its definition applied\?"):
        await hand.apply({"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}})


async def test_simple_objects_are_accepted_by_the_server(hand: KubectlLite) -> None:
    assert await hand.create(manifests.namespace("mine")) == "namespace/mine created"
    assert await hand.create(manifests.job("work", "busybox", 20, ["sleep", "1"])) == "job.batch/work created"
    (made,) = await views.fetch_objects(hand.client, (await hand.targets(["job/work"]))[0], HERE)
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (20, 20)
    assert made["spec"]["template"]["spec"]["containers"][0]["command"] == ["sleep", "1"]
    with pytest.raises(AlreadyExists):
        await hand.create(manifests.namespace("mine"))


async def test_a_job_does_not_fail_because_an_owner_takes_pods_back() -> None:
    (rule,) = manifests.job("work", "busybox")["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")


async def test_annotations_are_given_and_taken_away(hand: KubectlLite) -> None:
    await hand.apply(SETTINGS)
    assert await hand.annotate(CONFIGMAPS, "settings", {"a": "1", "b": ""}) == "configmap/settings annotated"
    await hand.annotate(CONFIGMAPS, "settings", {"a": None})
    (found,) = await views.fetch_objects(hand.client, Target(CONFIGMAPS, ("settings",)), HERE)
    assert found["metadata"]["annotations"] == {"b": ""}


def test_words_name_objects_first_and_then_what_changes() -> None:
    assert split_annotation_arguments(["ns", "a", "b", "x=1=-", "y-", "z="]) == (
        ["ns", "a", "b"],
        {"x": "1=-", "y": None, "z": ""},
    )
    with pytest.raises(ValueError, match="'c': KEY=VALUE or KEY- was expected"):
        split_annotation_arguments(["ns/a", "x=1", "c"])
    with pytest.raises(ValueError, match="nothing is to change"):
        split_annotation_arguments(["ns/a"])


async def test_what_is_deleted_is_gone(hand: KubectlLite) -> None:
    await hand.apply(SETTINGS)
    assert await hand.delete(CONFIGMAPS, SETTINGS, grace=None, wait=10) == "configmap/settings deleted"
    with pytest.raises(NotFound):
        await hand.delete(CONFIGMAPS, SETTINGS, grace=None, wait=0)


async def test_deletion_that_takes_too_long_is_said(hand: KubectlLite) -> None:
    held = {**SETTINGS, "metadata": {"name": "settings", "finalizers": ["example.com/held"]}}
    await hand.apply(held)
    with pytest.raises(TimeoutError, match="ConfigMap default/settings: timed out after"):
        await hand.delete(CONFIGMAPS, held, grace=None, wait=0.05)


async def test_logs_of_a_workload_are_those_of_a_pod_that_it_selects(hand: KubectlLite) -> None:
    await hand.create(manifests.deployment("web", "nginx"))
    with pytest.raises(QueryError, match="deploy/web has no pods in namespace default"):
        await hand.pod_name_for(["deploy/web"])
    for name, phase in (("a", "Pending"), ("b", "Running")):
        pod = {"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}}
        made = await hand.client.create(PODS, {**pod, "spec": {"containers": [{"name": "c", "image": "x"}]}})
        await hand.client.patch(PODS, made, {"status": {"phase": phase}}, subresource="status")
    assert await hand.pod_name_for(["deploy/web"]) == "b"
    assert await hand.pod_name_for(["a"]) == "a"
    with pytest.raises(NotFound):
        [chunk async for chunk in hand.logs("nobody", {})]


# -- waiting


async def test_waiting_ends_when_the_object_gets_there(hand: KubectlLite) -> None:
    await hand.create(manifests.deployment("web", "nginx"))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(hand.wait(DEPLOYMENTS, "web", "jsonpath={.metadata.labels.done}=yes", 10))
        target = object_named("web", "default")
        await hand.client.patch(DEPLOYMENTS, target, {"metadata": {"labels": {"done": "yes"}}})
    assert waiting.result() == "deployment.apps/web condition met"
    with pytest.raises(TimeoutError):
        await hand.wait(DEPLOYMENTS, "web", "condition=Available", 0.05)
    with pytest.raises(NotFound):
        await hand.wait(DEPLOYMENTS, "nobody", "condition=Available", 0.05)
    assert await hand.wait(DEPLOYMENTS, "nobody", "delete", 10) == "deployment.apps/nobody deleted"


def conditions(*found: Object) -> Object:
    return {"metadata": {"name": "x", "generation": 2, "uid": "1"}, "status": {"conditions": list(found)}}


@pytest.mark.parametrize(
    ("goal", "obj", "met"),
    [
        ("condition=ready", conditions({"type": "Ready", "status": "True"}), True),
        ("condition=Ready", conditions({"type": "Ready", "status": "False"}), False),
        ("condition=Ready=false", conditions({"type": "Ready", "status": "False"}), True),
        ("condition=Ready", conditions({"type": "Ready", "status": "True", "observedGeneration": 1}), False),
        ("condition=Ready", conditions({"type": "Ready", "status": "True", "observedGeneration": 2}), True),
        ("condition=Ready", None, False),
        ("jsonpath={.metadata.generation}=2", conditions(), True),
        ("jsonpath=.metadata.generation=3", conditions(), False),
        ("jsonpath={.metadata.labels}", conditions(), False),
        (
            'jsonpath={.status.conditions[?(@.type=="A")].status}=True',
            conditions({"type": "A", "status": "True"}),
            True,
        ),
        ("create", None, False),
        ("create", conditions(), True),
        ("delete", None, True),
        ("delete", conditions(), False),
        ("delete", {"metadata": {"name": "x", "uid": "2"}}, True),
    ],
)
def test_goals(goal: str, obj: Object | None, met: bool) -> None:
    assert parse_wait_condition(goal, conditions())(obj) is met


@pytest.mark.parametrize("goal", ["", "condition", "condition=", "ready", "delete=1", "jsonpath={.a", "jsonpath={..}"])
def test_a_goal_that_cannot_be_read_is_refused(goal: str) -> None:
    with pytest.raises(ValueError):
        parse_wait_condition(goal, None)


# -- files


def test_files_folders_and_what_comes_in_are_read_in_order(tmp_path: Path) -> None:
    def text(*names: str) -> str:
        return "\n---\n".join(yaml.safe_dump({**SETTINGS, "metadata": {"name": name}}) for name in names)

    (tmp_path / "b.yml").write_text(text("b1", "b2"))
    (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [SETTINGS]}))
    (tmp_path / "notes.txt").write_text("nothing")
    found = manifests.load_objects([str(tmp_path), "-"], io.BytesIO(text("c").encode()))
    assert [each["metadata"]["name"] for each in found] == ["settings", "b1", "b2", "c"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "-: not YAML"),
        ("just text", "-: document 1: an object was expected, found str"),
        ("kind: A", "-: document 1: apiVersion: is missing"),
        ("apiVersion: v1\nkind: A\n---\napiVersion: v1", "-: document 1: metadata.name: is missing"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        manifests.load_objects(["-"], io.BytesIO(text.encode()))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nope.yaml: No such file or directory$"):
        manifests.load_objects([str(tmp_path / "nope.yaml")], io.BytesIO())


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file in there ends in .yaml"):
        manifests.load_objects([str(tmp_path)], io.BytesIO())


@given(st.binary(max_size=60))
def test_whatever_comes_in_is_an_object_or_a_complaint(data: bytes) -> None:
    try:
        found = manifests.load_objects(["-"], io.BytesIO(data))
    except ValueError:
        return
    assert all(each["kind"] for each in found)


def test_a_description_has_identity_fields_and_conditions() -> None:
    condition = {"type": "Ready", "status": "True", "reason": "Done", "message": "all is well"}
    metadata = {"name": "web", "namespace": "team", "labels": {"b": "2", "a": "1"}, "managedFields": [{"manager": "m"}]}
    obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"x": 1},
        "status": {"conditions": [condition]},
    }
    lines = views.description(obj, []).splitlines()
    assert lines[:2] == ["Name:        web", "Namespace:   team"]
    assert lines[3:5] == ["Labels:      a=1", "             b=2"]
    assert lines[5:7] == ["Spec:", "  x: 1"]
    assert lines[-4:] == [
        "Conditions:",
        "  TYPE    STATUS   REASON   MESSAGE",
        "  Ready   True     Done     all is well",
        "Events: none",
    ]
