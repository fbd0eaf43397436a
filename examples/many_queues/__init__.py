"""Some jobs before others, and some apart."""
