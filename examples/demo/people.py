"""Who signs up in one run of the demo, and what is to become of their mails."""

import secrets
import uuid
from dataclasses import dataclass, field

GRETA = "Greta"
"""Her mail is refused twice and then accepted."""

NEMO = "Nemo"
"""His mail is refused for good."""

ROLF = "Rolf"
"""His sign-up is rolled back."""

TIMES_REFUSED = 2

OTHERS = (
    *("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jan", "Kim", "Lea"),
    *("Max", "Nora", "Otis", "Pia", "Quinn", "Ravi", "Sue", "Tom", "Uma", "Vic", "Wes", "Xenia"),
)


@dataclass(frozen=True)
class People:
    """The people of one run: their addresses and their queue occur in no other run.

    `job_ids` are those of their mails, Rolf's too, put there as they sign up: the archive has no index on the queue, and in a
    database that is in use it may be large.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(4))
    job_ids: list[uuid.UUID] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """The queue of this run's mails."""
        return f"demo-{self.run}"

    def email(self, name: str) -> str:
        """Return somebody's address; nothing under `.example` exists."""
        return f"{name.lower()}@{self.run}.example"

    @property
    def names(self) -> tuple[str, ...]:
        """Those who sign up, in order; Rolf is not among them."""
        return (*OTHERS[:3], GRETA, NEMO, *OTHERS[3:])

    @property
    def emails(self) -> list[str]:
        """All addresses, Rolf's too."""
        return [self.email(name) for name in (*self.names, ROLF)]
