"""What the study of approximation works with: a target of boxes, a network, its L1 error, and the rate of errors."""
