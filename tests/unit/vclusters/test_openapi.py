"""The OpenAPI document, and the copy of it in the documentation."""

import json
from pathlib import Path

from tapestry.vclusters.openapi import openapi_document, path_of
from tapestry.vclusters.rest_routes import ROUTES

COPY = Path(__file__).parents[3] / "docs/reference/vclusters-openapi.json"


def test_copy_in_the_documentation_is_current() -> None:
    assert json.loads(COPY.read_text()) == openapi_document()


def test_document_has_all_routes() -> None:
    paths = openapi_document()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == {(route.http_method, path_of(route)) for route in ROUTES}


def test_references_exist() -> None:
    document = openapi_document()
    text = json.dumps(document)
    names = {each.partition('"')[0] for each in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])


def test_operations_have_unique_ids() -> None:
    operations = [each for methods in openapi_document()["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(ROUTES)
