"""Flags of `tapestry apiserver` and the resulting configuration."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.cli import apiserver


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parse a command line into a configuration or an error message."""

    def settings_of(*arguments: str) -> ApiServerConfig | str:
        found: list[ApiServerConfig] = []
        monkeypatch.setattr(apiserver, "run", found.append)
        result = CliRunner().invoke(apiserver.apiserver, arguments)
        return found[0] if found else result.output

    return settings_of


def test_required_command_line_is_accepted(settings: Any) -> None:
    found = settings(
        "--backend=etcd",
        "--etcd-servers=http://127.0.0.1:2379",
        "--request-timeout=60m",
        "--token-auth-file=config/token.csv",
        "--unrestricted-update=true",
        "-v=10",
        "--kubectl-disabled=false",
        "--kubectl-ephemeral-token=false",
        "--authn-allow-localhost=true",
    )
    assert (found.backend, found.etcd.servers) == ("etcd", ["http://127.0.0.1:2379"])
    assert (found.request_timeout, found.log_level) == (3600.0, "debug")
    assert (found.unrestricted_update, found.authn_allow_localhost) == (True, True)
    assert (found.kubectl_disabled, found.kubectl_ephemeral_token) == (False, False)


def test_boolean_flag_needs_no_value(settings: Any) -> None:
    found = settings("--authn-allow-localhost", "--kubectl-ephemeral-token", "--backend", "memory")
    assert (found.authn_allow_localhost, found.kubectl_ephemeral_token, found.backend) == (True, True, "memory")


def test_user_and_audit_flags_have_kubernetes_names(settings: Any) -> None:
    found = settings(
        "--anonymous-auth=false",
        "--api-audiences=a,b",
        "--service-account-key-file=old.pub,new.pub",
        "--audit-log-path=/tmp/audit.log",
        "--audit-log-maxsize=5",
        "--max-mutating-requests-inflight=7",
        "--max-connections=70",
        "--max-connections-per-user=8",
        "--max-objects=100",
        "--max-bytes=1000000",
        "--max-watches=9",
        "--request-timeout=2.5",
    )
    assert found.anonymous_auth is False
    assert found.api_audiences == ["a", "b"]
    assert found.service_account_key_files == ["old.pub", "new.pub"]
    assert (found.audit_log_path, found.audit_log_maxsize) == ("/tmp/audit.log", 5)
    assert (found.max_mutating_requests_inflight, found.request_timeout) == (7, 2.5)
    assert (found.max_connections, found.max_connections_per_user) == (70, 8)
    assert (found.max_objects, found.max_bytes, found.max_watches) == (100, 1_000_000, 9)


@pytest.mark.parametrize(
    ("flag", "fault"),
    [
        ("--request-timeout=soon", "--request-timeout"),
        ("--request-timeout=0", "requestTimeout"),
        ("--unrestricted-update=maybe", "--unrestricted-update"),
        ("--max-requests-inflight=-1", "maxRequestsInflight"),
        ("--max-connections=0", "maxConnections"),
        ("--max-objects=-1", "maxObjects"),
    ],
)
def test_invalid_value_is_rejected_with_flag_name(settings: Any, flag: str, fault: str) -> None:
    found = settings(flag)
    assert isinstance(found, str)
    assert fault in found


@pytest.mark.parametrize(
    ("controllers", "is_missing"), [(["*"], True), (["none"], True), (["*", "scheduler"], True), (["*", "jobs"], False)]
)
async def test_missing_workload_controllers_are_logged(
    controllers: list[str],
    is_missing: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    stopping = asyncio.Event()
    stopping.set()
    monkeypatch.setattr(apiserver, "stop_event", lambda: stopping)
    config = ApiServerConfig(
        backend="memory", file_rootpath=str(tmp_path), secure_address="", controllers=controllers, pod_accounts=False
    )
    await apiserver.serve(config)
    assert any("runs no workload controllers" in each.getMessage() for each in caplog.records) is is_missing
