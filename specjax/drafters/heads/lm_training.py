"""A small language model in training to draft for a target."""

import json
import pathlib
from typing import Any

from specjax import checkpoints
from specjax.arguments import check_path
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.shapes import chain
from specjax.drafters.shapes.language_model import walk
from specjax.models import transformer
from specjax.models.transformer import Model

TRAINING = 'training.json'  # beside a finished draft: what it cost


def trainable(target: Model, path: str = '', **sizes: Any) -> Trainable:
  """A draft to train: one that is there already, or one of given sizes.

  Args:
    target: the target model.
    path: of the checkpoint that training begins with, a Hugging Face directory
      or the name of a model on the Hub; empty: random weights.
    **sizes: of a model with random weights, those of
      `models.transformer.TransformerConfig` but the vocabulary and, unless they
      are given, the positions, which are the target's.

  Raises:
    ValueError: both or neither are given, or the draft has another vocabulary
      or an encoder.
  """
  if bool(path) == bool(sizes):
    raise ValueError(
      'options: give path, a draft to begin with, or the sizes of a new one: '
      'width, num_layers, num_heads, num_kv_heads, head_dim and mlp_width'
    )
  vocab = target.config.vocab_size
  if path:
    check_path(path, 'a language model')
    path = str(checkpoints.locate(path))
    files.refuse(path)
    model = checkpoints.describe(path).model
    if model.encode is not None:
      raise ValueError(f'{path} is an encoder-decoder: give a decoder')
    if model.config.vocab_size != vocab:
      raise ValueError(
        f'{path} has {model.config.vocab_size} tokens and the target {vocab}: '
        "a draft learns the target's distribution over the target's tokens"
      )
  else:
    own = {'max_positions': target.config.max_positions} | sizes
    model = transformer.build(
      transformer.TransformerConfig(vocab_size=vocab, **own)
    )

  def init(key, target_params):
    del target_params  # Unused.
    if path:
      return checkpoints.load(path, 'float32')[1]
    return model.init(key)

  def loss(params, seen, key):
    del key  # Unused.
    said = transformer.score(model, params.drafter, seen.tokens)
    return {'token': seen.judge(seen.logits, said, seen.weights)}

  def save(place, config, params, tokenizer):
    checkpoints.save(place, model, params, tokenizer)
    known = {k: v for k, v in config.items() if k != 'training'}
    facts = {**config.get('training', {}), **known}
    (pathlib.Path(place) / TRAINING).write_text(
      json.dumps(facts, indent=1) + '\n'
    )

  return Trainable(
    {'kind': 'lm', 'from': path, **sizes},
    (),
    init,
    loss,
    lambda depth: chain.make(walk(model), depth),
    save=save,
    read=lambda place: checkpoints.load(place)[1],
  )
