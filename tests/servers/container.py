"""Run servers in containers, through docker or podman, where the engine itself runs."""

from tests.servers.programs import ask_program, find_program

PATIENCE = 300.0
"""Seconds a container may take to answer, since its image may have to be downloaded first."""


def find_engine() -> str | None:
    """Find an engine that runs; a client without its engine is of no use."""
    for name in ("docker", "podman"):
        program = find_program(name)
        if program and ask_program(program, "info", "--format", "{{.ID}}" if name == "docker" else "{{.Host.Arch}}"):
            return str(program)
    return None


def run(engine: str, port: int, inner_port: int, **environment: str) -> list[str]:
    """Begin the command that runs an image in the foreground; the image and its arguments come next.

    In the foreground, signals reach the server, and the engine removes the container when that ends.
    """
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    return [engine, "run", "--rm", f"--publish=127.0.0.1:{port}:{inner_port}", *variables]
