"""`job.session` in a held claim, and in `failed_job`: settings, hooks and engines are the application's."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from proletarian_sa import default_tables, enqueue, process_next_job
from tests.observing import add, session_id
from tests.queue_contents import User, archived, queued


def fail(_job):
    """Be a handler that fails."""
    raise ValueError


SETTINGS = ["enable_seqscan", "enable_sort", "enable_bitmapscan", "plan_cache_mode", "lock_timeout"]


@pytest.mark.parametrize("given", ["connect", "database"])
def test_settings_of_the_application(database, app_engine, given):
    """In job.session and in failed_job the planner's settings and the lock time-out are the application's, and READ COMMITTED."""
    database.require("row_locks")
    engine = database.create_engine()
    postgresql = engine.dialect.name == "postgresql"
    change_settings(engine, database, given)
    with engine.connect() as connection:
        before = settings_of(connection)
    found = []

    def look(job, *_exception):
        found.append((settings_of(job.session.connection()), job.session.connection().get_isolation_level()))
        job.session.add(User(name="effect"))

    for claim in ("leased", "held"):
        for handler, callback in ((look, None), (fail, look)):
            add(engine)
            outcome = process_next_job(engine, handler, claim=claim, handler_mode="advanced", failed_job=callback)
            with engine.connect() as connection:
                after = settings_of(connection)

            assert ("succeeded" if callback is None else "failed") == outcome.status
            assert [(before, "READ COMMITTED")] == found
            assert before == after
            found.clear()
    assert "7s" == before["lock_timeout"] if postgresql else 7 == before["innodb_lock_wait_timeout"]


def settings_of(connection):
    """Return what a connection is set to."""
    if connection.dialect.name == "postgresql":
        return {name: connection.scalar(sa.text(f"SHOW {name}")) for name in SETTINGS}
    return {"innodb_lock_wait_timeout": connection.scalar(sa.text("SELECT @@SESSION.innodb_lock_wait_timeout"))}


def change_settings(engine, database, given):
    """Set what the application wants, for each connection or for the database; the MySQL family knows the former only."""
    postgresql = engine.dialect.name == "postgresql"
    if postgresql:
        wanted = {"enable_seqscan": "off", "enable_sort": "on", "plan_cache_mode": "force_generic_plan", "lock_timeout": "7s"}
    else:
        wanted, given = {"innodb_lock_wait_timeout": "7"}, "connect"
    if given == "database":
        with engine.begin() as connection:
            for name, value in wanted.items():
                connection.exec_driver_sql(f"ALTER DATABASE {database.url.database} SET {name} = '{value}'")
        engine.dispose()
        return

    @sa.event.listens_for(engine, "connect")
    def connect(connection, _record):
        cursor = connection.cursor()
        for name, value in wanted.items():
            cursor.execute(f"SET SESSION {name} = '{value}'" if postgresql else f"SET SESSION {name} = {value}")
        cursor.close()
        connection.commit()


def test_settings_after_a_failed_callback(database, app_engine):
    """A failed_job that raises leaves its worker's connection as the library wants it: the next failure waits briefly for locks."""
    database.require("row_locks")
    engine = database.create_engine()
    change_settings(engine, database, "connect")
    with engine.connect() as connection:
        before = settings_of(connection)

    def callback(job, _exception):
        job.session.add(User(id=5, name="effect"))
        raise LookupError

    add(engine)
    outcome = process_next_job(engine, fail, handler_mode="advanced", failed_job=callback)
    with engine.connect() as connection:
        after = settings_of(connection)

    assert "failed" == outcome.status
    assert before == after


@pytest.mark.parametrize("claim", ["leased", "held"])
def test_hooks_of_the_applications_session(database, app_engine, claim):
    """`before_commit` runs before the COMMIT, `after_commit` once and after it, the others when the handler has failed."""
    database.require("row_locks")
    for fails, expected in (
        (False, {"before_commit": [[]], "after_commit": [["effect"]]}),
        (True, {"after_rollback": [[]], "after_soft_rollback": [[]]}),
    ):
        maker, calls = sessionmaker(app_engine), {}
        for hook in ("before_commit", "after_commit", "after_rollback", "after_soft_rollback"):
            sa.event.listen(maker, hook, looks(app_engine, calls, hook))

        def handler(job, fails=fails):
            job.session.add(User(id=3, name="effect"))
            job.session.flush()
            if fails:
                raise ValueError

        add(app_engine)
        process_next_job(app_engine, handler, claim=claim, handler_mode="advanced", session_factory=maker)
        with app_engine.begin() as connection:
            connection.execute(sa.delete(User))

        assert expected == calls
        assert 0 == app_engine.pool.checkedout()


