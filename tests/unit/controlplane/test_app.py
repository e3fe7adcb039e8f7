"""Tests of the selection of controllers by patterns."""

from pathlib import Path

import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.controlplane.app import ALWAYS_ENABLED, DEFAULT_CONTROLLERS, check_patterns, control_plane_manager


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], {*DEFAULT_CONTROLLERS, *ALWAYS_ENABLED}),
        (["*", "-garbage"], {*DEFAULT_CONTROLLERS, *ALWAYS_ENABLED} - {"garbage"}),
        (["-*"], {*ALWAYS_ENABLED}),
        (["none"], {*ALWAYS_ENABLED}),
    ],
)
async def test_patterns_select_controllers_besides_the_mandatory_one(
    server: Server, tmp_path: Path, patterns: list[str], expected: set[str]
) -> None:
    check_patterns(patterns)
    manager = control_plane_manager(RequestHandler(server, 60.0), CaBundle(), patterns, CertificateAuthority(tmp_path))
    manager.setup()
    assert {each.name for each in manager.controllers} == expected


def test_pattern_without_match_is_rejected() -> None:
    with pytest.raises(ValueError, match="controllers: '-garbadge' matches no controller; choose from namespaces"):
        check_patterns(["*", "-garbadge"])
