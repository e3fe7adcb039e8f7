"""The URL of a webhook."""

import pytest

from tapestry.apiserver.core.outgoing_http import webhook_url


@pytest.mark.parametrize(
    ("client", "url"),
    [
        ({"url": "https://127.0.0.1:9443//validate"}, "https://127.0.0.1:9443/validate"),
        ({"url": "https://hook.example.com/a/../b/"}, "https://hook.example.com/b"),
        ({"url": "https://hook.example.com"}, "https://hook.example.com/"),
        ({"service": {"name": "hook", "namespace": "here", "path": "/a"}}, "https://hook.here.svc:443/a"),
        ({"service": {"name": "hook", "namespace": "here", "port": 8443}}, "https://hook.here.svc:8443/"),
    ],
)
def test_webhook_path_is_normalized(client: dict[str, object], url: str) -> None:
    assert webhook_url(client) == url
