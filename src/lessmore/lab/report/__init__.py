"""Views of results: pictures of condensed tokens, and pages that need nothing but themselves."""
