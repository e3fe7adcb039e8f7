"""Indentation of responses for interactive clients, compared with kube-apiserver."""

import ssl

import aiohttp
import pytest

from .planes import Plane


@pytest.mark.parametrize(
    ("path", "agent", "indented"),
    [
        ("/api/v1/namespaces/default", "curl/8", True),
        ("/api/v1/namespaces/default", "kubectl/v1.34.3", False),
        ("/api/v1/namespaces/default?pretty=true", "kubectl/v1.34.3", True),
        ("/api/v1/namespaces/default?pretty=false", "curl/8", False),
        ("/api/v1/namespaces", "Mozilla/5.0", True),
        ("/api/v1/namespaces/none", "Wget/1", True),
        ("/api/v1/namespaces/none", "x", False),
        ("/apis", "x", False),
        ("/version", "x", True),
    ],
)
async def test_responses_are_indented_for_interactive_clients(
    shared_plane: Plane, path: str, agent: str, indented: bool
) -> None:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    headers = {"User-Agent": agent, "Authorization": f"Bearer {shared_plane.token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(shared_plane.url + path, headers=headers, ssl=tls) as answer,
    ):
        text = await answer.text()
    assert text.startswith("{\n  " if indented else '{"')
    assert text.endswith("\n}" if indented else "}\n")
