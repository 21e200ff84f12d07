"""Toy additions to lessmore, each in a file of its own."""
