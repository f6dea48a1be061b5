"""Parts of the experiment ``vision``: labelled images, and plain training of a classifier on them."""
