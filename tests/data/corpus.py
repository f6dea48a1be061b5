"""A small corpus, made up."""

import json
import random
from pathlib import Path

SENTENCES = (
    "the old house stands on a green hill near our quiet village and nobody knows who built it",
    "das alte Haus steht auf einem grünen Hügel nahe unserem stillen Dorf und niemand weiß wer es baute",
)
SOURCE, TARGET = (sentence.split() for sentence in SENTENCES)


def documents(count: int, seed: int) -> list[dict[str, object]]:
    draw = random.Random(seed)
    made = []
    for i in range(count):
        picks = [
            [draw.randrange(len(SOURCE)) for _ in range(draw.randrange(3, 30))] for _ in range(draw.randrange(1, 9))
        ]
        sides = [[" ".join(words[k] for k in pick) + " 😀." for pick in picks] for words in (SOURCE, TARGET)]
        made.append({"id": f"doc-{seed}-{i}", "en": sides[0], "de": sides[1]})
    return made


def write_corpus(path: Path, count: int = 40, seed: int = 0) -> str:
    lines = [json.dumps(document, ensure_ascii=False) for document in documents(count, seed)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
