"""Heads in the form of the speculators library, which vLLM and SGLang serve."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import numpy as np

from specjax.arguments import check_number
from specjax.checkpoints.families import conversion
from specjax.drafters.heads import files
from specjax.drafters.heads.formats import Made, Table
from specjax.models import reduced_vocab_head
from specjax.models.config import TransformerConfig


class Form(NamedTuple):
  """What a head is in this form.

  Attributes:
    kind: its `speculators_model_type`.
    architecture: its class there.
    layer: of config.json, of its layers.
    own: the other attributes that its kind has.
    table: tensors of its parameters.
    draft_vocab: tokens that have a logit; 0: all.
    places: that it says at once; None: it drafts token after token.
  """

  kind: str
  architecture: str
  layer: dict[str, Any]
  own: dict[str, Any]
  table: Table
  draft_vocab: int
  places: int | None = None


def refuse(sizes: Any, wrong: Mapping[str, bool], remedy: str) -> None:
  """Refuses a head that the form cannot say.

  Args:
    sizes: of the head.
    wrong: whether each of its options is what the form does not have.
    remedy: what to train instead.

  Raises:
    ValueError: names the option and the remedy.
  """
  for name, refused in wrong.items():
    if refused:
      raise ValueError(
        f'{name} of the head is {getattr(sizes, name)!r}, which the form of '
        f'speculators does not have: {remedy}'
      )


def _tensors(form: Form, params: Any) -> dict[str, np.ndarray]:
  """The tensors of a head by their names."""
  flat: Mapping[str, Any] = flax.traverse_util.flatten_dict(params, sep='/')
  found: dict[str, np.ndarray] = {}
  for key, source in conversion.fill(form.table, flat).items():
    value = np.asarray(flat[key])
    if isinstance(source, Made):
      count = form.draft_vocab
      ids = np.asarray(reduced_vocab_head.ids(flat[key], count), np.int64)
      found |= {'d2t': ids - np.arange(count), 't2d': value < count}
      continue
    split, own = source
    parts = split.cut(value, len(own))
    for name, part in zip(own, parts, strict=True):
      found[name] = np.ascontiguousarray(part)
  return found


def write(
  path: str | pathlib.Path,
  form: Form,
  params: Any,
  target: TransformerConfig,
  verifier: str,
  architectures: tuple[str, ...] = (),
  tokens: int | None = None,
  dtype: str = 'float16',
) -> None:
  """Writes a head into a new directory.

  Args:
    path: the directory; it must not exist.
    form: of the head.
    params: whole weights.
    target: of its target.
    verifier: the name or the path by which an engine knows the target.
    architectures: of the target's config.json.
    tokens: that an engine drafts, unless it is told another number; None: all
      places that the head says, or 4.
    dtype: of floats.

  Raises:
    ValueError: `tokens` is no number of tokens, or more than the head says, or
      the place is taken.
  """
  tokens = (form.places or 4) if tokens is None else tokens
  check_number('tokens', tokens, 1)
  if form.places and tokens > form.places:
    raise ValueError(
      f'tokens is {tokens}, but the head says {form.places} places: choose at '
      'most as many'
    )
  method = {
    'proposal_type': 'greedy',
    'speculative_tokens': tokens,
    'verifier_accept_k': 1,
    'accept_tolerance': 0.0,
  }
  config = {
    'architectures': [form.architecture],
    'speculators_model_type': form.kind,
    'speculators_config': {
      'algorithm': form.kind,
      'default_proposal_method': 'greedy',
      'proposal_methods': [method],
      'verifier': {
        'name_or_path': verifier,
        'architectures': list(architectures),
      },
    },
    'transformer_layer_config': form.layer,
    'draft_vocab_size': form.draft_vocab or target.vocab_size,
    'target_hidden_size': target.width,
    **form.own,
    'tie_word_embeddings': False,
    'torch_dtype': dtype,
  }
  files.save(path, config, _tensors(form, params), dtype)
