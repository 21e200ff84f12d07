"""The method of the paper as pure functions on tensors: towers, condensing, reservoir, debiasing, correction, costs.

No files, no devices by name, no host synchronisation, no globals. What depends on a model's library belongs in
`models`, what holds a state in `methods`, what makes a step faster in `engines`. Imports `config`, `registry` and
`errors` only.
Read `step.py` first: it states the order of one step, and every other file is one part of it.
"""
