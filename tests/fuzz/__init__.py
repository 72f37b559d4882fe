"""Fuzzers: numbered random cases, valid and hostile ones, run in a process that they may crash.

``python -m tests.fuzz`` runs them; docs/testing.md says what each of them checks.
"""
