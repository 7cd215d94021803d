"""Checkpoint families: how the models of others become ours, and back.

A family is one table. Its rows say which attributes of a Hugging Face
`config.json` set which fields of `TransformerConfig`, and its sources which
tensors each of our parameters is made of. Both are read in both directions, so
a model that can be loaded can be saved. To add a family is to add its table.

An attribute that no row handles and that is not known to be harmless is
rejected: to ignore it would be to run another model under the same name.
"""

from specjax.models.families.llama import LLAMA, MISTRAL

# Saving takes the first family that covers a model.
FAMILIES = {family.model_type: family for family in (LLAMA, MISTRAL)}
