"""A small sign-up application, and a run of it that checks its own numbers."""
