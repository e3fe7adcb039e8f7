"""Retries of a single request, as far as they are safe.

Sent again: reads without a response, requests that were never sent, and requests that the server postponed with
Retry-After.  A write that may have been applied is never repeated here.  A level-triggered reconciler reads the state
again instead.
"""

import asyncio
import random
from collections.abc import Callable

from tapestry.client.metrics import REQUESTS, RESOURCE_LABEL
from tapestry.client.transport import Request, Response, Transport
from tapestry.kube.errors import ResponseTooLarge, TransportError, error_from_body

MAX_ATTEMPTS = 5
"""Maximum number of attempts for one request."""
MAX_RETRY_AFTER = 30.0
"""Maximum Retry-After that is obeyed, in seconds.  For a longer one, the response is returned as an error."""


async def send_with_retries(
    transport: Transport,
    request: Request,
    verb: str,
    resource: str,
    *,
    fence: Callable[[], None] | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> Response:
    """Return the successful response to a request, or raise the error of the last attempt.

    Each attempt is counted under `verb` and `resource`.  Before each attempt `fence` is called, which raises if nothing
    may be sent any more.
    """
    attempt, label = 0, RESOURCE_LABEL.get()(resource)
    while True:
        attempt += 1
        if fence is not None:
            fence()
        try:
            response = await transport.send(request)
        except TransportError as error:
            REQUESTS.inc(verb, label, "TransportError")
            if attempt == max_attempts or isinstance(error, ResponseTooLarge):
                raise
            if error.maybe_sent and request.method != "GET":
                raise
            wait = backoff_seconds(attempt)
        else:
            REQUESTS.inc(verb, label, str(response.status))
            if response.status < 300:
                return response
            wait = retry_delay(response, request, attempt)
            if attempt == max_attempts or not wait:
                raise error_from_body(response.status, response.body, action=str(request))
        await asyncio.sleep(wait)


def backoff_seconds(attempt: int) -> float:
    """Return the pause before the next attempt: 0.1, 0.2, 0.4 ... seconds, with jitter."""
    return 0.1 * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)


def retry_delay(response: Response, request: Request, attempt: int) -> float:
    """Return the seconds to wait before sending again, or 0 if the response is final."""
    reading = request.method == "GET"
    after = response.headers.get("retry-after")
    if after is None and not reading:
        return 0.0
    # Other statuses are final even with Retry-After: a server that timed out on its storage may still have written.
    if response.status not in ((429, 500, 502, 503, 504) if reading else (429, 503)):
        return 0.0
    try:
        seconds = float(after or "")
    except ValueError:  # absent, or a date, which API servers do not send
        return backoff_seconds(attempt)
    return max(seconds, 0.001) if seconds <= MAX_RETRY_AFTER else 0.0
