"""Objects out of files: YAML or JSON, many to a file, files in a folder, or whatever comes in."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.quantity import parse_quantity

EXTENSIONS = (".yaml", ".yml", ".json")


def load_objects(sources: Sequence[str], stdin: BinaryIO) -> list[Object]:
    """What is written in files, in the files of folders, and for `-` in `incoming`; ValueError names the place."""
    return [obj for source in sources for name, data in read_source(source, stdin) for obj in documents(name, data)]


def read_source(source: str, stdin: BinaryIO) -> Iterator[tuple[str, bytes]]:
    if source == "-":
        yield "-", stdin.read()
        return
    path = Path(source)
    files = sorted(each for each in path.iterdir() if each.suffix in EXTENSIONS) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{source}: no file in there ends in {', '.join(EXTENSIONS)}")
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from error


def documents(name: str, data: bytes) -> Iterator[Object]:
    """The objects in one text; those of a List are its items."""
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
        raise ValueError(f"{place}: an object was expected, found {type(document).__name__}")
    metadata = document.get("metadata")
    wanted = {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "metadata.name": metadata.get("name") if isinstance(metadata, dict) else None,
    }
    for field, value in wanted.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{place}: {field}: is missing")
    return document


Requests = Mapping[str, str]


def deployment(
    name: str, image: str, replicas: int = 1, command: Sequence[str] = (), requests: Requests = EMPTY_MAPPING
) -> Object:
    """The simplest Deployment."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container(name, image, command, requests)]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def job(
    name: str, image: str, completions: int = 1, command: Sequence[str] = (), requests: Requests = EMPTY_MAPPING
) -> Object:
    """The simplest Job: its pods run at once, and none of them again, but for those that an owner takes back."""
    pod = {"restartPolicy": "Never", "containers": [container(name, image, command, requests)]}
    taken_back = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec: Object = {"podFailurePolicy": {"rules": [taken_back]}, "template": {"spec": pod}}
    if completions > 1:
        spec |= {"completions": completions, "parallelism": completions}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def container(name: str, image: str, command: Sequence[str], requests: Requests) -> Object:
    resources = {"resources": {"requests": dict(requests)}} if requests else {}
    return {"name": name, "image": image, **({"command": list(command)} if command else {}), **resources}


def parse_requests(text: str) -> Requests:
    """The amounts in `cpu=500m,memory=64Mi`; ValueError names the part that is none."""
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, amount = part.partition("=")
        if not name or not equals:
            raise ValueError(f"{part!r}: NAME=AMOUNT was expected, such as cpu=500m")
        found[name] = str(parse_quantity(amount, name))
    return found


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
