"""The table at the end of a run of the demo, and what stands in a database beside it."""

import re

import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.demo.app import User
from proletarian_sa import ArchivedJob, Job

TABLE = {
    "people in the database": (26, 26),
    "mails that the SMTP server received": (25, 25),
    "people who got one mail, and only one": (25, 25),
    "jobs archived as success": (25, 25),
    "jobs archived as failure (Nemo has no mailbox)": (1, 1),
    "jobs left in the queue": (0, 0),
    "attempts at Greta's mail (refused twice)": (3, 3),
    "attempts at Nemo's mail (refused for good)": (1, 1),
    "traces of Rolf (rolled back)": (0, 0),
    "the worker's exit code after SIGTERM": (0, 0),
}


def read_table(out: str) -> dict[str, tuple[int, int]]:
    """Return what was expected and what was counted, by line of the table."""
    rows = re.findall(r"^ +(\S.*?) +(\d+) +(-?\d+) +(?:ok|WRONG) *$", out, flags=re.MULTILINE)
    return {what: (int(expected), int(counted)) for what, expected, counted in rows}


def everything(engine: sa.Engine) -> dict[str, set[str]]:
    """Return what stands in each of the tables that the demo knows."""
    with Session(engine) as session:
        return {
            "users": set(session.scalars(sa.select(User.email))),
            "queued": {repr(job.payload) for job in session.scalars(sa.select(Job))},
            "archived": {repr(job.payload) for job in session.scalars(sa.select(ArchivedJob))},
        }
