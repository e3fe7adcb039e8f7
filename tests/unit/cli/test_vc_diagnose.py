"""`tapestry vc diagnose`."""

from tapestry.vclusters.api import vcluster_api_pb2 as api

from .service_commands import Commands, commands

__all__ = ["commands"]


async def faults(commands: Commands) -> list[str]:
    """Return the lines about faults, without advice."""
    result = await commands.run("vc", "diagnose", "blue")
    head, *lines = result.stdout.splitlines()
    texts = [each.strip() for each in lines if not each.startswith("    advice: ")]
    assert len(lines) == 2 * len(texts), "each fault has one line of advice"
    assert result.exit_code == 1
    assert head.startswith("virtual cluster shop/blue is ")
    return texts


async def test_diagnose_names_what_is_wrong(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    assert "nothing is wrong" in await commands.output("vc", "diagnose", "blue")
    status = commands.service.clusters["blue"].status
    status.phase, status.reason, status.message = api.PHASE_ERROR, "CreateFailed", "no room"
    status.conditions.add(type="HostUnreachable", status="True", message="no answer")
    status.conditions.add(type="Ready", status="False", reason="Starting")
    operation = commands.service.operations["op-0"]
    operation.error.message = "step failed"
    operation.steps[0].error = "no answer"
    assert await faults(commands) == [
        "CreateFailed: no room",
        "condition HostUnreachable is True: no answer",
        "condition Ready is False: Starting",
        f"operation op-0 (Create) failed in step {operation.steps[0].name}: step failed",
    ]
    await commands.output("vc", "create", "green")
    commands.service.clusters["blue"].status.Clear()
    commands.service.operations = dict(reversed(commands.service.operations.items()))  # newest first
    assert (await commands.run("vc", "diagnose", "blue")).exit_code == 0


async def test_diagnose_reads_the_host_and_the_pods(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    commands.service.clusters["blue"].host_cluster = "east"
    host = api.HostCluster(name="east")
    host.conditions.add(type="Reachable", status="False", message="no response for 30 s")
    commands.service.stored["hostcluster/east"] = host
    unreachable, pods = await faults(commands)
    assert unreachable == "host cluster east is not reachable: no response for 30 s"
    assert pods.startswith("the pods were not read: ")  # this service serves no planes
