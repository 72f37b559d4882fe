"""Fuzzers: numbered random cases, valid and hostile ones, run in a worker process that they may crash.

``python -m tests.fuzz`` runs them; docs/testing.md describes what each of them checks.
"""
