"""Training: batches by cost, checkpoints and their averages."""
