"""Why there is no server: none to be had here, or one that was found would not serve."""


class ServerMissingError(Exception):
    """No server of this kind is to be had; the message says what would bring one."""


class ServerFailedError(Exception):
    """A server was found but does not start or answer; the message has the end of its log."""
