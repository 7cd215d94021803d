"""Checkpoint families: how the models of others become ours.

A family is one table. Its rows say which attributes of a Hugging Face
`config.json` set which fields of `TransformerConfig`, and its sources which
tensors each of our parameters is made of. Sources are read in both directions,
and attributes are written as they were read, so a model that can be loaded can
be saved. To add a family is to add its table.

An attribute that no row handles and that is not known to be harmless is
rejected: to ignore it would be to run another model under the same name.
"""

from specjax.checkpoints.families import (
  deepseek,
  dense,
  gemma,
  gpt,
  gpt_oss,
  hybrid,
  interleaved,
  lfm2,
  llama,
  mamba,
  olmo,
  qwen,
  t5,
)

# By model type.
FAMILIES = {
  family.model_type: family
  for module in (
    llama,
    qwen,
    gpt,
    gemma,
    hybrid,
    dense,
    olmo,
    interleaved,
    gpt_oss,
    deepseek,
    lfm2,
    mamba,
    t5,
  )
  for family in module.FAMILIES
}
