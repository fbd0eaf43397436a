"""How long faults last: seconds in CI, minutes with PROLETARIAN_FAULTS=real, where no pause of a worker is shortened either."""

import os
from typing import Final

REAL: Final = os.environ.get("PROLETARIAN_FAULTS") == "real"

OUTAGE: Final = 120.0 if REAL else 4.0
"""Seconds that a database is away."""
LONGEST_PAUSE: Final = None if REAL else 1.0
"""The cap of the back-off in worker processes, seconds; None is the library's own."""
HANDFUL: Final = 6
"""Lines of the log that a worker may write in a minute of an outage, beyond those of its beginning and its end."""
