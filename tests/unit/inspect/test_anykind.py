"""Operations of `tapestry k` on an API server in this process."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.inspect.anykind import kubectl_lite, manifests, views
from tapestry.inspect.anykind.kubectl_lite import (
    KubectlLite,
    copy_lines,
    defaulted_note,
    kind_rows,
    split_annotation_arguments,
)
from tapestry.inspect.anykind.resource_mapper import Target
from tapestry.inspect.anykind.views import ListOptions
from tapestry.inspect.anykind.wait_conditions import parse_wait_condition
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.errors import AlreadyExists, ApiError, NotFound
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, PODS

SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
DEFAULT_NAMESPACE = ListOptions("default")


# -- names


@pytest.mark.parametrize(
    "word", ["deployments", "deployment", "deploy", "Deployment", "deployments.apps", "deploy.apps"]
)
async def test_kind_has_many_names(kubectl: KubectlLite, word: str) -> None:
    assert await kubectl.targets([word, "web"]) == [Target(DEPLOYMENTS, ("web",))]


async def test_several_kinds_and_objects_can_be_named(kubectl: KubectlLite) -> None:
    assert await kubectl.targets(["po,cm"]) == [Target(PODS), Target(CONFIGMAPS)]
    assert await kubectl.targets(["po/a", "cm/b"]) == [Target(PODS, ("a",)), Target(CONFIGMAPS, ("b",))]
    assert {"Pod", "Deployment", "Job"} <= {selected.resource.kind for selected in await kubectl.targets(["all"])}


async def test_ambiguous_name_means_core_group(kubectl: KubectlLite) -> None:
    assert [selected.resource for selected in await kubectl.targets(["events"])] == [EVENTS]
    assert [selected.resource.group for selected in await kubectl.targets(["events.events.k8s.io"])] == [
        "events.k8s.io"
    ]


async def test_unknown_word_is_an_error(kubectl: KubectlLite) -> None:
    with pytest.raises(QueryError, match="no kind 'gizmos'; `tapestry k kinds`"):
        await kubectl.targets(["gizmos"])
    with pytest.raises(ValueError, match="'b': expected KIND/NAME"):
        await kubectl.targets(["po/a", "b"])


async def test_kinds_are_listed_with_short_names(kubectl: KubectlLite) -> None:
    assert ["deployments", "deploy", "apps/v1", "yes", "Deployment"] in kind_rows(await kubectl.served_resources())


# -- showing


async def test_objects_are_printed_in_server_tables(kubectl: KubectlLite) -> None:
    await kubectl.create(manifests.deployment("web", "nginx", 2))
    tables = await views.fetch_responses(kubectl.client, Target(DEPLOYMENTS), DEFAULT_NAMESPACE, views.TABLE_ACCEPT)
    header, row = views.table_text(tables, wide=False, with_namespace=False).splitlines()
    assert header.split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert row.split()[:2] == ["web", "0/2"]
    wide = views.table_text(tables, wide=True, with_namespace=True, prefix="deployment.apps/").splitlines()
    assert wide[0].split()[0] == "NAMESPACE"
    assert wide[1].split()[:2] == ["default", "deployment.apps/web"]
    assert "nginx" in wide[1]


async def test_empty_list_shows_nothing(kubectl: KubectlLite) -> None:
    tables = await views.fetch_responses(kubectl.client, Target(PODS), DEFAULT_NAMESPACE, views.TABLE_ACCEPT)
    assert views.table_text(tables, wide=False, with_namespace=False) == ""


async def test_objects_are_printed_without_managed_fields(kubectl: KubectlLite) -> None:
    await kubectl.apply(SETTINGS)
    found = await views.fetch_objects(kubectl.client, Target(CONFIGMAPS, ("settings",)), DEFAULT_NAMESPACE)
    document = yaml.safe_load(views.objects_text(found, "yaml", single=True))
    assert document["data"] == {"a": "1"}
    assert "managedFields" not in document["metadata"]
    listed = await views.fetch_objects(
        kubectl.client, Target(CONFIGMAPS), ListOptions("default", fields="metadata.name=settings")
    )
    assert yaml.safe_load(views.objects_text(listed, "json", single=False)) == {
        "apiVersion": "v1",
        "kind": "List",
        "items": [document],
    }
    assert views.objects_text(listed, "name", single=False) == "configmap/settings"


async def test_label_selector_filters(kubectl: KubectlLite) -> None:
    for name in ("web", "db"):
        await kubectl.create(manifests.deployment(name, "x"))
    found = await views.fetch_objects(kubectl.client, Target(DEPLOYMENTS), ListOptions("default", labels="app=db"))
    assert [each["metadata"]["name"] for each in found] == ["db"]


@pytest.mark.parametrize("accept", [views.TABLE_ACCEPT, "application/json"])
async def test_watch_shows_changes(kubectl: KubectlLite, accept: str) -> None:
    selected = Target(CONFIGMAPS, ("settings",))
    await kubectl.apply(SETTINGS)
    (first,) = await views.fetch_responses(kubectl.client, selected, DEFAULT_NAMESPACE, accept)
    changes = views.watch_events(kubectl.client, selected, DEFAULT_NAMESPACE, views.list_version(first), accept)
    async with asyncio.timeout(10), aclosing(changes):
        await kubectl.apply({**SETTINGS, "metadata": {"name": "other"}})
        await kubectl.apply({**SETTINGS, "data": {"a": "2"}})
        type, found = await anext(changes)
        assert type == "MODIFIED"
        own = found["rows"][0]["object"] if accept == views.TABLE_ACCEPT else found
        assert own["metadata"]["name"] == "settings"
        await kubectl.delete(CONFIGMAPS, SETTINGS, grace=None, wait=0)
        assert (await anext(changes))[0] == "DELETED"


async def test_description_ends_with_events(kubectl: KubectlLite) -> None:
    await kubectl.apply(SETTINGS)
    (obj,) = await views.fetch_objects(kubectl.client, Target(CONFIGMAPS, ("settings",)), DEFAULT_NAMESPACE)
    assert (await kubectl.describe(obj)).endswith("Events: none")
    for name, uid in (("mine", obj["metadata"]["uid"]), ("another", "of-a-namesake")):
        about = {"kind": "ConfigMap", "namespace": "default", "name": "settings", "uid": uid}
        event = {"involvedObject": about, "reason": "Read", "message": name, "type": "Normal", "count": 3}
        await kubectl.client.create(EVENTS, {**object_named(name, "default"), **event})
    lines = (await kubectl.describe(obj)).splitlines()
    assert lines[-1].split("   ")[-1] == "mine (x3)"
    assert lines[-2].startswith("  LAST")


# -- creating and deleting


async def test_apply_reports_its_result(kubectl: KubectlLite) -> None:
    assert await kubectl.apply(SETTINGS) == "configmap/settings created"
    assert await kubectl.apply(SETTINGS) == "configmap/settings unchanged"
    assert await kubectl.apply({**SETTINGS, "data": {"a": "2"}}) == "configmap/settings configured"


async def test_apply_takes_over_foreign_fields_only_when_forced(kubectl: KubectlLite) -> None:
    foreign = {**SETTINGS, "metadata": {"name": "settings", "namespace": "default"}}
    await kubectl.client.apply(CONFIGMAPS, foreign, manager="somebody")
    changed = {**SETTINGS, "data": {"a": "2"}}
    with pytest.raises(QueryError, match=r"configmap/settings: .*somebody.*--force-conflicts overrides"):
        await kubectl.apply(changed)
    assert await kubectl.apply(changed, force=True) == "configmap/settings configured"


@pytest.mark.parametrize("stored", [False, True])
async def test_apply_names_a_misspelt_field(kubectl: KubectlLite, *, stored: bool) -> None:
    if stored:
        await kubectl.apply(SETTINGS)
    with pytest.raises(ApiError, match=r"\.dota: field not declared in schema"):
        await kubectl.apply({**SETTINGS, "dota": {"a": "2"}})


async def test_apply_of_unknown_kind_is_an_error(kubectl: KubectlLite) -> None:
    with pytest.raises(QueryError, match=r"no kind Gizmo in example.com/v1; apply its definition first"):
        await kubectl.apply({"apiVersion": "example.com/v1", "kind": "Gizmo", "metadata": {"name": "g"}})


async def test_generated_objects_are_accepted_by_server(kubectl: KubectlLite) -> None:
    assert await kubectl.create(manifests.namespace("mine")) == "namespace/mine created"
    assert await kubectl.create(manifests.job("work", "busybox", 20, ["sleep", "1"])) == "job.batch/work created"
    (created,) = await views.fetch_objects(kubectl.client, (await kubectl.targets(["job/work"]))[0], DEFAULT_NAMESPACE)
    assert (created["spec"]["completions"], created["spec"]["parallelism"]) == (20, 20)
    assert created["spec"]["template"]["spec"]["containers"][0]["command"] == ["sleep", "1"]
    with pytest.raises(AlreadyExists):
        await kubectl.create(manifests.namespace("mine"))


async def test_job_ignores_pods_deleted_by_reclaim() -> None:
    (rule,) = manifests.job("work", "busybox")["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")


async def test_annotations_are_added_and_removed(kubectl: KubectlLite) -> None:
    await kubectl.apply(SETTINGS)
    assert await kubectl.annotate(CONFIGMAPS, "settings", {"a": "1", "b": ""}) == "configmap/settings annotated"
    await kubectl.annotate(CONFIGMAPS, "settings", {"a": None})
    (found,) = await views.fetch_objects(kubectl.client, Target(CONFIGMAPS, ("settings",)), DEFAULT_NAMESPACE)
    assert found["metadata"]["annotations"] == {"b": ""}


def test_annotation_arguments_are_split_from_targets() -> None:
    assert split_annotation_arguments(["ns", "a", "b", "x=1=-", "y-", "z="]) == (
        ["ns", "a", "b"],
        {"x": "1=-", "y": None, "z": ""},
    )
    with pytest.raises(ValueError, match="'c': expected KEY=VALUE or KEY-"):
        split_annotation_arguments(["ns/a", "x=1", "c"])
    with pytest.raises(ValueError, match="no change given"):
        split_annotation_arguments(["ns/a"])


async def test_deleted_object_is_gone(kubectl: KubectlLite) -> None:
    await kubectl.apply(SETTINGS)
    assert await kubectl.delete(CONFIGMAPS, SETTINGS, grace=None, wait=10) == "configmap/settings deleted"
    with pytest.raises(NotFound):
        await kubectl.delete(CONFIGMAPS, SETTINGS, grace=None, wait=0)


async def test_slow_deletion_times_out(kubectl: KubectlLite) -> None:
    held = {**SETTINGS, "metadata": {"name": "settings", "finalizers": ["example.com/held"]}}
    await kubectl.apply(held)
    with pytest.raises(TimeoutError, match="ConfigMap default/settings: timed out after"):
        await kubectl.delete(CONFIGMAPS, held, grace=None, wait=0.05)


async def test_logs_of_workload_come_from_its_pod(kubectl: KubectlLite) -> None:
    await kubectl.create(manifests.deployment("web", "nginx"))
    with pytest.raises(QueryError, match="deploy/web has no pods in namespace default"):
        await kubectl.pod_name_for(["deploy/web"])
    for name, phase in (("a", "Pending"), ("b", "Running")):
        pod = {"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}}
        created = await kubectl.client.create(PODS, {**pod, "spec": {"containers": [{"name": "c", "image": "x"}]}})
        await kubectl.client.patch(PODS, created, {"status": {"phase": phase}}, subresource="status")
    assert await kubectl.pod_name_for(["deploy/web"]) == "b"
    assert await kubectl.pod_name_for(["a"]) == "a"
    with pytest.raises(NotFound):
        [chunk async for chunk in kubectl.logs("nobody", {})]


@pytest.mark.parametrize(
    ("annotated", "spec", "note"),
    [
        ("", {}, 'Defaulted container "a" out of: a, b'),
        ("gone", {}, 'Defaulted container "a" out of: a, b'),
        ("b", {}, ""),
        ("", {"containers": [{"name": "a"}]}, ""),
        (
            "",
            {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]},
            'Defaulted container "a" out of: a, e (ephem), i (init)',
        ),
    ],
)
def test_first_of_several_containers_is_noted(annotated: str, spec: Object, note: str) -> None:
    metadata = {"annotations": {"kubectl.kubernetes.io/default-container": annotated}}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "a"}, {"name": "b"}], **spec}}
    assert defaulted_note(pod) == note


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_lines_of_several_logs_are_not_mixed() -> None:
    first_ended = asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two\nthree "
        await first_ended.wait()
        yield b"four\n\n"

    async def second() -> AsyncIterator[bytes]:
        yield b"five\nsix"
        first_ended.set()

    written: list[bytes] = []
    async with asyncio.timeout(10):
        await copy_lines([first(), second()], written.append)
    assert written == [b"one two\n", b"five\n", b"six", b"three four\n\n"]


async def test_endless_line_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl_lite, "MAX_LINE_BYTES", 4)
    written: list[bytes] = []
    await copy_lines([chunks(b"a\nb", b"cdef", b"gh\n")], written.append)
    assert written == [b"a\n", b"bcdef", b"gh\n"]


async def test_error_of_one_log_ends_all() -> None:
    async def endless() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def failing() -> AsyncIterator[bytes]:
        yield b"a\n"
        raise NotFound(404, "NotFound", "gone")

    async with asyncio.timeout(10):
        with pytest.raises(NotFound, match="gone"):
            await copy_lines([endless(), failing()], bytes)


# -- waiting


async def test_wait_ends_when_condition_is_true(kubectl: KubectlLite) -> None:
    await kubectl.create(manifests.deployment("web", "nginx"))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(kubectl.wait(DEPLOYMENTS, "web", "jsonpath={.metadata.labels.done}=yes", 10))
        target = object_named("web", "default")
        await kubectl.client.patch(DEPLOYMENTS, target, {"metadata": {"labels": {"done": "yes"}}})
    assert waiting.result() == "deployment.apps/web condition met"
    with pytest.raises(TimeoutError):
        await kubectl.wait(DEPLOYMENTS, "web", "condition=Available", 0.05)
    with pytest.raises(NotFound):
        await kubectl.wait(DEPLOYMENTS, "nobody", "condition=Available", 0.05)
    assert await kubectl.wait(DEPLOYMENTS, "nobody", "delete", 10) == "deployment.apps/nobody deleted"


def conditions(*found: Object) -> Object:
    return {"metadata": {"name": "x", "generation": 2, "uid": "1"}, "status": {"conditions": list(found)}}


@pytest.mark.parametrize(
    ("goal", "obj", "expected"),
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
def test_wait_condition_matches(goal: str, obj: Object | None, expected: bool) -> None:
    assert parse_wait_condition(goal, conditions())(obj) is expected


@pytest.mark.parametrize("goal", ["", "condition", "condition=", "ready", "delete=1", "jsonpath={.a", "jsonpath={..}"])
def test_invalid_wait_condition_is_rejected(goal: str) -> None:
    with pytest.raises(ValueError):
        parse_wait_condition(goal, None)


# -- files


def test_files_folders_and_stdin_are_read_in_order(tmp_path: Path) -> None:
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
        ("just text", "-: document 1: expected an object, found str"),
        ("kind: A", "-: document 1: apiVersion: is missing"),
        ("apiVersion: v1\nkind: A\n---\napiVersion: v1", "-: document 1: metadata.name: is missing"),
    ],
)
def test_invalid_document_is_rejected_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        manifests.load_objects(["-"], io.BytesIO(text.encode()))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nope.yaml: No such file or directory$"):
        manifests.load_objects([str(tmp_path / "nope.yaml")], io.BytesIO())


def test_folder_without_manifests_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file in it ends in .yaml"):
        manifests.load_objects([str(tmp_path)], io.BytesIO())


@given(st.binary(max_size=60))
def test_any_input_is_parsed_or_rejected(data: bytes) -> None:
    try:
        found = manifests.load_objects(["-"], io.BytesIO(data))
    except ValueError:
        return
    assert all(each["kind"] for each in found)


def test_description_has_identity_fields_and_conditions() -> None:
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
