"""Small classifiers whose answers can be certified for every input in a ball, not only for those that were tried."""
