"""ReLUFormer models in Hugging Face's format; importing this package registers them with the Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    ViTImageProcessorPil,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # from elsewhere it may need torchvision
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from reluformer.models.configuration import ReLUFormerConfig
from reluformer.models.image_configuration import ReLUFormerImageConfig
from reluformer.models.images import (
    ReLUFormerForImageClassification,
    ReLUFormerImageModel,
    ReLUFormerImageOutput,
    image_processor,
)
from reluformer.models.language import ReLUFormerForCausalLM, ReLUFormerLanguageModel, ReLUFormerLanguageOutput
from reluformer.models.language_configuration import ReLUFormerLanguageConfig
from reluformer.models.reluformer import ReLUFormerForConditionalGeneration, ReLUFormerModel, ReLUFormerOutput

AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig, exist_ok=True)
AutoModel.register(ReLUFormerConfig, ReLUFormerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration, exist_ok=True)

AutoConfig.register(ReLUFormerLanguageConfig.model_type, ReLUFormerLanguageConfig, exist_ok=True)
AutoModel.register(ReLUFormerLanguageConfig, ReLUFormerLanguageModel, exist_ok=True)
AutoModelForCausalLM.register(ReLUFormerLanguageConfig, ReLUFormerForCausalLM, exist_ok=True)
# By these names Trainer, when it smooths labels, recognises a model whose labels it has to shift by one.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ReLUFormerLanguageConfig.model_type] = ReLUFormerForCausalLM.__name__

AutoConfig.register(ReLUFormerImageConfig.model_type, ReLUFormerImageConfig, exist_ok=True)
AutoModel.register(ReLUFormerImageConfig, ReLUFormerImageModel, exist_ok=True)
AutoModelForImageClassification.register(ReLUFormerImageConfig, ReLUFormerForImageClassification, exist_ok=True)
AutoImageProcessor.register(ReLUFormerImageConfig, image_processor_classes={"pil": ViTImageProcessorPil}, exist_ok=True)

__all__ = [
    "ReLUFormerConfig",
    "ReLUFormerForCausalLM",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerForImageClassification",
    "ReLUFormerImageConfig",
    "ReLUFormerImageModel",
    "ReLUFormerImageOutput",
    "ReLUFormerLanguageConfig",
    "ReLUFormerLanguageModel",
    "ReLUFormerLanguageOutput",
    "ReLUFormerModel",
    "ReLUFormerOutput",
    "image_processor",
]
