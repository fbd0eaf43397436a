"""People sign up; each is welcomed by a job that is committed with the person."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import String

from proletarian_sa import AsyncQueueWorker, AsyncRunningJob, JobRegistry, create_all, enqueue

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///fastapi_async.db"))
sessions = async_sessionmaker(engine, expire_on_commit=False)
jobs = JobRegistry()


class Base(DeclarativeBase):
    """The application's tables."""


class Person(Base):
    """Somebody who has signed up."""

    __tablename__ = "fastapi_person"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    welcomed: Mapped[bool] = mapped_column(default=False)


@jobs.handler("welcome")
async def welcome(person_id: int, job: AsyncRunningJob) -> None:
    """Welcome somebody; that it was done is committed with the job's completion."""
    person = await job.session.get_one(Person, person_id)
    print(f"welcome, {person.name}")
    person.welcomed = True


def make_worker() -> AsyncQueueWorker:
    """Make the worker; the command `proletarian-sa worker` calls this, too."""
    return AsyncQueueWorker(engine, jobs, queue="fastapi_async")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Make the tables, and work off jobs while the application runs, unless a process of its own does."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.run_sync(create_all)
    async with AsyncExitStack() as stack:
        if os.environ.get("WORKER") != "apart":
            await stack.enter_async_context(make_worker())
        yield
    await engine.dispose()


async def new_session() -> AsyncIterator[AsyncSession]:
    """Open a session for a request."""
    async with sessions() as session:
        yield session


app = FastAPI(lifespan=lifespan)
Session = Annotated[AsyncSession, Depends(new_session)]


@app.post("/people")
async def sign_up(name: str, session: Session) -> int:
    """Add a person and the job, in one transaction; return the person's number."""
    person = Person(name=name)
    session.add(person)
    await session.flush()  # which gives the person its number
    enqueue(session, "welcome", person.id, queue="fastapi_async")
    await session.commit()  # here, so that what is answered is true
    return person.id


@app.get("/people")
async def people(session: Session) -> dict[str, bool]:
    """Return who has signed up, and whether they were welcomed."""
    found = await session.scalars(select(Person).order_by(Person.id))
    return {person.name: person.welcomed for person in found}
