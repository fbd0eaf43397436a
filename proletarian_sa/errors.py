"""Every error of our own, with what it means and what to do.

All of them derive from `ProletarianError`; those that are also a ``ValueError`` or a ``LookupError`` say so in
their bases, so that code which knows nothing of us catches them too.
"""

# ruff: noqa: N818 - the names say what happened, as events do; "Error" would add nothing

import threading


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether somebody interrupts the program: Python tells only the main thread. Elsewhere code has raised it itself."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class ProletarianError(Exception):
    """Be the base of every error that this library defines.

    Catch it to catch them all. Wrong arguments are plain ``TypeError`` and ``ValueError`` and not among them.
    """


class PayloadError(ProletarianError, ValueError):
    """Say that a stored payload cannot be turned back into a value.

    Raised by a serializer's ``decode``: the text is cut off, is not what the serializer writes, or holds a tag that
    this process does not know. A worker puts such a job back for a while, so that a rolling deployment can heal, and
    then archives it with the raw text.

    What to do: deploy the code that knows the tag, register the type with the worker's serializer too, or correct
    the text in the table.
    """


class PayloadTooLarge(PayloadError):
    """Say that an encoded payload is longer than the tables' cap.

    Raised at enqueue, on every database alike, before anything is added to the session. Nothing is ever truncated.

    What to do: store the data elsewhere and send its id, or raise the cap of your `JobTables`.
    """


class UnknownJobType(ProletarianError, LookupError):
    """Say that no handler is registered for a job's type.

    Raised when a `JobRegistry` is asked for a job type that it does not have. A worker puts such a job back for a
    while, so that a rolling deployment can heal, and then archives it as failed.

    What to do: register a handler for the type, or import the module that does, before the worker starts.
    """


class JobInterrupted(ProletarianError):
    """Be raised by a handler that stops early because it was asked to stop.

    A handler sees ``job.stopping``, or gets True from ``job.wait(seconds)``, leaves its work in a state from which it
    can begin again, and raises this. The job goes back to its queue and the attempt is given back. Raised when nobody
    asked the worker to stop, the job is due again after a second, so that it cannot spin.
    """


class LeaseLost(ProletarianError):
    """Say that a job no longer belongs to the claim that ran it.

    Raised when the lease lapsed before the run was finished, for example because the process stood still or the
    database was away for longer than the lease, and the job may be running elsewhere. Nothing of this run is recorded,
    and what it wrote through ``job.session`` is rolled back.

    What to do: nothing for a single one. If it happens often, give the worker a longer ``lease``, or run handlers that
    keep the interpreter busy in processes of their own.
    """


class TransactionLost(ProletarianError):
    """Say that the transaction of ``job.session`` ended before the run was finished.

    Raised when the database dropped it (MySQL does so at a deadlock, even one that the handler swallowed) or when a
    statement of the handler committed it (DDL on MySQL and MariaDB). The job is not marked as done, because its writes
    may be gone.

    What to do: let database errors travel out of the handler, and keep DDL out of ``job.session``.
    """


class JobTimeout(ProletarianError, TimeoutError):
    """Say that a handler ran for longer than the `timeout` of its job type.

    The attempt has failed, whatever the handler has returned or raised later, and what it wrote through ``job.session`` is rolled
    back. A handler in a thread cannot be ended: it was asked to stop, and this is recorded when it returns. One in a process
    (``executor="process"``) was killed at that moment.

    What to do: look at ``job.stopping`` in long loops, or give the type a longer ``timeout``.
    """


class HandlerProcessLost(ProletarianError):
    """Say that the process that ran a handler ended before the handler did, or could not be started.

    With ``executor="process"``: a crash in C code, ``os._exit``, the kernel's answer to a lack of memory. It costs one attempt of
    that one job; the worker starts a new process.

    What to do: the message names the signal or the exit code; for SIGKILL look in the system's log for a lack of memory.
    """


class WorkerLost(ProletarianError):
    """Say that a run ended with its worker, without an outcome.

    Recorded as a job's last error when its lease lapsed: the process was killed, ran out of memory, or could not reach
    the database. The job is run again under the same attempt number, and archived as failed once that has happened as
    often as the crash limit allows.

    What to do: look in the system's log for what ended the process at that time; a job that does this again and again
    needs less memory, or a process of its own.
    """


class TablesMissing(ProletarianError):
    """Say that the job tables are not in the database, or are older than this version needs.

    Raised when a worker starts, and by `check_tables`. The message names the table and the command to type.

    What to do: add the migration and run it, or call `create_all`.
    """


class TablesForeign(ProletarianError):
    """Say that a table has the name of a job table but is not one of ours.

    Raised before anything is read from it or written to it. The message names the columns that differ.

    What to do: rename ours, by giving your `JobTables` another schema or other table names.
    """


class RightsMissing(ProletarianError):
    """Say that the database's user may not do what was asked for.

    Raised when a worker starts, and by `check_tables` where a table cannot be looked at. The message holds the server's own
    words, and the command that prints the rights a worker needs.

    What to do: let an administrator run what `proletarian-sa grants` prints, or connect as another user.
    """


class DatabaseNotSupported(ProletarianError):
    """Say that a database cannot run this queue, or not in the mode that was asked for.

    Raised at start: an unknown dialect, a server that is too old, an in-memory SQLite database or a pool that makes
    threads share one connection.

    What to do: the message names the oldest version that works, or what to use instead.
    """


class SessionNotYours(ProletarianError):
    """Say that a handler tried to end the transaction of ``job.session``, or its own job in it.

    Raised by ``commit``, ``rollback`` and ``close`` on it: the worker commits the handler's writes and the job's
    completion together, once, after the handler has returned. With ``claim="held"`` also after it has returned, if it
    has deleted the row of its own job, or changed what says whose the job is.

    What to do: return to commit, raise to roll back, and use ``job.session.begin_nested()`` for parts that may fail on
    their own. For writes that must stay whatever happens, open a session of your own.
    """
