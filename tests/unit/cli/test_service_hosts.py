"""`tapestry host` by the lifecycle service."""

from pathlib import Path

import yaml

from .service_commands import Commands, commands

__all__ = ["commands"]


async def test_host_is_created_changed_and_deleted(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("kind: Config")
    await commands.output("host", "create", "east", "--host-kubeconfig", str(file), "--label", "region=east")
    request = commands.service.calls[-1].request
    assert (request.kubeconfig, request.host_cluster.labels["region"]) == (b"kind: Config", "east")
    await commands.output("host", "update", "east", "--label", "tier=1", "--ingress-domain", "example.org")
    request = commands.service.calls[-1].request
    assert dict(request.host_cluster.labels) == {"region": "east", "tier": "1"}
    assert (list(request.update_mask.paths), request.kubeconfig) == (["labels", "ingress_domain"], b"")
    assert yaml.safe_load(await commands.output("host", "get", "east", "-o", "yaml"))["name"] == "east"
    listed = await commands.output("host", "list", "--server", commands.url)
    assert listed.splitlines()[1].split()[:2] == ["east", "Unknown"]
    assert await commands.output("host", "delete", "east") == "host cluster east deleted\n"
    assert "give a field to change" in await commands.error("host", "update", "east")


async def test_list_without_a_server_uses_the_management_api(commands: Commands) -> None:
    assert "give --kubeconfig" in await commands.error("host", "list")
    assert commands.service.calls == []
