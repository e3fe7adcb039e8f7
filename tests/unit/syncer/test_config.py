"""Validation of the syncer's configuration."""

import pytest

from tapestry.process.config import ConfigError, load_config
from tapestry.syncer.config import SyncerConfig


def kubelet_config(**kubelet: str) -> SyncerConfig:
    return load_config(SyncerConfig, file=None, environ={}, flags={"kubelet": kubelet})


@pytest.mark.parametrize("address", ["", "0", "10.0.0.1:10250", "[10.0.0.1]:10250", "[fd00::1]:0"])
def test_kubelet_listens_on_an_address_or_not_at_all(address: str) -> None:
    assert kubelet_config(address=address).kubelet.address == address


@pytest.mark.parametrize("address", [":10250", "somewhere:10250"])
def test_unpublishable_address_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match=f"kubelet: address: {address} names no IP"):
        kubelet_config(address=address)


def test_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="kubelet: certificate and key belong together"):
        kubelet_config(certificate="tls.crt")


@pytest.mark.parametrize("option", ["service", "secret"])
@pytest.mark.parametrize("text", ["name", "a/", "/b", "a/b/c", "A/b"])
def test_service_and_secret_have_a_namespace_and_a_name(option: str, text: str) -> None:
    assert getattr(kubelet_config(**{option: "tapestry-system/name"}).kubelet, option) == "tapestry-system/name"
    with pytest.raises(ConfigError, match=f"kubelet: {option}: {text} is not of the form NAMESPACE/NAME"):
        kubelet_config(**{option: text})
