"""The study: every claim of the paper as an experiment, a grid of cells that are kept, and one report."""
