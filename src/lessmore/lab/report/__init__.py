"""Views of results: tables in every format, and pages that need nothing but themselves.

Pure functions from stored numbers to text, HTML or SVG. Every name that somebody else chose goes through `escape.py`;
one table writer and one template engine serve all. Nothing here runs a model.
Read `write.py` first for tables, `html.py` for the page.
"""
