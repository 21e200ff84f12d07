"""The paper's tables and figures: what they say, how to run them here, and the two side by side.

Numbers printed in the paper are in `paper.json` and nowhere else. A table here is a list of runs of `lab` and the
cells they fill. Nothing of general use may stay here; it moves to `lab`.
Read `tables.py` first, then `plan.py`.
"""
