import pytest

from tapestry.apis import release


def test_install_command_needs_an_image_without_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE_IMAGE", "")
    assert release.install_command() == "tapestry manifests --image IMAGE | kubectl apply -f -"
    monkeypatch.setattr(release, "RELEASE_IMAGE", "registry.example/tapestry:1")
    assert release.install_command("tapestry k apply") == "tapestry manifests | tapestry k apply -f -"
