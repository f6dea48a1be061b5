"""Documents through a model: windows of sentences, beam search, lines that stay aligned; and how good the result is."""
