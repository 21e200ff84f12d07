"""The paper's tables: what they say, how to run them here, and the two side by side."""