def looks(engine, calls, hook):
    """Return a hook that notes what others see when it is called."""

    def called(*_arguments):
        with engine.connect() as connection:
            calls.setdefault(hook, []).append(connection.scalars(sa.select(User.name)).all())

    return called


def test_a_session_that_chooses_its_engine_itself(database, app_engine):
    """A subclass that overrides get_bind: what leads to the queue's database joins the claim, other engines stay themselves."""
    database.require("row_locks")
    other = database.create_engine()

    class Routed(Session):
        def get_bind(self, mapper=None, **_options):
            return other if mapper is sa.inspect(User) else app_engine

    numbers = []

    def handler(job):
        mine = job.session.connection(bind_arguments={"mapper": sa.inspect(default_tables.Job)})
        numbers.append((session_id(mine), session_id(job.session.connection(bind_arguments={"mapper": sa.inspect(User)}))))
        job.session.add(User(id=4, name="elsewhere"))
        enqueue(job.session, "follow-up")

    add(app_engine)
    outcome = process_next_job(
        app_engine, handler, claim="held", handler_mode="advanced", session_factory=lambda: Routed(expire_on_commit=False)
    )

    assert "succeeded" == outcome.status
    ((mine, elsewhere),) = numbers
    assert mine != elsewhere
    assert ["follow-up"] == [row.job_type for row in queued(app_engine)]
    with app_engine.connect() as connection:
        assert ["elsewhere"] == connection.scalars(sa.select(User.name)).all()
    assert 0 == app_engine.pool.checkedout() + other.pool.checkedout()


def test_objects_after_the_job_when_nothing_expires(database, app_engine):
    """With expire_on_commit=False the handler's objects can be read after the job, as the application is used to."""
    database.require("row_locks")
    kept = []

    def handler(job):
        kept.append(User(id=3, name="effect"))
        job.session.add(kept[0])

    add(app_engine)
    factory = sessionmaker(app_engine, expire_on_commit=False)
    process_next_job(app_engine, handler, claim="held", handler_mode="advanced", session_factory=factory)

    assert "effect" == kept[0].name


@pytest.mark.parametrize("where", ["job.session", "failed_job"])
def test_two_phase_sessions_are_refused(database, app_engine, where):
    """A factory of two-phase sessions is refused where they would have to join a transaction, with what to do."""
    database.require("row_locks")
    factory, found = sessionmaker(app_engine, twophase=True), []

    def look(job, *_exception):
        with pytest.raises(TypeError, match=r"twophase=True, which cannot join .* Use claim='leased'"):
            job.session.add(User(id=1, name="effect"))
        found.append(job)

    add(app_engine)
    handler, claim, callback = (look, "held", None) if where == "job.session" else (fail, "leased", look)
    process_next_job(app_engine, handler, claim=claim, handler_mode="advanced", session_factory=factory, failed_job=callback)

    assert 1 == len(found)
    assert 1 == len(archived(app_engine))


ENDINGS = {
    "committed": lambda connection: connection.get_nested_transaction().commit(),
    "rolled back": lambda connection: connection.get_nested_transaction().rollback(),
    "released": lambda connection: connection.exec_driver_sql("RELEASE SAVEPOINT sa_savepoint_1"),
}


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_ends_our_savepoint_and_fails(database, app_engine, ending, goes_on):
    """A handler that has ended the savepoint in which it works, on the connection, and then fails has written nothing."""
    database.require("row_locks")
    job_id = add(app_engine)

    def meddle(job):
        job.session.add(User(name="effect"))
        job.session.flush()
        ENDINGS[ending](job.session.connection())
        if goes_on:
            job.session.execute(sa.insert(User).values(name="another"))
        raise ValueError

    outcome = process_next_job(app_engine, meddle, claim="held", handler_mode="advanced")

    assert outcome is not None
    assert ("failed", [(job_id, "failure")]) == (outcome.status, [(row.job_id, row.status) for row in archived(app_engine)])
    with Session(app_engine) as session:
        assert [] == session.scalars(sa.select(User.name)).all()
