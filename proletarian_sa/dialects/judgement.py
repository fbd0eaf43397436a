"""What an error of a database means for us: each dialect reads its own codes."""

from __future__ import annotations

from sqlalchemy import exc


class Judgement:
    """Judge errors, as far as that is the same everywhere."""

    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same statement may succeed later: a matter of waiting, not of mending."""
        if isinstance(error, exc.TimeoutError):  # the pool's
            return True
        if not isinstance(error, exc.DBAPIError) or error.orig is None:
            return False
        return error.connection_invalidated or self._transient_code(error.orig)

    def is_transaction_death(self, error: BaseException) -> bool:
        """Return whether the database ended the transaction for a reason that lies outside it."""
        if not isinstance(error, exc.DBAPIError) or error.orig is None:
            return False
        return error.connection_invalidated or self._death_code(error.orig)

    def is_lost_race(self, error: BaseException) -> bool:
        """Return whether the database undid the transaction in favour of another one: the same may well succeed at once."""
        return isinstance(error, exc.DBAPIError) and not error.connection_invalidated and self.is_transaction_death(error)

    def _transient_code(self, error: BaseException) -> bool:
        raise NotImplementedError

    def _death_code(self, error: BaseException) -> bool:
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
