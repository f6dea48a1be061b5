"""Document translation: windows of sentences, beam search, output aligned line by line, and scores of the result."""
