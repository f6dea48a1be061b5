"""ReLU attention in the models of Hugging Face's transformers.

Importing this package registers ``attn_implementation="reluformer"`` and the classes of converted models, so that
``AutoModelForSeq2SeqLM.from_pretrained(folder)`` and the other Auto classes load what :func:`convert` made and
``save_pretrained`` saved.
"""

from transformers import AttentionInterface, AttentionMaskInterface

from reluformer.integration.attention import NAME, attend, make_mask
from reluformer.integration.conversion import attention_sites, calibrate, convert
from reluformer.integration.families import register_families
from reluformer.integration.memory import AttentionMemory
from reluformer.integration.vit import from_vit

__all__ = ["AttentionMemory", "attention_sites", "calibrate", "convert", "from_vit", "register"]


def register() -> None:
    """Register ReLU attention and the converted classes with transformers; a second call changes nothing."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)
    register_families()


register()
