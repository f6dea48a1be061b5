"""``reluformer demo``: a document translated by the bundled model with a look inside, or the operator alone."""
