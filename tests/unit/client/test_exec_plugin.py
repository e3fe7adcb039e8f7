"""Exec plugins with real programs, as shell scripts: output, number of runs, and isolation."""

import asyncio
import json
import os
import select
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tapestry.client import exec_plugin
from tapestry.client.credentials import Credentials
from tapestry.client.errors import CredentialsError, KubeconfigError
from tapestry.client.exec_plugin import RETRY_INTERVAL, EnvironmentVariable, ExecPlugin, ExecSpec
from tapestry.client.tls import ServerVerification, TlsContextSource

V1 = "client.authentication.k8s.io/v1"


class PluginEnvironment:
    """The clocks of a plugin and the folder of its script and output files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.monotonic = 100.0
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def program(self, script: str, **spec: Any) -> Credentials:
        """Return credentials from a script.  Each run adds a line to the file `runs`."""
        return Credentials(self.source(script, **spec), TlsContextSource(ServerVerification(insecure=True)))

    def source(self, script: str, **spec: Any) -> ExecPlugin:
        path = self.folder / "plugin"
        path.write_text(f"#!/bin/sh\necho >> {shlex.quote(str(self.folder / 'runs'))}\n{script}\n")
        path.chmod(0o700)
        return self.plugin(ExecSpec(**{"command": str(path), "api_version": V1, **spec}))

    def plugin(self, spec: ExecSpec) -> ExecPlugin:
        return ExecPlugin(
            spec,
            "users[0].user.exec",
            cluster=lambda: {"server": "https://a.test"},
            environ={"PATH": os.environ["PATH"], "HOME": "/nowhere"},
            monotonic=lambda: self.monotonic,
            now=lambda: self.now,
        )

    def prints(self, status: dict[str, Any], **changes: Any) -> None:
        """Set the output of the next run of `cat answer`."""
        answer = {"kind": "ExecCredential", "apiVersion": V1, "status": status, **changes}
        self.file("answer").write_text(json.dumps(answer))

    def cat(self) -> str:
        return f"cat {shlex.quote(str(self.file('answer')))}"

    def file(self, name: str) -> Path:
        return self.folder / name

    @property
    def runs(self) -> int:
        return len(self.file("runs").read_text()) if self.file("runs").exists() else 0


@pytest.fixture
def world(tmp_path: Path) -> PluginEnvironment:
    return PluginEnvironment(tmp_path)


def with_token(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


async def failure(credentials: Credentials) -> str:
    with pytest.raises(CredentialsError) as caught:
        await credentials.headers()
    return str(caught.value)


async def test_token_without_expiry_is_fetched_once(world) -> None:
    world.prints({"token": "abc"})
    credentials = world.program(world.cat())
    assert await credentials.headers() == with_token("abc")
    world.now += timedelta(days=365)
    assert await credentials.headers() == with_token("abc")
    assert world.runs == 1


async def test_program_runs_only_on_request(world) -> None:
    world.program("exit 1").ssl_context()
    assert world.runs == 0


async def test_token_is_renewed_before_expiry(world) -> None:
    world.prints({"token": "first", "expirationTimestamp": "2026-01-01T00:10:00Z"})
    credentials = world.program(world.cat())
    assert await credentials.headers() == with_token("first")
    world.prints({"token": "second", "expirationTimestamp": "2026-01-01T01:00:00Z"})
    world.now += timedelta(minutes=9)
    assert await credentials.headers() == with_token("first")
    world.now += timedelta(seconds=31)
    assert await credentials.headers() == with_token("second")
    assert world.runs == 2


async def test_short_lived_token_is_not_renewed_constantly(world) -> None:
    world.prints({"token": "first", "expirationTimestamp": "2026-01-01T01:00:20+01:00"})
    credentials = world.program(world.cat())
    await credentials.headers()
    world.now += timedelta(seconds=17)
    await credentials.headers()
    assert world.runs == 1
    world.now += timedelta(seconds=2)
    await credentials.headers()
    assert world.runs == 2


async def test_concurrent_requests_share_one_run(world) -> None:
    world.prints({"token": "abc"})
    credentials = world.program(world.cat())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(credentials.headers()) for _ in range(20)]
    assert [each.result() for each in tasks] == [with_token("abc")] * 20
    assert world.runs == 1


async def test_failure_is_shared_and_retried_later(world) -> None:
    credentials = world.program("echo broken >&2; exit 3")

    async def failure_text() -> str:
        return await failure(credentials)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(failure_text()) for _ in range(5)]
    assert len({each.result() for each in tasks}) == 1
    assert world.runs == 1
    world.monotonic += RETRY_INTERVAL
    await failure(credentials)
    assert world.runs == 2


async def test_rejected_token_is_fetched_again(world) -> None:
    world.prints({"token": "first"})
    credentials = world.program(world.cat())
    await credentials.headers()
    world.prints({"token": "second"})
    assert credentials.handle_unauthorized()
    assert await credentials.headers() == with_token("second")


async def test_late_rejections_of_old_token_start_no_run(world) -> None:
    world.prints({"token": "abc"})
    credentials = world.program(world.cat())
    await credentials.headers()
    for _ in range(10):
        assert credentials.handle_unauthorized()
        await credentials.headers()
    assert world.runs == 2
    world.monotonic += RETRY_INTERVAL
    credentials.handle_unauthorized()
    await credentials.headers()
    assert world.runs == 3


async def test_program_gets_exec_info_environment_and_arguments(world) -> None:
    world.prints({"token": "abc"})
    seen = shlex.quote(str(world.file("seen")))
    credentials = world.program(
        f'printf "%s\\n" "$KUBERNETES_EXEC_INFO" "$HOME" "$REGION" "$*" > {seen}; {world.cat()}',
        args=["get", "a token"],
        env=[EnvironmentVariable("REGION", "north")],
    )
    await credentials.headers()
    info, home, region, args = world.file("seen").read_text().splitlines()
    assert json.loads(info) == {"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": False}}
    assert (home, region, args) == ("/nowhere", "north", "get a token")


async def test_program_gets_cluster_info_only_on_request(world) -> None:
    world.prints({"token": "abc"})
    seen = shlex.quote(str(world.file("seen")))
    script = f'printf %s "$KUBERNETES_EXEC_INFO" > {seen}; {world.cat()}'
    await world.program(script, provide_cluster_info=True).headers()
    assert json.loads(world.file("seen").read_text())["spec"]["cluster"] == {"server": "https://a.test"}


async def test_program_has_no_terminal_and_no_input(world) -> None:
    world.prints({"token": "abc"})
    script = f"test -t 0 && exit 1; read line && exit 2; (: < /dev/tty) 2>/dev/null && exit 3; {world.cat()}"
    assert await world.program(script).headers() == with_token("abc")


async def test_v1beta1_is_supported(world) -> None:
    beta = "client.authentication.k8s.io/v1beta1"
    world.prints({"token": "abc"}, apiVersion=beta)
    assert await world.program(world.cat(), api_version=beta).headers() == with_token("abc")


async def test_command_is_found_on_its_path(world) -> None:
    world.prints({"token": "abc"})
    plugin = world.plugin(ExecSpec(command="cat", args=[str(world.file("answer"))], api_version=V1))
    assert await plugin.authorization() == "Bearer abc"


async def test_issued_certificate_is_sent_and_renewed(world, authority, client_seen_by_server) -> None:
    def issue(name: str) -> None:
        pair = authority.issue(name)
        world.prints({"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()})

    issue("first.test")
    credentials = world.program(world.cat())
    anonymous = credentials.ssl_context()
    assert await credentials.headers() == []
    first = credentials.ssl_context()
    assert first is not anonymous
    assert client_seen_by_server(first) == "first.test"
    credentials.handle_unauthorized()
    await credentials.headers()
    assert credentials.ssl_context() is first, "the same certificate again"
    assert world.runs == 2
    issue("second.test")
    world.monotonic += RETRY_INTERVAL
    credentials.handle_unauthorized()
    await credentials.headers()
    assert client_seen_by_server(credentials.ssl_context()) == "second.test"


async def test_invalid_issued_certificate_is_an_error(world) -> None:
    world.prints({"clientCertificateData": "s3cret", "clientKeyData": "s3cret"})
    credentials = world.program(world.cat())
    await credentials.headers()
    with pytest.raises(CredentialsError, match=r"users\[0\]\.user\.exec: status\.clientCertificateData") as caught:
        credentials.ssl_context()
    assert "s3cret" not in str(caught.value)


async def test_missing_program_error_contains_install_hint(world) -> None:
    spec = ExecSpec(command="no-such-program", api_version=V1, install_hint="Get it from the shelf.\n")
    message = await failure(Credentials(world.plugin(spec)))
    assert message == (
        "users[0].user.exec: 'no-such-program' cannot be run: No such file or directory; Get it from the shelf."
    )


async def test_file_that_is_not_executable_is_an_error(world) -> None:
    world.file("text").write_text("not a program")
    spec = ExecSpec(command=str(world.file("text")), api_version=V1)
    assert "cannot be run: Permission denied; install it" in await failure(Credentials(world.plugin(spec)))


@pytest.mark.parametrize("spec", [{"args": ["a\0b"]}, {"env": [EnvironmentVariable("A=B", "c")]}])
async def test_invalid_arguments_are_an_error(world, spec) -> None:
    assert "cannot be run: a NUL" in await failure(world.program("exit 0", **spec))


async def test_error_quotes_stderr_shortened_without_secrets(world) -> None:
    noise, error = "printf 'noise %.0s' $(seq 500)", r"printf '\033[31mbad key\n%s %s %s\n' $KEY $1 ${1#*=}"
    script = f"{noise} >&2; {error} >&2; exit 7"
    secrets = {"env": [EnvironmentVariable("KEY", "s3cret")], "args": ["--secret=a-rather-long-s3cret"]}
    message = await failure(world.program(script, **secrets))
    assert "ended with 7: ..." in message
    assert message.endswith("[31mbad key *** *** ***")
    assert len(message) < 600
    assert message.isprintable()


async def test_silent_failure_is_reported(world) -> None:
    assert (await failure(world.program("exit 1"))).endswith("ended with 1: it gave no reason")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", "printed no ExecCredential"),
        ("s3cret", "printed no ExecCredential"),
        ("\ufffd\udcff", "printed no ExecCredential"),
        ("[]", "printed no ExecCredential: Expected `object`, got `array`"),
        ({"status": {"token": 7}}, "Expected `str | null`, got `int` - at `$.status.token`"),
        ({"status": None}, "at `$.status`"),
        ({"kind": "Secret"}, "did not print an ExecCredential of client.authentication.k8s.io/v1"),
        ({"apiVersion": "client.authentication.k8s.io/v1beta1"}, "did not print an ExecCredential of"),
        ({"status": {}}, "neither status.token nor status.clientCertificateData"),
        ({"status": {"token": ""}}, "neither status.token nor"),
        ({"status": {"clientKeyData": "s3cret"}}, "only one of status.clientCertificateData and status.clientKeyData"),
        ({"status": {"token": "s3cret\r\nX-Evil: yes"}}, "a token with control characters"),
        ({"status": {"token": "s3cret", "expirationTimestamp": "soon"}}, "`$.status.expirationTimestamp`"),
        ({"status": {"token": "s3cret", "expirationTimestamp": "2026-01-01T00:00:00"}}, "timezone"),
    ],
)
async def test_output_is_validated_and_never_quoted(world, answer, expected) -> None:
    if isinstance(answer, str):
        world.file("answer").write_bytes(answer.encode("utf-8", "surrogateescape"))
    else:
        world.prints(**{"status": {"token": "s3cret"}, **answer})
    message = await failure(world.program(world.cat()))
    assert expected in message
    assert message.startswith("users[0].user.exec: ")
    assert "s3cret" not in message


@pytest.mark.parametrize("output", ["1", "2"])
async def test_endless_output_kills_the_program(world, output) -> None:
    message = await failure(world.program(f"yes s3cret >&{output}"))
    assert "printed more than 1048576 bytes" in message
    assert "s3cret" not in message


@pytest.fixture
def short_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "TIME_LIMIT", 0.5)


def has_ended(pid: int) -> bool:
    """Wait some seconds for a process to end.  Return whether it did."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)


