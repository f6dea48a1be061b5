"""The error that stops a training run and is for the user to fix."""


class TrainingError(Exception):
    """A run that cannot begin or continue; the message says what is wrong, and where."""
