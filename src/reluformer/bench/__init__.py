"""Side-by-side measurements of speed and memory: the commands of ``reluformer bench``."""
