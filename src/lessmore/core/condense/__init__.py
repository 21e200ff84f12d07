"""Token reducers: what happens to the tokens between attention and MLP of chosen blocks (section 3.4)."""
