"""The owner's offer at join time, and its translation into a policy."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from tapestry.apis.policies import POLICY
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object

STANDARD_RESOURCES = ("cpu", "ephemeral-storage", "memory", "pods")
"""Resources that every node has, including future nodes."""
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d"
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY = "(?:" + "|".join(f"{day[:3]}(?:{day[3:]})?" for day in DAYS) + ")"
WINDOW = re.compile(rf"(?P<start>{TIME})-(?P<end>{TIME}|24:00)(?:\s+(?P<days>{DAY}(?:,{DAY})*))?", re.IGNORECASE)
PERCENT = re.compile(r"(\d{1,3})%")


@dataclass(frozen=True, slots=True)
class Offer:
    """A share of the idle amount of every resource, in time windows.  None leaves a field unset."""

    percent: int | None = None
    windows: tuple[Object, ...] | None = None
    time_zone: str | None = None
    force_reclaim: bool | None = None
    grace_seconds: int | None = None


DEFAULT_OFFER = Offer(percent=50)
"""Default offer, without time windows."""


def parse_percent(text: str) -> int:
    """Parse `50%`.  Raise ValueError for anything else."""
    match = PERCENT.fullmatch(text)
    if match is None or int(match[1]) > 100:
        raise ValueError(f"{text!r} is not a percentage; write it as 50%")
    return int(match[1])


def parse_windows(texts: Sequence[str]) -> tuple[Object, ...] | None:
    """Parse windows as in `22:00-06:00 Mon,Tue`.  `always` gives no windows, and no texts give None."""
    return tuple(parse_window(text) for text in texts if text != "always") if texts else None


def parse_window(text: str) -> Object:
    if (match := WINDOW.fullmatch(text.strip())) is None:
        raise ValueError(f'{text!r} is not a window; write it as "22:00-06:00", "22:00-06:00 Mon,Tue" or "always"')
    days = {"days": match["days"].split(",")} if match["days"] else {}
    return {"start": match["start"], "end": match["end"], **days}


def policy_spec(cluster: str, offer: Offer, resources: Iterable[str]) -> Object:
    """Return the policy fields that the offer sets.  Every resource gets a limit, because the default is no limit."""
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
    """Raise ValueError, naming the field of the policy, if the offer is invalid."""
    decode_spec(POLICY, {"spec": policy_spec("any", offer, ())})
    if offer.time_zone:
        try:
            ZoneInfo(offer.time_zone)
        except (KeyError, ValueError, OSError):
            hint = "give an IANA name, for example Asia/Shanghai"
            raise ValueError(f"spec.timeZone: {offer.time_zone!r} is not a time zone; {hint}") from None
