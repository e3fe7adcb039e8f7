"""Configuration of the service."""

from typing import Any

import pytest

from tapestry.vclusters.config import ServiceConfig


def test_service_without_addresses_does_not_run() -> None:
    assert not ServiceConfig().is_enabled
    assert ServiceConfig(grpc_address="127.0.0.1:50051").is_enabled


@pytest.mark.parametrize("address", ["0.0.0.0:50051", ":50051", "192.0.2.1:1"])
def test_plaintext_is_for_this_machine_only(address: str) -> None:
    with pytest.raises(ValueError, match="compatPlaintext"):
        ServiceConfig(grpc_address=address, compat_plaintext=True)
    assert ServiceConfig(grpc_address="127.0.0.1:1", compat_plaintext=True).is_enabled


@pytest.mark.parametrize("other", [{}, {"rest_address": "127.0.0.1:8088", "compat_plaintext": True}])
def test_client_config_needs_rest_with_a_key(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="clientConfig"):
        ServiceConfig(client_config="service.yaml", **other)
