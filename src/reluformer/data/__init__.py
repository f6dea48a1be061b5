"""Documents in, batches out: read, clean, tokenise, pack to length, batch by cost."""
