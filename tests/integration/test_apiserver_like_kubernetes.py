"""Comparison of our API server with a kube-apiserver over scripted requests."""

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
import yaml

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.local.kubernetes import ControlPlane

from .differential.replay import NAMESPACE, Caller, Step, changed, compared, paths, spoiled, steps

HERE = Path(__file__).with_name("differential")
LEAST = 400
AGENT = {"user-agent": "differential"}


ELSEWHERE = {
    *("bindings", "componentstatuses", "apiservices"),
    *("tokenreviews", "selfsubjectreviews"),
    *("subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews", "selfsubjectrulesreviews"),
}
"""Resources that are not stored, or that describe Kubernetes itself."""
SAMPLE = 11
"""Only every n-th of about thirty thousand malformed requests is sent."""

OURS = ApiServerConfig(
    backend="memory",
    secure_address="",
    local_address="127.0.0.1:0",
    authn_allow_localhost=True,
    pod_accounts=False,  # the real server has none without its controllers
    service_cluster_ip_range="10.96.0.0/16",
    log_level="error",
)


@asynccontextmanager
async def both(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[Caller, Caller]]:
    """Callers for the real server and for ours, each with the namespace of the scripts."""
    config = msgspec.structs.replace(OURS, file_rootpath=str(folder))
    tls = ssl.create_default_context(cafile=str(plane.ca))
    async with (
        run_apiserver(config) as served,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
    ):
        theirs = Caller(session, plane.url, {**AGENT, "authorization": f"Bearer {plane.token}"})
        ours = Caller(session, f"http://{served.addresses['local']}", AGENT)
        for each in (theirs, ours):
            await each.send(Step("", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
        yield theirs, ours


# Quotas, classes and the like take effect at kube-apiserver when its own caches have seen them, which on a busy machine
# may be after the next request of a script: this one wants the machine to itself.
@pytest.mark.long
async def test_both_servers_answer_alike_except_known_differences(
    control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {each["match"]: each["why"] for each in yaml.safe_load((HERE / "known.yaml").read_text())}
    requests = list(steps(HERE / "scripts"))
    found: list[str] = []
    async with both(control_plane, tmp_path) as (theirs, ours):
        for step in requests:
            found += await compared(step, theirs, ours)
    unknown = [line for line in found if not any(re.search(each, line) for each in known)]
    unused = [each for each in known if not any(re.search(each, line) for line in found)]
    with capsys.disabled():
        print(f"\n{len(requests)} requests, {len(found)} differences, {len(unknown)} unknown")  # noqa: T201
    assert len(requests) >= LEAST
    assert not unknown, "\n".join([f"{len(unknown)} of {len(requests)} requests differ:", *unknown])
    assert not unused, f"known differences that are none any longer: {unused}"


def test_every_stored_kind_has_a_table_request() -> None:
    tables = [step for step in steps(HERE / "scripts") if step.verb == "TABLE" and step.where.startswith("tables")]
    covered = {step.path.partition("?")[0] for step in tables}
    stored = {plural: path for plural, path in paths().items() if plural not in ELSEWHERE}
    assert len(stored) > 50
    assert [plural for plural, path in stored.items() if not any(each.startswith(path) for each in covered)] == []


async def test_responses_do_not_depend_on_the_spec_cache(tmp_path: Path) -> None:
    config = msgspec.structs.replace(OURS, file_rootpath=str(tmp_path))
    found: list[str] = []
    async with (
        run_apiserver(config) as cached,
        run_apiserver(config, spec_cache=SpecCache(0)) as uncached,
        aiohttp.ClientSession() as session,
    ):
        callers = [Caller(session, f"http://{each.addresses['local']}", AGENT) for each in (uncached, cached)]
        for each in callers:
            await each.send(Step("", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
        for step in steps(HERE / "scripts"):
            found += await compared(step, *callers) if step.verb != "WATCH" else ()
    assert not found


async def test_malformed_objects_cause_no_server_error(tmp_path: Path) -> None:
    made = [step for step in steps(HERE / "scripts") if step.verb == "POST" and isinstance(step.body, dict)]
    cases = [(step, changes) for step in made for changes in spoiled(step.body)][::SAMPLE]
    config = msgspec.structs.replace(OURS, file_rootpath=str(tmp_path))
    failed = []
    async with run_apiserver(config) as served, aiohttp.ClientSession() as session:
        ours = Caller(session, f"http://{served.addresses['local']}", AGENT)
        await ours.send(Step("", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
        for step, changes in cases:
            path = step.path if "dryRun" in step.path else f"{step.path}{'&' if '?' in step.path else '?'}dryRun=All"
            sent = Step(step.where, "POST", path, changed(step.body, changes), changes)
            if (await ours.send(sent)).status >= 500:
                failed.append(str(sent))
    assert len(cases) > 1000
    assert not failed
