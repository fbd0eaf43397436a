"""How fast proletarian-sa is, beside others: everything is measured in turn in one run, on servers of its own.

Usage: make bench (under ten minutes), or make bench-full; docs/benchmarks.md says how to read it.
"""
