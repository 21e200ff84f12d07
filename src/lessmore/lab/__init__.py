"""Measuring: costs now; runs, metrics and provenance build on them."""
