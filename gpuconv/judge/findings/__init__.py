"""Findings: each rule that a target breaks, with a minimised test and a program that reproduces it."""
