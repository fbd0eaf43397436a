"""The worker: prints what was enqueued. Stop it with Ctrl-C.

Usage: python -m examples.a_echo.worker [SECONDS BETWEEN POLLS]
"""

import os
import sys
import time

from sqlalchemy import create_engine

from proletarian_sa import JobRegistry, QueueWorker, create_all

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///a_echo.db"))
jobs = JobRegistry()


@jobs.handler("echo")
def echo(payload: str) -> None:
    """Print the payload."""
    print(f"{time.strftime('%H:%M:%S')} echo: {payload}")


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if sys.argv[1:] else 5
    create_all(engine)
    worker = QueueWorker(
        engine,
        jobs,
        queue="a_echo",
        polling_interval=seconds,  # so long that one sees it: 0.1 s by default
        on_shutdown=lambda: print("stopped"),
        install_signal_handlers=True,
    )
    print(f"looking for jobs every {seconds:g} s")
    worker.run()
