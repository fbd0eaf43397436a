"""Enqueue jobs in one process and run them in another."""
