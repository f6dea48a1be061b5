"""Windows of a document: which sentences go through the model together, and which of them count.

Windows overlap. The first sentences of a window may be the last ones of the window before: they are translated again,
so that what follows has a context, and their second translation is discarded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "।")
CLAUSE_ENDS = (",", ";", ":", "–", "—", "，", "；", "：", "、")
SPACELESS = ("。", "！", "？", "，", "；", "：", "、")  # no space follows these
UNDECODABLE = "\ufffd"
LONGEST_CHARACTER = 4  # bytes in UTF-8, hence the most tokens of a character


@dataclass(frozen=True, order=True)
class Window:
    """Sentences ``start`` to ``end - 1`` go into the model; of what comes out, those from ``first`` on count."""

    start: int
    first: int
    end: int

    def smaller(self) -> list["Window"]:
        """Return smaller windows for the same sentences, in which less can go wrong; none for a single sentence."""
        context = (self.first - self.start) // 2
        middle = (self.first + self.end) // 2
        if middle > self.first:
            return [Window(x - context, x, y) for x, y in ((self.first, middle), (middle, self.end))]
        return [Window(self.first, self.first, self.end)] if self.first > self.start else []


def windows_of(lengths: Sequence[int], room: int, context: float) -> list[Window]:
    """Cut a document greedily into windows in which every sentence counts once.

    Args:
        lengths: Number of tokens of every sentence, the separator or end token after it included.
        room: Maximum number of tokens in a window; a longer sentence is alone in its window, with 0 every sentence is.
        context: Maximum share of the room that the context takes.
    """
    windows = []
    first = 0
    while first < len(lengths):
        start, end = first, first + 1
        free = room - lengths[first]
        spare = min(free, int(context * room))
        while start > 0 and lengths[start - 1] <= spare:
            start -= 1
            spare, free = spare - lengths[start], free - lengths[start]
        while end < len(lengths) and lengths[end] <= free:
            free -= lengths[end]
            end += 1
        windows.append(Window(start, first, end))
        first = end
    return windows


def split_overlong(tokens: Sequence[int], most: int, decode: Callable[[Sequence[int]], str]) -> list[Sequence[int]]:
    """Cut an overlong sentence into pieces of at most ``most`` tokens, where it hurts least.

    That is after the end of a sentence if there is one in the second half of a piece, else after a clause, between
    words, between characters or, without any such place (which takes bytes that are not text), anywhere.
    """
    pieces = []
    begin = 0
    shortest = max(1, min(most // 2 + 1, most - LONGEST_CHARACTER + 1))  # a character ends between this and most
    while len(tokens) - begin > most:
        end = _best_cut(tokens, begin + shortest, begin + most, decode)
        pieces.append(tokens[begin:end])
        begin = end
    return [*pieces, tokens[begin:]]


def _best_cut(tokens: Sequence[int], earliest: int, latest: int, decode: Callable[[Sequence[int]], str]) -> int:
    """Return where the next piece begins: the latest of the best places."""
    places = range(latest, earliest - 1, -1)
    # A token may hold a part of a character: the last few tokens hold the last character, or cannot be decoded.
    before = {i: decode(tokens[max(i - LONGEST_CHARACTER, 0) : i]) for i in places}

    def quality(i: int) -> int:
        if before[i].endswith(UNDECODABLE):
            return 0
        if not (before[i].endswith(SPACELESS) or decode([tokens[i]])[:1].isspace()):
            return 1
        return 4 if before[i].endswith(SENTENCE_ENDS) else 3 if before[i].endswith(CLAUSE_ENDS) else 2

    return max(places, key=quality)  # the first of the best, hence the latest
