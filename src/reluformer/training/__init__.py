"""Training by recipe: the trainer, its checkpoints and their averages."""
