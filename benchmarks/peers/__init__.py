"""The peers, one a file, each as installed from the package index; at the settings of `benchmarks/plan.py`, found best by trying.

Each offers `drain(url, *, jobs, …)`, which enqueues jobs that do nothing and returns `jobs/s` from the first call of a handler
until no job is left to be done, and some `bulk(url, *, jobs, batch)`. Their modules run in environments without ours.
"""
