"""Objects from YAML and JSON files, folders and standard input, and simple generated objects."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.quantity import parse_quantity

EXTENSIONS = (".yaml", ".yml", ".json")


def load_objects(sources: Sequence[str], stdin: BinaryIO) -> list[Object]:
    """Read the objects in files, in the files of folders, and for `-` in `stdin`; ValueError names the place."""
    return [obj for source in sources for name, data in read_source(source, stdin) for obj in documents(name, data)]


def read_source(source: str, stdin: BinaryIO) -> Iterator[tuple[str, bytes]]:
    if source == "-":
        yield "-", stdin.read()
        return
    path = Path(source)
    files = sorted(each for each in path.iterdir() if each.suffix in EXTENSIONS) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{source}: no file in it ends in {', '.join(EXTENSIONS)}")
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from error


def documents(name: str, data: bytes) -> Iterator[Object]:
    """Yield the objects in one text; a List yields its items."""
    try:
        found = [each for each in yaml.load_all(data, Loader=yaml.CSafeLoader) if each is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    for number, document in enumerate(found, 1):
        place = f"{name}: document {number}"
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        for each in document.get("items") or () if is_list else (document,):
            yield check_object(each, place)


def check_object(document: Any, place: str) -> Object:
    if not isinstance(document, dict):
        raise ValueError(f"{place}: expected an object, found {type(document).__name__}")
    metadata = document.get("metadata")
    required = {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "metadata.name": metadata.get("name") if isinstance(metadata, dict) else None,
    }
    for field, value in required.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{place}: {field}: is missing")
    return document


Requests = Mapping[str, str]


def deployment(
    name: str, image: str, replicas: int = 1, command: Sequence[str] = (), requests: Requests = EMPTY_MAPPING
) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container(name, image, command, requests)]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def job(
    name: str, image: str, completions: int = 1, command: Sequence[str] = (), requests: Requests = EMPTY_MAPPING
) -> Object:
    pod = {"restartPolicy": "Never", "containers": [container(name, image, command, requests)]}
    ignore_reclaimed = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec: Object = {"podFailurePolicy": {"rules": [ignore_reclaimed]}, "template": {"spec": pod}}
    if completions > 1:
        spec |= {"completions": completions, "parallelism": completions}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def container(name: str, image: str, command: Sequence[str], requests: Requests) -> Object:
    resources = {"resources": {"requests": dict(requests)}} if requests else {}
    return {"name": name, "image": image, **({"command": list(command)} if command else {}), **resources}


def parse_requests(text: str) -> Requests:
    """Parse `cpu=500m,memory=64Mi`; ValueError names the invalid part."""
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, amount = part.partition("=")
        if not name or not equals:
            raise ValueError(f"{part!r}: expected NAME=AMOUNT, for example cpu=500m")
        found[name] = str(parse_quantity(amount, name))
    return found


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
