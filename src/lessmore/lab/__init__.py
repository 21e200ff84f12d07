"""Measuring: runs that can be resumed, their caches, sweeps, metrics, tables and reports.

A run is a `RunSpec`; its results are lines that are only ever appended, and a summary made of them. Views of results
live in `lab.report` and compute nothing that a run has not stored. What only the paper's own tables need belongs in
`paper`.
Read `spec.py` first, then `job.py` and `runner.py`.
"""