async def test_hanging_program_is_killed_with_its_children(world, short_time_limit) -> None:
    family = world.file("family")
    message = await failure(world.program(f"sleep 1000 & echo $$ $! > {shlex.quote(str(family))}; wait"))
    assert "did not end within 0.5 s" in message
    assert all(has_ended(int(pid)) for pid in family.read_text().split())


async def test_cancellation_kills_the_program(world) -> None:
    world.prints({"token": "abc"})
    os.mkfifo(world.file("pid"))
    marker, pid = (shlex.quote(str(world.file(name))) for name in ("marker", "pid"))
    credentials = world.program(
        f"if [ -e {marker} ]; then {world.cat()}; else touch {marker}; echo $$ > {pid}; exec sleep 1000; fi"
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(credentials.headers())
        started = await asyncio.to_thread(world.file("pid").read_text)
        task.cancel()
    assert has_ended(int(started))
    assert await credentials.headers() == with_token("abc")


def test_programs_run_on_uvloop(world) -> None:
    world.prints({"token": "abc"})
    credentials = world.program(world.cat())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(credentials.headers()) == with_token("abc")
    endless = world.program("yes")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert "printed more than" in runner.run(failure(endless))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_version": ""}, r"exec\.apiVersion: '' is none of"),
        ({"api_version": "client.authentication.k8s.io/v1alpha1"}, r"exec\.apiVersion: .*v1alpha1' is none of"),
        ({"command": ""}, r"exec\.command: not set"),
        ({"interactive_mode": "Always"}, r"exec\.interactiveMode: 'Always' is not supported without a terminal"),
        ({"interactive_mode": "Sometimes"}, r"exec\.interactiveMode: 'Sometimes'"),
        ({"env": [EnvironmentVariable("A", "b"), EnvironmentVariable("", "b")]}, r"exec\.env\[1\]\.name: not set"),
    ],
)
def test_invalid_spec_is_rejected_before_any_run(world, changes, message) -> None:
    with pytest.raises(KubeconfigError, match=message):
        world.source("exit 0", **changes)
    assert world.runs == 0


def test_repr_shows_no_values() -> None:
    spec = ExecSpec(command="plugin", args=["s3cret"], env=[EnvironmentVariable("KEY", "s3cret")])
    assert repr(spec) == "ExecSpec('plugin')"
