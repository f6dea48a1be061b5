"""``python -m reluformer`` is the ``reluformer`` command."""

from reluformer.cli import main

main()
