"""The application: people sign up and get a welcome mail. The mail is a job, so it is sent if and only if they did sign up.

Run the worker:  DATABASE_URL=… SMTP_PORT=… proletarian-sa worker examples.demo.app:make_worker
"""

import os
import smtplib
import uuid
from email.message import EmailMessage
from typing import Any

from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import JobRegistry, QueueWorker, RetryStrategy, RunningJob, enqueue

REFUSED_FOR_GOOD = 500
"""SMTP replies from here on are final; those below ask to try again later."""


class Base(DeclarativeBase):
    """The application's own declarative base."""


class User(Base):
    """Somebody who has signed up."""

    __tablename__ = "demo_user"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    email: Mapped[str] = mapped_column(String(255), unique=True)


def sign_up(session: Session, *, name: str, email: str, queue: str) -> uuid.UUID:
    """Add a user and the welcome mail, both in the caller's transaction, and return the mail's job id."""
    session.add(User(name=name, email=email))
    return enqueue(session, "welcome-mail", {"name": name, "email": email}, queue=queue)


jobs = JobRegistry()


def again_unless_final(_job: RunningJob, exception: BaseException) -> RetryStrategy | None:
    """Try again after a refusal for now, or if the mail server is away; not after a refusal for good."""
    if isinstance(exception, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in exception.recipients.values()]
        if max(codes) >= REFUSED_FOR_GOOD:
            return None
    return RetryStrategy(retries=4, delays=[0.2, 0.4])


@jobs.handler("welcome-mail", retry=again_unless_final)
def send_welcome_mail(payload: dict[str, Any], job: RunningJob) -> None:
    """Send the mail; whatever smtplib raises is a failed attempt."""
    message = EmailMessage()
    message["From"] = "welcome@demo.example"
    message["To"] = payload["email"]
    message["Subject"] = f"Welcome, {payload['name']}!"
    message["Message-ID"] = f"<{job.job_id}@demo.example>"  # the same at each attempt
    message.set_content("You have signed up.")
    # smtplib would ask the DNS for this machine's name
    with smtplib.SMTP("127.0.0.1", int(os.environ["SMTP_PORT"]), local_hostname="localhost", timeout=10) as server:
        server.send_message(message)


def make_worker() -> QueueWorker:
    """Return the worker, configured from the environment."""
    engine = create_engine(os.environ["DATABASE_URL"])
    return QueueWorker(engine, jobs, queue=os.environ["MAIL_QUEUE"], worker_threads=4)
