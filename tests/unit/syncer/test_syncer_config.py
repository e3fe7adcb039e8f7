"""What a syncer can be told, where that is more than a value."""

import pytest

from tapestry.process.config import ConfigError, load_config
from tapestry.syncer.config import SyncerConfig


def told(**kubelet: str) -> SyncerConfig:
    return load_config(SyncerConfig, file=None, environ={}, flags={"kubelet": kubelet})


@pytest.mark.parametrize("address", ["", "0", "10.0.0.1:10250", "[10.0.0.1]:10250", "[fd00::1]:0"])
def test_a_kubelet_listens_where_nodes_can_say_or_nowhere(address: str) -> None:
    assert told(address=address).kubelet.address == address


@pytest.mark.parametrize("address", [":10250", "somewhere:10250"])
def test_an_address_that_nodes_could_not_show_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=f"kubelet: address: {address} names no IP"):
        told(address=address)


def test_a_certificate_is_of_no_use_without_its_key() -> None:
    with pytest.raises(ConfigError, match="kubelet: certificate and key belong together"):
        told(certificate="tls.crt")
