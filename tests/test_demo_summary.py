"""The demo's summary: whatever goes wrong shows in the table and in the exit code."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from examples.demo.people import GRETA, NEMO, ROLF, People
from examples.demo.summary import Counted, Finished, checks, exit_code
from tests.demo_table import TABLE


def good_run(people: People) -> Counted:
    """Return what a run counts in which all is well."""
    emails = [people.email(name) for name in people.names]
    greta, nemo = people.email(GRETA), people.email(NEMO)
    return Counted(
        users=emails,
        mails=[email for email in emails if email != nemo],
        finished=[
            Finished(email, "failure" if email == nemo else "success", attempts=3 if email == greta else 1) for email in emails
        ],
        left=[],
        worker_exit_code=0,
    )


def test_good_run_adds_up() -> None:
    """When all is well each line of the table holds, and the exit code is 0."""
    people = People()
    checked = checks(people, good_run(people))

    assert TABLE == {check.what: (check.expected, check.counted) for check in checked}
    assert 0 == exit_code(checked)


def lose_a_user(good: Counted, _people: People) -> Counted:
    """Sabotage: a sign-up is not there."""
    return replace(good, users=good.users[1:])


def send_twice(good: Counted, _people: People) -> Counted:
    """Sabotage: a mail more than there should be."""
    return replace(good, mails=[*good.mails, good.mails[0]])


def send_to_the_wrong_one(good: Counted, _people: People) -> Counted:
    """Sabotage: the number of mails is right, but somebody got two and somebody none."""
    return replace(good, mails=[good.mails[1], *good.mails[1:]])


def send_to_a_stranger(good: Counted, _people: People) -> Counted:
    """Sabotage: the number of mails is right, but one went elsewhere."""
    return replace(good, mails=["somebody@elsewhere.example", *good.mails[1:]])


def fail_a_job(good: Counted, _people: People) -> Counted:
    """Sabotage: a job has the wrong status."""
    return replace(good, finished=[replace(good.finished[0], status="failure"), *good.finished[1:]])


def lose_a_job(good: Counted, _people: People) -> Counted:
    """Sabotage: a job is neither queued nor archived."""
    return replace(good, finished=good.finished[1:])


def leave_a_job(good: Counted, people: People) -> Counted:
    """Sabotage: a job is still queued."""
    return replace(good, left=[people.email("Ada")])


def try_greta_once_more(good: Counted, people: People) -> Counted:
    """Sabotage: an attempt too many."""
    greta = people.email(GRETA)
    return replace(good, finished=[replace(job, attempts=4) if job.email == greta else job for job in good.finished])


def try_nemo_again(good: Counted, people: People) -> Counted:
    """Sabotage: a refusal for good was tried again."""
    nemo = people.email(NEMO)
    return replace(good, finished=[replace(job, attempts=5) if job.email == nemo else job for job in good.finished])


def mail_rolf(good: Counted, people: People) -> Counted:
    """Sabotage: somebody got a mail who never signed up."""
    return replace(good, mails=[*good.mails[1:], people.email(ROLF)])


def keep_rolf(good: Counted, people: People) -> Counted:
    """Sabotage: a sign-up that was rolled back is there."""
    return replace(good, users=[*good.users[1:], people.email(ROLF)])


def cut_the_worker_off(good: Counted, _people: People) -> Counted:
    """Sabotage: the worker did not stop cleanly."""
    return replace(good, worker_exit_code=3)


SABOTAGE = {
    lose_a_user: {"people in the database"},
    send_twice: {"mails that the SMTP server received", "people who got one mail, and only one"},
    send_to_the_wrong_one: {"people who got one mail, and only one"},
    send_to_a_stranger: {"people who got one mail, and only one"},
    fail_a_job: {"jobs archived as success", "jobs archived as failure (Nemo has no mailbox)"},
    lose_a_job: {"jobs archived as success"},
    leave_a_job: {"jobs left in the queue"},
    try_greta_once_more: {"attempts at Greta's mail (refused twice)"},
    try_nemo_again: {"attempts at Nemo's mail (refused for good)"},
    mail_rolf: {"people who got one mail, and only one", "traces of Rolf (rolled back)"},
    keep_rolf: {"traces of Rolf (rolled back)"},
    cut_the_worker_off: {"the worker's exit code after SIGTERM"},
}


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda sabotage: sabotage.__name__)
def test_whatever_goes_wrong_is_noticed(sabotage: Callable[[Counted, People], Counted]) -> None:
    """Each way in which a run can go wrong shows in the table, and makes the exit code 1."""
    people = People()
    checked = checks(people, sabotage(good_run(people), people))

    assert SABOTAGE[sabotage] == {check.what for check in checked if not check.holds}
    assert 1 == exit_code(checked)
