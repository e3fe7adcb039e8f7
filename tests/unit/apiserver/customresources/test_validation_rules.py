"""CEL validation rules, compared with the responses of a kube-apiserver in tests/golden/cel."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.core.cel_types import escaped_name
from tapestry.apiserver.customresources.field_paths import PathError, normalized_path
from tapestry.apiserver.customresources.rule_validation import rule_faults
from tapestry.apiserver.customresources.validation_rules import compile_rules
from tapestry.kube.objects import Object

from ..conftest import ServerClient

GOLDEN = Path(__file__).parents[3] / "golden" / "cel"
RULES = "x-kubernetes-validations"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/widgets"
TEXT = {"type": "string"}


def cases(name: str) -> list[Any]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


def comparable(message: str) -> str:
    """The message without the value and without the name of the function that has no overload."""
    without_value = re.sub(r'^Invalid value: ("object"|\{.*?"OptionalOldSelf":\w+\}): ', "", message)
    return re.sub("no such overload: [a-z]+", "no such overload", without_value)


def test_expressions_behave_as_in_kubernetes() -> None:
    subject = json.loads((GOLDEN / "subject.json").read_text())
    different = []
    for case in cases("expressions.jsonl"):
        field = {**subject["schema"], RULES: [{"rule": case["rule"]}]}
        schema = {"type": "object", "properties": {"e": field}}
        faults = list(rule_faults(schema, "spec"))
        if not faults:
            rules = compile_rules(schema)
            assert rules is not None
            faults = rules.faults({"e": subject["value"]}, None, [], [])
        message = comparable(faults[0].message).replace("selfType.e", "selfType") if faults else ""
        # after the first syntax error, the messages differ
        is_syntax_error = "Syntax error" in case["said"] and message.startswith("compilation failed")
        if message != comparable(case["said"]) and not is_syntax_error:
            different.append((case["rule"], case["said"], message))
    assert not different


@pytest.mark.parametrize("case", cases("rules.jsonl"))
def test_rules_report_same_faults_as_kubernetes(case: Object) -> None:
    rules = compile_rules({"type": "object", "properties": {"e": case["schema"]}})
    assert rules is not None
    old = {"e": case["old"]} if case["old"] is not None else {}
    faults = rules.faults({"e": case["new"], "changed": 1}, {**old, "changed": 0}, [], [])
    assert [f"{each.path[1:]}: {each.message}" for each in faults] == case["said"]


def test_unchanged_violation_causes_warning() -> None:
    rules = compile_rules({"type": "object", "properties": {"e": {**TEXT, RULES: [{"rule": "self == 'good'"}]}}})
    assert rules is not None
    warnings: list[str] = []
    assert rules.faults({"e": "bad", "x": 1}, {"e": "bad"}, [], warnings) == []
    assert warnings == ["e: Invalid value: \"string\": failed rule: self == 'good'"]


def test_expensive_rule_stops_evaluation() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    slow = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"
    rules = compile_rules(
        {"type": "object", "properties": {"e": {**numbers, RULES: [{"rule": slow}, {"rule": "false"}]}}}
    )
    assert rules is not None
    [fault] = rules.faults({"e": list(range(500))}, None, [], [])
    assert "no further validation rules will be run due to call cost exceeds limit" in fault.message


def test_schema_without_rules_compiles_to_none() -> None:
    assert compile_rules({"type": "object", "properties": {"e": TEXT}}) is None


@pytest.mark.parametrize(
    ("rule", "field", "message"),
    [
        ({"rule": "self.nope == 1"}, "rule", "compilation failed: ERROR: <input>:1:5: undefined field 'nope'"),
        ({"rule": ""}, "rule", "Required value: rule is not specified"),
        ({"rule": "true", "message": " "}, "message", 'Invalid value: " ": must be non-empty if specified'),
        ({"rule": "true", "message": "a\nb"}, "message", "must not contain line breaks"),
        ({"rule": "true\n&& true"}, "message", "message must be specified if rule contains line breaks"),
        ({"rule": "true", "messageExpression": " "}, "messageExpression", "must be non-empty if specified"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression", "must evaluate to a string"),
        ({"rule": "true", "messageExpression": "nope"}, "messageExpression", "messageExpression compilation failed"),
        ({"rule": "true", "reason": "Because"}, "reason", 'Unsupported value: "Because"'),
        ({"rule": "true", "fieldPath": ".nope"}, "fieldPath", 'Invalid value: ".nope": must be a valid path'),
        ({"rule": "true", "optionalOldSelf": True}, "optionalOldSelf", "may not be set if oldSelf is not used in rule"),
        ({"rule": "int('x') == 1"}, "rule", "program instantiation failed"),
        ({"rule": "self.a"}, "rule", "cel expression must evaluate to a bool"),
    ],
)
def test_invalid_rule_is_reported_with_path(rule: Object, field: str, message: str) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": TEXT}, RULES: [rule]}}}
    [fault] = rule_faults(schema, "schema")
    assert fault.path == f"schema.properties[spec].{RULES}[0].{field}"
    assert message in fault.message


def test_old_self_is_rejected_in_unkeyed_list() -> None:
    items = {"type": "array", "items": {**TEXT, RULES: [{"rule": "self == oldSelf"}]}}
    [fault] = rule_faults({"type": "object", "properties": {"a": items}}, "schema")
    assert fault.message.endswith("the uncorrelatable portion of the schema within schema.properties[a]")


def test_rule_with_excessive_estimated_cost_is_rejected() -> None:
    rule = {"rule": "self.all(s, s == 'x')"}
    texts = {"type": "array", "items": TEXT, RULES: [rule]}
    [fault] = rule_faults({"type": "object", "properties": {"a": {"type": "array", "items": texts}}}, "schema")
    assert (fault.path, fault.reason) == (f"schema.properties[a].items.{RULES}[0].rule", "FieldValueForbidden")
    assert "estimated rule cost exceeds budget by factor of more than 100x" in fault.message
    bounded = {"type": "array", "items": {**texts, "maxItems": 100}, "maxItems": 100}
    assert not list(rule_faults({"type": "object", "properties": {"a": bounded}}, "schema"))


def test_invalid_pattern_is_rejected() -> None:
    [fault] = rule_faults({"type": "object", "properties": {"a": {**TEXT, "pattern": "[a"}}}, "schema")
    message = "must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[a`"
    assert (fault.path, fault.message) == ("schema.properties[a].pattern", f'Invalid value: "[a": {message}')


def test_rules_in_branches_are_rejected() -> None:
    branch = {"properties": {"a": {RULES: [{"rule": "true"}]}}}
    [fault] = rule_faults({"type": "object", "properties": {"a": TEXT}, "allOf": [branch]}, "schema")
    assert (fault.path, fault.message) == (
        f"schema.allOf[0].properties[a].{RULES}",
        "Forbidden: must be empty to be structural",
    )


def test_field_names_are_escaped() -> None:
    names = ("plain", "a-b", "a.b/c", "a__b", "namespace", "1a", "ü")
    assert [escaped_name(each) for each in names] == [
        *("plain", "a__dash__b", "a__dot__b__slash__c", "a__underscores__b", "__namespace__"),
        *(None, None),
    ]


def test_field_path_is_resolved_in_schema() -> None:
    schema = {"properties": {"a-b": {"additionalProperties": {"properties": {"c": TEXT}}}}}
    assert normalized_path("['a-b']['k k'].c", schema) == ".a-b[k k].c"
    for invalid in ("a", ".nope", "['a-b'", "['a-b'].k.nope", ".a-b[0]"):
        with pytest.raises(PathError):
            normalized_path(invalid, schema)


# -- with a server


def definition_body(schema: Object) -> Object:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]},
    }


def schema_body(*rules: Object) -> Object:
    spec = {"type": "object", "properties": {"size": {"type": "integer"}, "owner": TEXT}, RULES: list(rules)}
    return {"type": "object", "properties": {"spec": spec}}


async def test_definition_with_invalid_rule_is_rejected(call: ServerClient) -> None:
    status, response = await call("POST", DEFINITIONS, definition_body(schema_body({"rule": "self.weight > 1"})))
    assert status == 422
    [cause] = response["details"]["causes"]
    assert cause["field"] == f"spec.validation.openAPIV3Schema.properties[spec].{RULES}[0].rule"
    assert "undefined field 'weight'" in cause["message"]


async def test_object_that_violates_rule_is_rejected(call: ServerClient) -> None:
    only_grows = {
        "rule": "!has(oldSelf.size) || self.size >= oldSelf.size",
        "message": "only grows",
        "fieldPath": ".size",
    }
    await call.made(DEFINITIONS, definition_body(schema_body({"rule": "self.size < 10"}, only_grows)))
    status, response = await call("POST", WIDGETS, {"metadata": {"name": "a"}, "spec": {"size": 10}})
    assert status == 422
    assert response["message"] == (
        'Widget.example.com "a" is invalid: spec: Invalid value: "object": failed rule: self.size < 10'
    )
    await call.made(WIDGETS, {"metadata": {"name": "a"}, "spec": {"size": 5}})
    smaller = {"spec": {"size": 4}}
    status, response = await call("PATCH", f"{WIDGETS}/a", smaller, kind="application/merge-patch+json")
    assert (status, response["details"]["causes"][0]["field"]) == (422, "spec.size")


async def test_rules_are_skipped_if_schema_is_violated(call: ServerClient) -> None:
    await call.made(DEFINITIONS, definition_body(schema_body({"rule": "self.size < 10"})))
    status, response = await call("POST", WIDGETS, {"metadata": {"name": "a"}, "spec": {"size": "big"}})
    assert status == 422
    assert "some validation rules were not checked because the object was invalid" in response["message"]


async def test_new_rules_apply_to_changed_values_only(call: ServerClient) -> None:
    definition = await call.made(DEFINITIONS, definition_body(schema_body()))
    await call.made(WIDGETS, {"metadata": {"name": "a"}, "spec": {"size": 50}})
    changed = {**definition, "spec": definition_body(schema_body({"rule": "self.size < 10"}))["spec"]}
    assert (await call("PUT", f"{DEFINITIONS}/widgets.example.com", changed))[0] == 200
    relabeled = {"metadata": {"labels": {"a": "b"}}}
    assert (await call("PATCH", f"{WIDGETS}/a", relabeled, kind="application/merge-patch+json"))[0] == 200
    bigger = {"spec": {"size": 51}}
    assert (await call("PATCH", f"{WIDGETS}/a", bigger, kind="application/merge-patch+json"))[0] == 422
