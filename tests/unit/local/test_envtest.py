"""Programs for envtest: flags of kube-apiserver, and health of etcd."""

import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from tapestry.local.envtest import (
    IGNORED_FLAGS,
    SUPPORTED_FLAGS,
    Flags,
    data_folder,
    health_server,
    parse_flags,
    server_config,
    write_assets,
)

KNOWN = (*SUPPORTED_FLAGS, *IGNORED_FLAGS)
OF_ENVTEST = [
    "--advertise-address=127.0.0.1",
    "--allow-privileged=true",
    "--authorization-mode=RBAC",
    "--bind-address=127.0.0.1",
    "--disable-admission-plugins=ServiceAccount",
    "--etcd-servers=http://127.0.0.1:34567",
    "--secure-port=45678",
    "--service-account-issuer=https://127.0.0.1:45678/",
    "--service-account-key-file=/tmp/sa-signer.crt",
    "--service-account-signing-key-file=/tmp/sa-signer.key",
    "--service-cluster-ip-range=10.0.0.0/24",
]


def test_all_flags_of_envtest_are_known(tmp_path: Path) -> None:
    flags = parse_flags([*OF_ENVTEST, f"--cert-dir={tmp_path}", "--client-ca-file=ca.crt"], KNOWN)
    assert flags.unknown == ()
    config = server_config(flags, tmp_path)
    assert config.secure_address == "127.0.0.1:45678"
    assert config.authorization == "RBAC"
    assert config.service_account_issuer == "https://127.0.0.1:45678/"
    assert config.service_account_signing_key_file == "/tmp/sa-signer.key"
    assert not config.pod_accounts
    assert config.tls.client_ca == "ca.crt"
    assert config.tls.certificate == ""


def test_existing_certificate_is_used(tmp_path: Path) -> None:
    (tmp_path / "apiserver.crt").touch()
    tls = server_config(parse_flags([f"--cert-dir={tmp_path}"], KNOWN), tmp_path).tls
    assert (tls.certificate, tls.key) == (str(tmp_path / "apiserver.crt"), str(tmp_path / "apiserver.key"))


def test_flags_are_parsed_and_unknown_ones_listed(tmp_path: Path) -> None:
    flags = parse_flags(["--secure-port", "1", "-v=5", "--profiling", "--feature-gates=A=true"], KNOWN)
    assert flags.get("secure-port") == "1"
    assert flags.get("feature-gates") == "A=true"
    assert flags.unknown == ("v", "profiling", "feature-gates")
    assert server_config(flags, tmp_path).authorization == "AlwaysAllow"


def test_etcd_is_healthy_and_serves_its_folder(tmp_path: Path) -> None:
    flags = Flags({"listen-client-urls": "http://127.0.0.1:0", "data-dir": str(tmp_path / "data")}, ())
    with health_server(flags) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with urllib.request.urlopen(f"{url}/health") as response:
                assert response.read() == b'{"health":"true","reason":""}'
            assert data_folder(url) == tmp_path / "data" / "tapestry"
        finally:
            server.shutdown()
            serving.join()


def test_other_etcd_gives_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert data_folder("http://127.0.0.1:1").parent == tmp_path
    assert data_folder("").parent == tmp_path


def test_programs_run_and_print_their_flags(tmp_path: Path) -> None:
    written = write_assets(tmp_path / "with space", Path("/bin/sh"))
    assert [each.name for each in written] == ["etcd", "kube-apiserver", "kubectl"]
    done = subprocess.run([written[1], "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "--etcd-servers" in done.stdout
    assert "insecure-port" not in done.stdout
    assert write_assets(tmp_path / "with space", Path("/bin/sh")) == written


def test_real_kubernetes_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kube-apiserver").write_bytes(b"\x7fELF")
    with pytest.raises(FileExistsError, match=r"kube-apiserver: another program .* choose an empty folder"):
        write_assets(tmp_path, None)
    assert [each.name for each in tmp_path.iterdir()] == ["kube-apiserver"]
