"""ReLUFormer in Hugging Face's format; importing this makes the Auto classes know it."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from reluformer.models.configuration import ReLUFormerConfig
from reluformer.models.reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, ReLUFormerOutput

AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig, exist_ok=True)
AutoModel.register(ReLUFormerConfig, ReLUFormerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration, exist_ok=True)

__all__ = ["ReLUFormerConfig", "ReLUFormerForConditionalGeneration", "ReLUFormerModel", "ReLUFormerOutput"]
