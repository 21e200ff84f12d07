"""Token reducers: what happens to the tokens between attention and MLP of chosen blocks (section 3.4).

One file for each rule that chooses tokens (`coreset`, `tome`, `ats`), besides the schedule of counts and the record
of where every patch went. A reducer that combines existing rules is a function in `registry.py` and nothing else.
Read `coreset.py` first.
"""
