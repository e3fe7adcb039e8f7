"""OCI layouts: the same files result in the same digest, whatever their times and the order of their creation."""

import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

from oci_layout import Layer, Layout

FILES = {"usr/bin/program": "#!/usr/bin/python\n", "etc/hosts": "127.0.0.1 localhost\n", "home/user/file": ""}
EPOCH = 1_700_000_000


def write_tree(root: Path, names: Iterable[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[name])
        path.chmod(0o755 if "bin/" in name else 0o644)
    (root / "bin").symlink_to("usr/bin")
    return root


def layer_of(tmp_path: Path, name: str, names: Iterable[str], epoch: int = EPOCH) -> Layer:
    root = write_tree(tmp_path / name, names)
    return Layout(tmp_path / f"{name}-layout", epoch).add_layer(root, {"home/user": 65532})


def test_same_files_have_the_same_layer(tmp_path: Path) -> None:
    first = layer_of(tmp_path, "first", FILES)
    assert layer_of(tmp_path, "second", reversed(FILES)) == first
    assert layer_of(tmp_path, "later", FILES, epoch=EPOCH + 1) != first


def test_layer_has_fixed_owners_and_times(tmp_path: Path) -> None:
    layer = layer_of(tmp_path, "first", FILES)
    with tarfile.open(Layout(tmp_path / "first-layout", EPOCH).blob(layer.descriptor)) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == [
        *("bin", "etc", "etc/hosts", "home", "home/user", "home/user/file"),
        *("usr", "usr/bin", "usr/bin/program"),
    ]
    assert {member.mtime for member in members} == {EPOCH}
    assert {member.name for member in members if (member.uid, member.gid) == (65532, 65532)} == {"home/user"}
    modes = {member.name: member.mode for member in members if member.isfile()}
    assert modes == {"etc/hosts": 0o644, "home/user/file": 0o644, "usr/bin/program": 0o755}


def test_index_lists_one_image_for_each_platform(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout", EPOCH)
    layer = layout.add_layer(write_tree(tmp_path / "root", FILES), {})
    images = [layout.add_image(name, {"User": "1:1"}, [layer]) for name in ("amd64", "arm64")]
    named = layout.add_index("localhost/tapestry:1", images, {"key": "value"})
    assert named["annotations"]["io.containerd.image.name"] == "localhost/tapestry:1"
    assert named["annotations"]["org.opencontainers.image.ref.name"] == "1"
    [entry] = json.loads((layout.folder / "index.json").read_text())["manifests"]
    assert entry == named
    index = layout.document(entry)
    assert [each["platform"]["architecture"] for each in index["manifests"]] == ["amd64", "arm64"]
    for each in index["manifests"]:
        manifest = layout.document(each)
        config = layout.document(manifest["config"])
        assert config["architecture"] == each["platform"]["architecture"]
        assert config["rootfs"]["diff_ids"] == [layer.diff_id]
        assert config["created"] == "2023-11-14T22:13:20Z"
        assert [blob["size"] for blob in manifest["layers"]] == [layout.blob(layer.descriptor).stat().st_size]


def test_archive_contains_the_layout(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout", EPOCH)
    layout.add_index("localhost/tapestry:1", [], {})
    layout.write_archive(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        names = tar.getnames()
    assert {"oci-layout", "index.json", "blobs/sha256"} <= set(names)
