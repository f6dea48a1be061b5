"""Side-by-side speed and memory runs: ``reluformer bench attention``, ``decode``, ``memory``."""
