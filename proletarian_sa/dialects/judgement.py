"""What an error of a database means for us: each dialect reads its own codes."""

from __future__ import annotations

from sqlalchemy import exc


class Judgement:
    """Judge errors, as far as that is the same everywhere."""

    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same statement may succeed later: a matter of waiting, not of mending."""
        if isinstance(error, exc.TimeoutError | TimeoutError):  # the pool's, or asyncpg's `command_timeout`
            return True
        if not isinstance(error, exc.DBAPIError) or error.orig is None:
            return False
        # The system's own: a driver for asyncio could not connect.
        return error.connection_invalidated or isinstance(error.orig, OSError) or self._transient_code(error.orig)

    def is_transaction_death(self, error: BaseException) -> bool:
        """Return whether the database ended the transaction for a reason that lies outside it."""
        if not isinstance(error, exc.DBAPIError) or error.orig is None:
            return False
        return error.connection_invalidated or self._race_code(error.orig) or self._closed_code(error.orig)

    def is_lost_race(self, error: BaseException) -> bool:
        """Return whether the database undid the transaction in favour of another one: the same may well succeed at once."""
        if not isinstance(error, exc.DBAPIError) or error.orig is None:
            return False
        return not error.connection_invalidated and self._race_code(error.orig)

    def _transient_code(self, error: BaseException) -> bool:
        raise NotImplementedError

    def _race_code(self, error: BaseException) -> bool:
        """Return whether the transaction was ended in favour of another one."""
        raise NotImplementedError

    def _closed_code(self, error: BaseException) -> bool:
        """Return whether the database takes no writes now: it is read-only, or its disk is full."""
        raise NotImplementedError

    def advice(self, error: BaseException) -> str | None:
        """Return what to do about an error, where that does not stand in its message."""
        return None

    def has_waited(self, error: BaseException) -> bool:
        """Return whether a statement was given up because it waited for too long, for a locked row most likely."""
        return False

    def is_missing_table(self, error: BaseException) -> bool:
        """Return whether a table is not there."""
        raise NotImplementedError

    def is_foreign_key_violation(self, error: BaseException) -> bool:
        """Return whether a foreign key refused it."""
        raise NotImplementedError

    def is_lost_savepoint(self, error: BaseException) -> bool:
        """Return whether a savepoint is gone: the database, or DDL, ended the transaction under it."""
        raise NotImplementedError


def code(error: BaseException | None) -> int | None:
    """Return the error number of a server of MySQL's family, or of its driver."""
    number = error.args[0] if error is not None and error.args else None
    return number if isinstance(number, int) else None
