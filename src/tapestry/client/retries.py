"""One request, sent as often as that is safe, until it is answered.

What is sent again: a read that got no answer, a request that never left, and whatever the server itself put off with
Retry-After.  A write that may have happened is never repeated here; a level-triggered reconciler looks again instead.
"""

import asyncio
import random
from collections.abc import Callable

from tapestry.client.metrics import REQUESTS
from tapestry.client.transport import Request, Response, Transport
from tapestry.kube.errors import AnswerTooLarge, TransportError, error_from_body

MAX_ATTEMPTS = 5
"""How often one request is sent at most."""
MAX_RETRY_AFTER = 30.0
"""Seconds: a server that asks for more than this gets its answer passed on."""


async def send_with_retries(
    transport: Transport,
    request: Request,
    verb: str,
    resource: str,
    *,
    fence: Callable[[], None] | None = None,
    max_attempts: int = MAX_ATTEMPTS,
) -> Response:
    """The good answer to a request, or the error that the last attempt ended with.

    Each attempt is counted as `verb` and `what`; before each of them `fence` is asked, which raises where nothing may
    be sent any more.
    """
    attempt = 0
    while True:
        attempt += 1
        if fence is not None:
            fence()
        try:
            answer = await transport.send(request)
        except TransportError as error:
            REQUESTS.inc(verb, resource, "TransportError")
            if attempt == max_attempts or isinstance(error, AnswerTooLarge):
                raise
            if error.maybe_sent and request.method != "GET":
                raise
            wait = backoff_seconds(attempt)
        else:
            REQUESTS.inc(verb, resource, str(answer.status))
            if answer.status < 300:
                return answer
            wait = retry_delay(answer, request, attempt)
            if attempt == max_attempts or not wait:
                raise error_from_body(answer.status, answer.body, action=str(request))
        await asyncio.sleep(wait)


def backoff_seconds(attempt: int) -> float:
    """Seconds before the next attempt: 0.1, 0.2, 0.4 ..., spread so that many clients do not return as one."""
    return 0.1 * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)


def retry_delay(response: Response, request: Request, attempt: int) -> float:
    """Seconds after which the server, or a read's safety, lets us ask again; 0 where its answer is final."""
    reading = request.method == "GET"
    after = response.headers.get("retry-after")
    if after is None and not reading:
        return 0.0
    # Of the others, also with Retry-After, a server that gave up waiting for its storage may have written all the same.
    if response.status not in ((429, 500, 502, 503, 504) if reading else (429, 503)):
        return 0.0
    try:
        seconds = float(after or "")
    except ValueError:  # nothing, or a date: nobody who matters sends one
        return backoff_seconds(attempt)
    return max(seconds, 0.001) if seconds <= MAX_RETRY_AFTER else 0.0
