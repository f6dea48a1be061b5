"""What stops a training run and is the user's to mend."""


class TrainingError(Exception):
    """A run that cannot begin or go on: the message says what is wrong, and where."""
