"""One vocabulary for both languages: byte-level BPE, in which no text is unknown and decoding restores it exactly.

Text is always text: ``</s>`` or ``<sep>`` spelled out in a sentence is not taken for the special token. Tokens that
structure a sequence come from code alone, see :mod:`reluformer.data.packing`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reluformer.data.files import DataError
from reluformer.data.patience import hearing

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNK, SEP = SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<sep>")
PAD_ID, BOS_ID, EOS_ID, UNK_ID, SEP_ID = range(len(SPECIALS))
SMALLEST = len(SPECIALS) + 256  # every byte, and not a single merge
LARGEST = 1 << 22  # training allocates room for all of them before it finds the first
LONGEST_TOKEN = 32  # characters: a row of dashes is no word


def check_size(name: str, size: int) -> None:
    """Refuse an impossible size of a vocabulary."""
    if not SMALLEST <= size <= LARGEST:
        takes = f"{SMALLEST} tokens or more (special ones and bytes), at most {LARGEST}"
        raise DataError(f"{name} takes {takes}, got {size}")


def train_tokenizer(texts: Iterable[str], size: int) -> "PreTrainedTokenizerFast":
    """Learn a tokeniser; the same texts in the same order give the same tokeniser.

    Args:
        texts: Sentences of both languages.
        size: Size of the vocabulary, special tokens and the 256 bytes included; a small text may yield fewer tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    check_size("a vocabulary", size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    hearing(lambda: tokenizer.train_from_iterator(texts, trainer))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {SEP} $B {EOS}", special_tokens=[(EOS, EOS_ID), (SEP, SEP_ID)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        sep_token=SEP,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
    )


def load_encoder(folder: Path) -> "Tokenizer":
    """Load the bare tokeniser of a folder for :func:`encode`, without the wrapper of transformers, which costs time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # text that spells a special token stays text, here too
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: "Tokenizer", sentences: Sequence[str]) -> list[list[int]]:
    """Encode sentences as lists of tokens, without special tokens."""
    encoded = tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
    return [sentence.ids for sentence in encoded]
