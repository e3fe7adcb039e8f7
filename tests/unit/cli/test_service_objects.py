"""`tapestry op|project|quota|key|audit`."""

import json

from tapestry.vclusters.api import vcluster_api_pb2 as api

from .service_commands import Commands, commands

__all__ = ["commands"]


async def test_operation_is_listed_and_awaited(commands: Commands) -> None:
    await commands.output("vc", "create", "blue", "--no-wait")
    assert (await commands.output("op", "list")).splitlines()[1].split() == ["op-0", "Create", "blue", "0%", "-"]
    result = await commands.run("op", "wait", "op-0")
    assert (result.stdout, "CheckHost: Done" in result.stderr) == ("operation op-0 is done\n", True)
    assert (await commands.output("op", "get", "op-0")).splitlines()[1].split()[3] == "Done"
    assert "being cancelled" in await commands.output("op", "cancel", "op-0")
    assert "deleted" in await commands.output("op", "delete", "op-0")
    methods = [each.method for each in commands.service.calls[-2:]]
    assert methods == ["CancelOperation", "DeleteOperation"]


async def test_failed_operation_is_an_error(commands: Commands) -> None:
    commands.service.failure = "no room"
    await commands.output("vc", "create", "blue", "--no-wait")
    assert await commands.error("op", "wait", "op-0") == "Error: no room (STEP_FAILED)"
    assert "Failed" in await commands.output("op", "list", "-o", "wide")


async def test_members_of_a_project_change(commands: Commands) -> None:
    created = await commands.output("project", "create", "web", "--member", "ada=admin", "--member", "group:dev=editor")
    assert "ada:admin,dev:editor" in created
    updated = await commands.output("project", "update", "web", "--member", "ben=viewer", "--member", "ada=")
    assert "dev:editor,ben:viewer" in updated
    assert "'owner' is none of" in await commands.error("project", "update", "web", "--member", "ben=owner")
    request = next(each.request for each in commands.service.calls if each.method == "UpdateProject")
    assert list(request.update_mask.paths) == ["members"]
    assert [each.kind for each in request.project.members] == ["Group", "User"]
    assert len((await commands.output("project", "list")).splitlines()) == 2
    assert "web" in await commands.output("project", "get", "web", "-o", "yaml")
    assert await commands.output("project", "delete", "web") == "project web deleted\n"


async def test_limits_that_are_not_named_stay(commands: Commands) -> None:
    commands.service.stored["quota/shop"] = api.Quota(project="shop", limits={"vclusters": "5", "storage": "1Gi"})
    printed = await commands.output("quota", "set", "shop", "--limit", "vclusters=10", "--user-limit", "vclusters=2")
    assert "storage 0/1Gi, vclusters 0/10" in printed
    request = commands.service.calls[-1].request
    assert dict(request.quota.user_limits) == {"vclusters": "2"}
    assert list(request.update_mask.paths) == ["limits", "user_limits"]
    assert "shop" in await commands.output("quota", "get", "shop")
    assert "shop" in await commands.output("quota", "list")
    assert "give a limit" in await commands.error("quota", "set", "shop")


async def test_key_is_printed_once(commands: Commands) -> None:
    words = ("--principal", "ci", "--scope", "shop=editor", "--expire-time", "2031-05-01T12:00:00Z")
    assert await commands.output("key", "create", *words) == "tap_secret\n"
    request = commands.service.calls[-1].request.access_key
    assert (request.principal, request.scopes[0].project, request.scopes[0].role) == ("ci", "shop", "editor")
    listed = await commands.output("key", "list")
    assert "shop:editor" in listed
    assert "tap_secret" not in listed
    assert "ci" in await commands.output("key", "get", "key-1")
    assert "key-1 deleted" in await commands.output("key", "delete", "key-1")


async def test_audit_records_are_exported_and_verified(commands: Commands) -> None:
    commands.service.stored["auditrecord/1"] = api.AuditRecord(method="DeleteVCluster", principal="ada")
    assert "DeleteVCluster" in await commands.output("audit", "list", "--limit", "1", "--principal", "ada")
    line = json.loads(await commands.output("audit", "export", "--start-time", "2031-05-01T00:00:00Z"))
    assert line["principal"] == "alice"
    complete = api.VerifyAuditRecordsResponse(is_complete=True, records=7)
    commands.service.stored["verification"] = complete
    assert await commands.output("audit", "verify") == "7 records are complete\n"
    complete.gaps.add(instance="a", sequence=3, message="is missing")
    result = await commands.run("audit", "verify")
    assert (result.exit_code, result.stdout) == (1, "a from record 3: is missing\n")
