"""Faults, injected into real worker processes on real servers: `make faults`.

`scene` has the workers and the database, `application` is what a worker process runs, `invariants` say what must be true
afterwards, whatever happened, and `results` collect what was measured, for the table in docs/faults.md.
"""
