from reluformer.data.packing import join_sentences
from reluformer.data.tokenizer import BOS_ID, EOS_ID, SEP_ID, encode
from reluformer.demo.words import pairs_of, sentence_numbers, sentences_of
from reluformer.translation.translator import Written, _bare
from reluformer.translation.windows import Window

TEXTS = ["In the beginning, God created", "heaven – and  “earth”; 4 ½ 😀", "light"]


def test_words_are_the_text_and_know_their_tokens(tokenizer) -> None:
    bare = _bare(tokenizer)
    tokens = join_sentences(encode(bare, TEXTS))
    sentences = sentences_of(bare, tokens)
    assert [[word.text for word in sentence] for sentence in sentences] == [text.split() for text in TEXTS]
    for sentence in sentences:
        for word in sentence:
            assert bare.decode(tokens[word.start : word.end]).strip() == word.text
            assert word.tokens == word.end - word.start
    covered = [i for sentence in sentences for word in sentence for i in range(word.start, word.end)]
    # All but the separators, the end, and the space that stood before another.
    left = [bare.decode([token]).strip() for i, token in enumerate(tokens) if i not in covered]
    assert left == [""] * len(left)


def test_a_special_token_in_a_sentence_is_no_word(tokenizer) -> None:
    bare = _bare(tokenizer)
    (word,) = encode(bare, ["light"])
    assert [w.text for w in sentences_of(bare, [*word, BOS_ID, EOS_ID])[0]] == ["light"]
    assert sentences_of(bare, [EOS_ID]) == [[]]


def test_a_separator_belongs_to_the_sentence_that_it_ends() -> None:
    assert sentence_numbers([9, 8, SEP_ID, 7, SEP_ID, 6, EOS_ID]) == [0, 0, 0, 1, 1, 2, 2]


def test_every_sentence_comes_from_the_window_in_which_it_counts(tokenizer) -> None:
    bare = _bare(tokenizer)
    a, b, c = (encode(bare, [text])[0] for text in ("God said", "let there be", "light"))
    first = Written(0, Window(0, 0, 2), join_sentences([a, b]), join_sentences([b, a]))
    alone = Written(0, Window(2, 2, 3), join_sentences([c]), join_sentences([a, c]))  # wrote two for one
    again = Written(0, Window(1, 2, 3), join_sentences([b, c]), join_sentences([a, c]))
    for last, said in ((alone, "God said light"), (again, "light")):
        pairs = pairs_of(bare, [first, last])
        texts = [tuple(" ".join(word.text for word in side) for side in (pair.source, pair.target)) for pair in pairs]
        assert texts == [("God said", "let there be"), ("let there be", "God said"), ("light", said)]
        assert [pair.window for pair in pairs] == [0, 0, 1]
    assert pairs[2].source[0].start == len(b) + 1
