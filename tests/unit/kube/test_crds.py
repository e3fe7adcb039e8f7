"""Tests of kinds and their CRDs. Complete CRDs are golden files; `REWRITE_GOLDEN=1 pytest ...` rewrites them."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from msgspec import UNSET, Meta, UnsetType, field

from tapestry.kube.api_types import (
    AS_SET,
    IMMUTABLE,
    NULLABLE,
    ApiStruct,
    Conditions,
    Duration,
    EmbeddedResource,
    IntOrString,
    QuantityText,
    as_map,
    cel_rule,
)
from tapestry.kube.crds import AGE, Column, InvalidSpec, Kind, Scale, crd, decode_spec
from tapestry.kube.resources import Resource
from tapestry.kube.schemas import SchemaError

GOLDEN = Path(__file__).parents[2] / "golden" / "crds"


class AtSpec(ApiStruct):
    """Command to run and its schedule."""

    schedule: Annotated[datetime, Meta(description="Time to run the command.")]
    command: Annotated[str, Meta(description="A shell command.", min_length=1), IMMUTABLE]


class AtStatus(ApiStruct):
    phase: Literal["Pending", "Running", "Done"] = "Pending"


AT = Kind(
    Resource("demo.wukong.com", "v1alpha1", "At", "ats"),
    spec=AtSpec,
    status=AtStatus,
    short_names=("at",),
    columns=(Column("Schedule", ".spec.schedule", "date"), Column("Phase", ".status.phase"), AGE),
)


class WebAppSpec(ApiStruct):
    image: str
    replicas: Annotated[int, Meta(ge=0, le=1000)] = 1


class WebAppStatus(ApiStruct):
    replicas: int = 0
    selector: str = ""
    conditions: Conditions = ()


WEB_APP = Kind(
    Resource("demo.wukong.com", "v1", "WebApp", "webapps"),
    spec=WebAppSpec,
    status=WebAppStatus,
    description="A web application.",
    categories=("all",),
    columns=(Column("Ready", '.status.conditions[?(@.type=="Ready")].status'), AGE),
    scale=Scale(label_selector=".status.selector"),
)


class OldWebAppSpec(ApiStruct):
    image: str


OLD_WEB_APP = Kind(replace(WEB_APP.resource, version="v1alpha1"), OldWebAppSpec, status=WebAppStatus, storage=False)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Window(ApiStruct):
    """A period of the day."""

    start: Annotated[str, Meta(pattern="^[0-9]{2}:[0-9]{2}$", max_length=5, description="The first minute.")] = "00:00"
    end: Annotated[str, Meta(pattern="^[0-9]{2}:[0-9]{2}$", max_length=5)] = "23:59"
    note: str | None = None

    __rules__ = (
        cel_rule("self.start < self.end", message_expression="'ends at ' + self.end", field_path=".end"),
        cel_rule("self.start != '13:13'", "an unlucky start", reason="FieldValueForbidden"),
    )


class Port(ApiStruct):
    number: Annotated[int, Meta(gt=0, lt=65536), IMMUTABLE]
    protocol: Literal["TCP", "UDP"] = "TCP"
    target: IntOrString = "http"


class SinkSpec(ApiStruct):
    """One field of each type.

    And a second paragraph.
    """

    cluster_id: Annotated[str, Meta(max_length=24), IMMUTABLE] = field(name="clusterID")
    required_but_null: int | None
    ratio: Annotated[float, Meta(gt=0, le=1, title="Ratio")] = 0.5
    pairs: Annotated[int, Meta(multiple_of=2)] = 4
    color: Color = Color.RED
    level: Literal[1, 2, 3] | None = None
    verbose: bool = False
    window: Annotated[Window, Meta(description="Opening hours.")] = Window(end="12:00")
    other_window: Window | None = None
    windows: Annotated[list[Window], Meta(min_length=1, max_length=7)] = field(default_factory=lambda: [Window()])
    labels: Annotated[dict[str, Annotated[str, Meta(max_length=63)]], Meta(max_length=10)] = field(default_factory=dict)
    by_name: Annotated[dict[str, Window], Meta(max_length=10)] = field(default_factory=dict)
    days: Annotated[tuple[str, ...], AS_SET] = ("Mon", "Sun")
    zones: frozenset[str] = frozenset({"b", "a"})
    ports: Annotated[tuple[Port, ...], as_map("number", "protocol"), Meta(max_length=5)] = ()
    holes: list[int | None] = field(default_factory=list)
    nullable: Annotated[str | None, NULLABLE] = None
    max_unavailable: IntOrString = "25%"
    memory: QuantityText = "1Gi"
    timeout: Annotated[Duration, cel_rule("self <= duration('1h')", "an hour is enough")] = Duration(minutes=1.5)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    email: Annotated[str, Meta(extra_json_schema={"format": "email"})] | UnsetType = UNSET
    template: EmbeddedResource | None = None
    anything: Any = None
    blob: dict[str, Any] = field(default_factory=dict)

    __rules__ = (cel_rule("self.ratio < 1.0 || self.verbose", "a ratio of 1 is verbose"),)


SINK = Kind(Resource("demo.wukong.com", "v1", "KitchenSink", "kitchensinks", namespaced=False), SinkSpec)

A_SINK = {"clusterID": "c1", "requiredButNull": None}


@pytest.mark.parametrize("kinds", [(AT,), (OLD_WEB_APP, WEB_APP), (SINK,)], ids=lambda kinds: kinds[0].resource.plural)
def test_crd_matches_golden_file(kinds: tuple[Kind[Any], ...]) -> None:
    golden = GOLDEN / f"{kinds[0].resource.plural}.yaml"
    text = yaml.safe_dump(crd(*kinds), sort_keys=False, width=120, allow_unicode=True)
    if os.environ.get("REWRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_kind_without_status_has_no_subresources() -> None:
    (version,) = crd(SINK)["spec"]["versions"]
    assert "subresources" not in version
    assert "status" not in version["schema"]["openAPIV3Schema"]["properties"]


def test_spec_is_always_required() -> None:
    class Empty(ApiStruct): ...

    (version,) = crd(Kind(AT.resource, Empty))["spec"]["versions"]
    assert version["schema"]["openAPIV3Schema"]["required"] == ["spec"]


def test_versions_keep_order_and_flags() -> None:
    versions = crd(replace(OLD_WEB_APP, served=False), WEB_APP)["spec"]["versions"]
    assert [(version["name"], version["served"], version["storage"]) for version in versions] == [
        ("v1alpha1", False, False),
        ("v1", True, True),
    ]


@pytest.mark.parametrize(("old", "new"), [(True, True), (False, False)])
def test_exactly_one_storage_version_is_required(old: bool, new: bool) -> None:
    with pytest.raises(
        ValueError, match=r"webapps.demo.wukong.com/v1alpha1, .*/v1: exactly one version must have storage=True"
    ):
        crd(replace(OLD_WEB_APP, storage=old), replace(WEB_APP, storage=new))


def test_versions_of_different_kinds_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"ats.demo.wukong.com/v1alpha1, webapps.* differ only in the version"):
        crd(replace(AT, storage=False), WEB_APP)


@pytest.mark.parametrize("path", [".status.fase", ".spec.schedule.hour", ".state", ".spec.constructor"])
def test_column_path_must_exist(path: str) -> None:
    with pytest.raises(SchemaError, match=f"At: {path} is in neither AtSpec nor the status"):
        crd(replace(AT, columns=(Column("Phase", path),)))


@pytest.mark.parametrize("path", [".metadata.name", ".spec.labels.app", ".spec.blob.a.b", ".spec.byName.x.start"])
def test_column_may_show_maps_and_metadata(path: str) -> None:
    (version,) = crd(replace(SINK, columns=(Column("X", path, priority=1),)))["spec"]["versions"]
    assert version["additionalPrinterColumns"] == [{"name": "X", "jsonPath": path, "type": "string", "priority": 1}]


def test_scale_paths_must_exist() -> None:
    with pytest.raises(SchemaError, match=r"WebApp: \.spec\.size is in neither"):
        crd(replace(WEB_APP, scale=Scale(spec_replicas=".spec.size")))


def test_spec_is_decoded_with_defaults() -> None:
    obj = {"spec": {"schedule": "2026-11-15T08:00:00+08:00", "command": "date", "unheardOf": 1}}
    assert decode_spec(AT, obj) == AtSpec(datetime(2026, 11, 15, tzinfo=UTC), "date")
    sink = decode_spec(
        SINK, {"spec": {**A_SINK, "timeout": "1h2m3.5s", "windows": [{"end": "08:00"}], "zones": ["a", "a"]}}
    )
    assert sink == SinkSpec(
        "c1",
        None,
        timeout=Duration(hours=1, minutes=2, seconds=3.5),
        windows=[Window(end="08:00")],
        zones=frozenset("a"),
    )


def test_server_defaults_equal_struct_defaults() -> None:
    properties = crd(SINK)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    assert decode_spec(SINK, {"spec": {**defaults, **A_SINK}}) == decode_spec(SINK, {"spec": A_SINK})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"requiredButNull": 1}, "spec.clusterID: is required"),
        ({**A_SINK, "ports": [{}]}, "spec.ports[0].number: is required"),
        ({**A_SINK, "ports": [{"number": 1}, {"number": 0}]}, "spec.ports[1].number: expected `int` >= 1, found 0"),
        ({**A_SINK, "verbose": "yes"}, "spec.verbose: expected `bool`, got `str`, found 'yes'"),
        ({**A_SINK, "timeout": "soon"}, "spec.timeout: expected a duration like `1h30m`, found 'soon'"),
        ({**A_SINK, "timeout": "-5s"}, "spec.timeout: expected a duration like `1h30m`, found '-5s'"),
        ({**A_SINK, "timeout": 90}, "spec.timeout: expected `duration`, got `int`, found 90"),
        ({**A_SINK, "labels": {"a.b": 1}}, "spec.labels[...]: expected `str`, got `int`"),
        (None, "spec: expected `object`, got `null`, found None"),
    ],
)
def test_invalid_spec_is_rejected_with_path(spec: Any, message: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        decode_spec(SINK, {"spec": spec})
    assert str(caught.value) == message


def test_missing_spec_is_decoded_as_empty() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.schedule: is required"):
        decode_spec(AT, {})
