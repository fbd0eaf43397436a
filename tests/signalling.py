"""What tests of signals need: a handler of the application's own, and another thread."""

import signal
import threading

from tests.observing import PATIENCE


class Own:
    """A signal handler of the application's own."""

    def __init__(self, number=signal.SIGTERM):
        self.calls = []
        signal.signal(number, self)

    def __call__(self, number, frame):
        self.calls.append((number, frame))

    def count(self):
        """Return how often it was called."""
        return len(self.calls)


def elsewhere(function):
    """Call a function in another thread; return what it returned or raised."""
    said = []

    def call():
        try:
            said.append(function())
        except Exception as error:  # noqa: BLE001 - returned
            said.append(error)

    thread = threading.Thread(target=call, name="elsewhere")
    thread.start()
    thread.join(PATIENCE)
    return said[0]
