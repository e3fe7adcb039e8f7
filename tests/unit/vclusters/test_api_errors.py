"""Errors of the service through the management API."""

import pytest

from tapestry.kube.errors import ApiError
from tapestry.vclusters.api_errors import api_error, service_error
from tapestry.vclusters.errors import (
    ServiceError,
    Violation,
    field_invalid,
    not_found,
    operation_in_progress,
    permission_denied,
    quota_exceeded,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (field_invalid(Violation("spec.replicas", "must be 1")), 422),
        (not_found("Project", "shop"), 404),
        (operation_in_progress("blue", "op-1"), 409),
        (quota_exceeded("shop", [Violation("project shop", "vclusters: requested 1, used 1, limit 1")]), 403),
        (permission_denied("DeleteVCluster", "VCluster blue"), 403),
    ],
)
def test_error_returns_unchanged(error: ServiceError, code: int) -> None:
    raised = api_error(error)
    found = service_error(raised)
    assert found is not None
    assert (raised.code, found.body()) == (code, error.body())


def test_other_errors_are_not_of_the_service() -> None:
    assert service_error(ApiError(403, "Forbidden", "no")) is None
