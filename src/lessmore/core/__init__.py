"""The method: how tokens are condensed, what a stream remembers, and how that corrects an answer."""
