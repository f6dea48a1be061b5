"""The embedded document: a speech of about 1,000 tokens in English."""

from importlib.resources import files

TEXT = "speech.txt"  # a sentence per line, the title first


def speech() -> list[str]:
    """Return the sentences of the speech."""
    return files("reluformer.data").joinpath(TEXT).read_text(encoding="utf-8").splitlines()
