"""DNS of two tenants with real processes: their names, also after a kill, over UDP and TCP."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import kubectl_of
from tests.unit.dns.dns_servers import ask, consecutive_ports, running_upstream, sent_over_tcp

from tapestry.dns.messages import Code, Type, encode_query, parse_query, parse_response, wire_name

from .servers import ClusterProcess, PlanesProcess
from .test_tenants import OF_TENANTS, Setting

DOMAIN = "cluster.local"
DATABASE = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, labels: {app: db}}
spec:
  hostname: db-0
  subdomain: db
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: db
    image: db
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""


@dataclass(frozen=True)
class TwoTenants:
    """The planes `blue`, which is that of the setting, and `green`, whose pods run in the same host cluster."""

    setting: Setting

    async def addresses(self, plane: str, name: str) -> tuple[Code, list[str]]:
        """Return the response of the resolver of a plane."""
        return await ask(self.port(plane), name)

    def port(self, plane: str) -> int:
        setting = self.setting
        path = ["-o", "jsonpath={.status.dnsPort}"]
        return int(setting.kubectl("get", "planes", plane, *path, kubeconfig=setting.planes.kubeconfig))


@pytest.fixture
def tenants(kube_assets: Path, tmp_path: Path) -> Iterator[TwoTenants]:
    ports = consecutive_ports(2)
    flags = ("--dns-port-range", f"{ports[0]}-{ports[-1]}")
    with (
        PlanesProcess(tmp_path / "planes", *flags) as planes,
        ClusterProcess(tmp_path / "host", "--nodes", "1") as host,
    ):
        kubectl = kubectl_of(kube_assets, host.kubeconfig)
        setting = Setting(planes, host, kubectl, tmp_path / "blue")
        setting.tapestry(
            *("host", "add", "east", "--cluster-kubeconfig", host.kubeconfig, "--allow-loopback"),
            *("--dns-address", "192.0.2.10"),
        )
        for name in ("blue", "green"):
            setting.tapestry("planes", "create", name)
            (tmp_path / name).write_text(setting.tapestry("planes", "kubeconfig", name))
            setting.tapestry("tenant", "create", name, "--host", "east")
            setting.kubectl(
                *("wait", "clusterbinding", name, "--for=condition=DNSAvailable", "--timeout=30s"),
                kubeconfig=planes.kubeconfig,
            )
        yield TwoTenants(setting)


@pytest.mark.timeout(200)
async def test_tenants_resolve_their_own_names(tenants: TwoTenants) -> None:
    setting, ask_plane = tenants.setting, tenants.addresses
    in_plane = setting.in_plane
    in_plane("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    in_plane("create", "service", "clusterip", "web", "--tcp=80")
    in_plane("wait", "--for=jsonpath={.spec.clusterIP}", "service/web", "--timeout=30s")
    address = in_plane("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    assert await ask_plane("blue", f"web.default.svc.{DOMAIN}") == (Code.NOERROR, [address])
    assert await ask_plane("green", f"web.default.svc.{DOMAIN}") == (Code.NXDOMAIN, [])
    assert (await ask_plane("green", f"kubernetes.default.svc.{DOMAIN}"))[0] == Code.NOERROR

    in_plane("apply", "-f", "-", stdin=DATABASE)
    in_plane("wait", "--for=condition=Ready", "pod/db-0", "--timeout=60s")
    slices = ("endpointslice", "-l", "kubernetes.io/service-name=db")
    in_plane("wait", "--for=jsonpath={.endpoints[0].conditions.ready}=true", *slices, "--timeout=30s")
    pod = in_plane("get", "pod", "db-0", "-o", "jsonpath={.status.podIP}")
    for name in ("db", "db-0.db"):
        assert await ask_plane("blue", f"{name}.default.svc.{DOMAIN}") == (Code.NOERROR, [pod])
        assert await ask_plane("green", f"{name}.default.svc.{DOMAIN}") == (Code.NXDOMAIN, [])
    assert await port_of_service(tenants.port("blue"), f"_sql._tcp.db.default.svc.{DOMAIN}") == 5432
    nameserver = setting.in_host("get", "pod", "-A", "-l", OF_TENANTS, "-o", "jsonpath={..dnsConfig.nameservers[0]}")
    services = setting.in_host("get", "service", "-A", "-l", OF_TENANTS, "-o", "jsonpath={..spec.clusterIP}")
    assert nameserver in services.split()

    async with running_upstream({"www.example.com": ["192.0.2.7"]}) as upstream:
        patch = f'{{"spec":{{"dnsUpstreams":["127.0.0.1:{upstream.port}"]}}}}'
        management = setting.planes.kubeconfig
        setting.kubectl("patch", "hostcluster", "east", "--type=merge", "-p", patch, kubeconfig=management)
        assert await ask_plane("green", "www.example.com") == (Code.NOERROR, ["192.0.2.7"])

    ports = tenants.port("blue"), tenants.port("green")
    setting.planes.restart()
    in_plane("wait", "--for=condition=Ready", "pod/db-0", "--timeout=60s")
    assert (tenants.port("blue"), tenants.port("green")) == ports
    assert await ask_plane("blue", f"web.default.svc.{DOMAIN}") == (Code.NOERROR, [address])


async def port_of_service(port: int, name: str) -> int:
    """Return the port in a record of the type SRV, over TCP."""
    message = encode_query(7, wire_name(name), Type.SRV)
    (response,) = await sent_over_tcp(port, message)
    answer, _ = parse_response(response, 7, parse_query(message).question)
    return int.from_bytes(answer.records[0].data[4:6], "big")
