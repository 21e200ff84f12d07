"""Images and data sets."""
