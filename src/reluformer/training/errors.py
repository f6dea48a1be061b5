"""The errors that stop a training run and are for the user to fix."""


class TrainingError(Exception):
    """A run that cannot begin or continue; the message says what is wrong, and where."""


class NoNumber(TrainingError):
    """The loss has become infinite or NaN."""
