"""Training: batches by what they cost, checkpoints and their averages."""
