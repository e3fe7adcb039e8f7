"""An offer: what an owner says at the moment of joining, and the policy that says the same."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from tapestry.apis.policies import POLICY
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object

STANDARD_RESOURCES = ("cpu", "ephemeral-storage", "memory", "pods")
"""What every node has, also one that has yet to come."""
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d"
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY = "(?:" + "|".join(f"{day[:3]}(?:{day[3:]})?" for day in DAYS) + ")"
WINDOW = re.compile(rf"(?P<start>{TIME})-(?P<end>{TIME}|24:00)(?:\s+(?P<days>{DAY}(?:,{DAY})*))?", re.IGNORECASE)
PERCENT = re.compile(r"(\d{1,3})%")


@dataclass(frozen=True, slots=True)
class Offer:
    """So much of what is idle, of every resource, in these windows; None says nothing about it."""

    percent: int | None = None
    windows: tuple[Object, ...] | None = None
    time_zone: str | None = None
    force_reclaim: bool | None = None
    grace_seconds: int | None = None


DEFAULT_OFFER = Offer(percent=50)
"""What is lent, always, unless the owner says more."""


def parse_percent(text: str) -> int:
    """`50%` as a number; raises ValueError."""
    found = PERCENT.fullmatch(text)
    if found is None or int(found[1]) > 100:
        raise ValueError(f"{text!r} is not a part of what is idle; write it as 50%")
    return int(found[1])


def parse_windows(texts: Sequence[str]) -> tuple[Object, ...] | None:
    """Windows as in `22:00-06:00 Mon,Tue`; `always` is the offer without any, and no text is no offer."""
    return tuple(parse_window(text) for text in texts if text != "always") if texts else None


def parse_window(text: str) -> Object:
    if (found := WINDOW.fullmatch(text.strip())) is None:
        raise ValueError(f'{text!r} is not a window; write it as "22:00-06:00", "22:00-06:00 Mon,Tue" or "always"')
    days = {"days": found["days"].split(",")} if found["days"] else {}
    return {"start": found["start"], "end": found["end"], **days}


def policy_spec(cluster: str, offer: Offer, resources: Iterable[str]) -> Object:
    """What the offer says, as part of a policy's spec; a limit for each resource, for one without is lent whole."""
    limited = sorted({*STANDARD_RESOURCES, *resources}) if offer.percent is not None else None
    spec = {
        "cluster": cluster,
        "timeWindows": list(offer.windows) if offer.windows is not None else None,
        "timeZone": offer.time_zone,
        "resourceLimits": [{"resource": each, "percent": offer.percent} for each in limited] if limited else None,
        "forceReclaim": offer.force_reclaim,
        "gracefulReclaimPeriodSeconds": offer.grace_seconds,
    }
    return {field: value for field, value in spec.items() if value is not None}


def validate_offer(offer: Offer) -> None:
    """Raises ValueError, naming the field of the policy, for an offer that no policy can make."""
    decode_spec(POLICY, {"spec": policy_spec("any", offer, ())})
    if offer.time_zone:
        try:
            ZoneInfo(offer.time_zone)
        except (KeyError, ValueError, OSError):
            known = "give an IANA name such as Asia/Shanghai"
            raise ValueError(f"spec.timeZone: {offer.time_zone!r} is not a time zone; {known}") from None
