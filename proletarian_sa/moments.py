"""Moments as whole microseconds, which are counted and compared in a fraction of the time that datetimes take."""

from __future__ import annotations

import datetime as dt
from typing import Final

EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
"""From which they are counted: PostgreSQL's own."""


def microseconds(moment: dt.datetime) -> int:
    """Return an aware datetime as microseconds since the epoch, exactly."""
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(microseconds: int) -> dt.datetime:
    """Return microseconds since the epoch as a datetime, aware UTC."""
    return EPOCH + dt.timedelta(microseconds=microseconds)


LATEST: Final = microseconds(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The end of year 9999, after which there is no datetime."""
