"""Checkpoint families: how the models of others become ours, and back.

A family is one table. Its rows say which attributes of a Hugging Face
`config.json` set which fields of `TransformerConfig`, and its sources which
tensors each of our parameters is made of. Both are read in both directions, so
a model that can be loaded can be saved. To add a family is to add its table.

An attribute that no row handles and that is not known to be harmless is
rejected: to ignore it would be to run another model under the same name.
"""

from specjax.checkpoints.families.deepseek import (
  DEEPSEEK_V2,
  DEEPSEEK_V3,
  GLM4_MOE,
  GLM4_MOE_LITE,
  KIMI_K2,
  YOUTU,
)
from specjax.checkpoints.families.dense import (
  ARCEE,
  GRANITE,
  HUNYUAN,
  HYPERCLOVAX,
  JAIS2,
  MINISTRAL,
  MINISTRAL3,
  NEMOTRON,
  PHI,
  SEED_OSS,
  SMOLLM3,
  STABLELM,
  STARCODER2,
)
from specjax.checkpoints.families.gemma import (
  GEMMA,
  GEMMA2,
  GEMMA3,
  GEMMA4,
  VAULTGEMMA,
)
from specjax.checkpoints.families.gpt import GPT2, GPT_NEO, GPT_NEOX, OPT
from specjax.checkpoints.families.gpt_oss import GPT_OSS
from specjax.checkpoints.families.hybrid import (
  QWEN3_5,
  QWEN3_5_MOE,
  QWEN3_NEXT,
)
from specjax.checkpoints.families.interleaved import (
  COHERE,
  COHERE2,
  ERNIE4_5,
  GLM,
  GLM4,
  HELIUM,
)
from specjax.checkpoints.families.lfm2 import LFM2, LFM2_MOE
from specjax.checkpoints.families.llama import LLAMA, MISTRAL, MIXTRAL, PHI3
from specjax.checkpoints.families.mamba import (
  BAMBA,
  FALCON_H1,
  GRANITE_HYBRID,
  NEMOTRON_H,
)
from specjax.checkpoints.families.olmo import EXAONE4, OLMO2, OLMO3, OLMOE
from specjax.checkpoints.families.qwen import (
  MIMO,
  QWEN2,
  QWEN2_5_VL,
  QWEN2_VL,
  QWEN3,
  QWEN3_MOE,
  QWEN3_VL,
)
from specjax.checkpoints.families.t5 import T5

# By model type. Saving takes the first one that covers a model.
FAMILIES = {
  family.model_type: family
  for family in (
    LLAMA,
    QWEN2,
    MIMO,
    QWEN3,
    GPT2,
    GPT_NEOX,
    OPT,
    MISTRAL,
    PHI3,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GPT_NEO,
    MIXTRAL,
    QWEN3_MOE,
    QWEN2_VL,
    QWEN2_5_VL,
    QWEN3_VL,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    SMOLLM3,
    OLMO2,
    OLMO3,
    GRANITE,
    GLM4,
    SEED_OSS,
    COHERE2,
    MINISTRAL3,
    STARCODER2,
    EXAONE4,
    ERNIE4_5,
    HUNYUAN,
    ARCEE,
    PHI,
    GLM,
    COHERE,
    HELIUM,
    GPT_OSS,
    OLMOE,
    MINISTRAL,
    NEMOTRON,
    STABLELM,
    HYPERCLOVAX,
    JAIS2,
    VAULTGEMMA,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    KIMI_K2,
    GLM4_MOE_LITE,
    GLM4_MOE,
    YOUTU,
    LFM2,
    LFM2_MOE,
    GRANITE_HYBRID,
    BAMBA,
    FALCON_H1,
    NEMOTRON_H,
    T5,
  )
}
