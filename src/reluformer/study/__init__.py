"""The study: every claim of the paper as an experiment, a grid of cells kept on disk, and one report."""
