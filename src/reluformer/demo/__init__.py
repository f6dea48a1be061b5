"""``reluformer demo``: a document translated by the model in the box, and a look inside; or the operator alone."""
