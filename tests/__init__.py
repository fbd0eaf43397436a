"""The tests; a package only so that `tests.servers` is importable from anywhere in it."""
