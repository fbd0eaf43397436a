"""Try failed jobs again, and notice those that have failed for good."""
