"""``reluformer demo``."""


def demo() -> None:
    """Show the operator at work on this machine."""
