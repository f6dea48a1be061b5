"""What the study of vision works with: images of classes, and a plain way to train a classifier on them."""
