"""Parts of the experiment ``language``: a text as one sequence of tokens, and plain training of a model on it."""
