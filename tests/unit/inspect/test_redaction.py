"""Redaction of objects and texts."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.inspect.redaction import Redaction, credentials_in, secrets_in
from tapestry.process.logs import MASK

PEM = "-----BEGIN CERTIFICATE-----\nTUlJRHNlY3JldA==\n-----END CERTIFICATE-----"
CONTAINER: dict[str, Any] = {
    "name": "web",
    "image": "nginx:1.27",
    "command": ["/bin/sh", "-c", "echo planted-command"],
    "args": ["--password", "planted-argument"],
    "env": [
        {"name": "MODE", "value": "planted-variable"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
    ],
    "livenessProbe": {
        "exec": {"command": ["check", "planted-probe"]},
        "httpGet": {"path": "/?key=planted-path", "httpHeaders": [{"name": "X-Key", "value": "planted-header"}]},
    },
    "lifecycle": {"preStop": {"exec": {"command": ["curl", "planted-hook"]}}},
    "resources": {"requests": {"cpu": "1"}},
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": '{"env": "planted-annotation"}',
            keys.EXPECTED_METADATA: '{"annotations": {"a": "planted-copy"}}',
            "tapestry.io/of-a-tenant": "planted-tenant",
            keys.LEASE_ENDS: "2026-03-01T22:00:00Z",
        },
        "managedFields": [{"fieldsV1": {'v:"planted-managed"': {}}}],
    },
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "ephemeralContainers": [CONTAINER],
        "tolerations": [{"key": "gpu", "value": "a100"}],
        "volumes": [
            {"name": "a", "csi": {"driver": "d", "volumeAttributes": {"share": "planted-attribute"}}},
            {"name": "b", "flexVolume": {"driver": "d", "options": {"secret": "planted-option"}}},
        ],
    },
    "status": {
        "message": "pulling https://user:planted-userinfo@host/image",
        "containerStatuses": [
            {
                "name": "web",
                "lastState": {"terminated": {"exitCode": 1, "message": "planted-last-words"}},
                "state": {"waiting": {"message": "Authorization: Bearer planted-bearer"}},
            }
        ],
    },
}
OTHERS: list[dict[str, Any]] = [
    {"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": base64.b64encode(b"planted-data").decode()}},
    {"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "planted-string"}},
    {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "planted-config"}, "binaryData": {"b": "planted-b"}},
    {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [CONTAINER]}}}},
    {"kind": "Event", "metadata": {"name": "e"}, "message": f"token=planted-event {PEM}"},
    {"kind": "Webhook", "metadata": {"name": "w"}, "clientConfig": {"caBundle": "planted-bundle"}},
    {"kind": "Config", "metadata": {"name": "k"}, "users": [{"user": {"token": "planted-t", "password": "planted-p"}}]},
    {"kind": "Config", "metadata": {"name": "k"}, "clusters": [{"certificate-authority-data": "planted-authority"}]},
]


@pytest.mark.parametrize("obj", [POD, *OTHERS], ids=lambda obj: obj["kind"])
def test_safety_rule_7_planted_secret_is_masked_in_object(obj: dict[str, Any]) -> None:
    planted = (
        str(obj).count("planted") + str(obj).count("TUlJR") + str(obj).count(base64.b64encode(b"planted-data").decode())
    )
    assert planted
    masked = str(Redaction().redact_object(obj))
    assert "planted" not in masked
    assert "TUlJR" not in masked
    assert base64.b64encode(b"planted-data").decode() not in masked


def test_useful_fields_remain() -> None:
    masked = Redaction().redact_object(POD)
    (container,) = masked["spec"]["containers"]
    assert (container["name"], container["image"], container["resources"]) == (
        "web",
        "nginx:1.27",
        {"requests": {"cpu": "1"}},
    )
    assert container["env"] == [{"name": "MODE", "value": MASK}, CONTAINER["env"][1]]
    assert masked["metadata"]["annotations"][keys.LEASE_ENDS] == "2026-03-01T22:00:00Z"
    assert masked["spec"]["tolerations"] == POD["spec"]["tolerations"]
    assert masked["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert "managedFields" not in masked["metadata"]


def test_redaction_does_not_change_the_object() -> None:
    before = str(POD)
    Redaction().redact_object(POD)
    assert str(POD) == before


KNOWN = "correct horse battery staple"


@given(before=st.text(max_size=30), after=st.text(max_size=30), encoded=st.booleans())
def test_safety_rule_7_known_secret_is_masked_in_text(before: str, after: str, encoded: bool) -> None:
    secret = base64.b64encode(KNOWN.encode()).decode() if encoded else KNOWN
    redaction = Redaction(frozenset({KNOWN}))
    assert secret.rstrip("=") not in redaction.redact_text(f"{before}{secret}{after}")
    assert secret.rstrip("=") not in str(
        redaction.redact_object({"status": {f"{before}{secret}": [{"reason": secret}]}})
    )


def test_secrets_come_from_secret_objects_and_variable_names() -> None:
    kubeconfig = 'users:\n- user:\n    token: "0123456789abcdef"\n    client-key-data: S0VZS0VZS0VZ\n'
    encoded = {
        key: base64.b64encode(text.encode()).decode()
        for key, text in {
            "kubeconfig": kubeconfig,
            "password": "hunter2hunter2",
            "short": "true",
            "namespace": "tapestry-system",
        }.items()
    }
    variables = [{"name": "DB_PASSWORD", "value": "swordfish-9"}, {"name": "MODE", "value": "production"}]
    found = secrets_in(
        [
            {"kind": "Secret", "data": {**encoded, "broken": "="}},
            {"kind": "ConfigMap", "data": {"a": "no secret at all"}},
            {"kind": "Pod", "spec": {"containers": [{"name": "c", "env": variables}]}},
        ]
    )
    assert found == {"0123456789abcdef", "S0VZS0VZS0VZ", "hunter2hunter2", "swordfish-9"}


def test_kubeconfig_credentials_are_found_in_yaml_and_json() -> None:
    assert list(credentials_in("    token: abc\n    server: https://host\n")) == ["abc"]
    assert list(credentials_in('{"user": {"token": "abc", "password":"def"}}')) == ["abc", "def"]
