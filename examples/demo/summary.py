"""What was counted at the end, and whether it adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from sqlalchemy.orm import Session

from examples.demo.database import archived, queued, users
from examples.demo.people import GRETA, NEMO, ROLF, TIMES_REFUSED, People

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa


@dataclass(frozen=True)
class Finished:
    """One archived job."""

    email: str
    status: str
    attempts: int


@dataclass(frozen=True)
class Counted:
    """What a run has led to.

    Attributes:
        users: The addresses of those who are in the database.
        mails: Whom the SMTP server took a mail for, one entry for each mail.
        finished: The archived jobs.
        left: The recipients of the jobs that are still in the queue.
        worker_exit_code: How the worker ended after SIGTERM.
    """

    users: Sequence[str]
    mails: Sequence[str]
    finished: Sequence[Finished]
    left: Sequence[str]
    worker_exit_code: int


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    what: str
    expected: int
    counted: int

    @property
    def holds(self) -> bool:
        """Whether the count is as expected."""
        return self.expected == self.counted


def count(engine: sa.Engine, people: People, mails: Sequence[str], worker_exit_code: int) -> Counted:
    """Read from the database what the run has led to."""
    with Session(engine) as session:
        return Counted(
            users=[user.email for user in users(session, people)],
            mails=tuple(mails),
            finished=[Finished(job.payload["email"], job.status, job.attempts) for job in archived(session, people)],
            left=[job.payload["email"] for job in queued(session, people)],
            worker_exit_code=worker_exit_code,
        )


def checks(people: People, counted: Counted) -> list[Check]:
    """Compare what was counted with what must have come of these people's sign-ups."""
    greta, nemo, rolf = (people.email(name) for name in (GRETA, NEMO, ROLF))
    to_be_mailed = {people.email(name) for name in people.names} - {nemo}
    mails = Counter(counted.mails)
    status = Counter(job.status for job in counted.finished)
    everywhere = [*counted.users, *counted.mails, *counted.left, *(job.email for job in counted.finished)]
    return [
        Check("people in the database", len(people.names), len(counted.users)),
        Check("mails that the SMTP server received", len(to_be_mailed), len(counted.mails)),
        Check("people who got one mail, and only one", len(to_be_mailed), sum(mails[email] == 1 for email in to_be_mailed)),
        Check("jobs archived as success", len(to_be_mailed), status["success"]),
        Check(f"jobs archived as failure ({NEMO} has no mailbox)", 1, status["failure"]),
        Check("jobs left in the queue", 0, len(counted.left)),
        Check(f"attempts at {GRETA}'s mail (refused twice)", TIMES_REFUSED + 1, _attempts(counted, greta)),
        Check(f"attempts at {NEMO}'s mail (refused for good)", 1, _attempts(counted, nemo)),
        Check(f"traces of {ROLF} (rolled back)", 0, everywhere.count(rolf)),
        Check("the worker's exit code after SIGTERM", 0, counted.worker_exit_code),
    ]


def exit_code(checked: Sequence[Check]) -> int:
    """Return 0 if everything adds up, else 1."""
    return 0 if all(check.holds for check in checked) else 1


def table(checked: Sequence[Check]) -> Table:
    """Draw the table."""
    drawn = Table("", box=box.SIMPLE_HEAD)
    drawn.add_column("expected", justify="right")
    drawn.add_column("counted", justify="right")
    drawn.add_column("")
    for check in checked:
        verdict = "[green]ok[/]" if check.holds else "[bold red]WRONG[/]"
        drawn.add_row(check.what, str(check.expected), str(check.counted), verdict)
    return drawn


def _attempts(counted: Counted, email: str) -> int:
    return sum(job.attempts for job in counted.finished if job.email == email)
