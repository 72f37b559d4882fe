"""What a target gets wrong: each broken rule once, by a test that is made small, and a program that shows it."""
