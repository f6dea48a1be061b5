"""What the study of language works with: a text as one row of tokens, and a plain way to train a model on it."""
