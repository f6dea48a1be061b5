"""Parts of the experiment ``approximation``: a target of boxes, a network, its L1 error, and the rate of the error."""
