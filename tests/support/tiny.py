"""A tiny pair on disk, with the embedded tokenizer and random weights.

Configs import this in processes that are still to be joined: nothing here may
compute as it is imported.
"""

import functools
import pathlib

import jax
import numpy as np

from specjax import checkpoints, pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.drafters import medusa
from specjax.drafters.heads.trainable import Trainable
from specjax.loop import generate
from specjax.models import transformer
from specjax.models.layouts import LayoutChoice


def model(
  width: int, layers: int, vocab: int = 2048, **options
) -> transformer.Model:
  sizes = dict(
    vocab_size=vocab, width=width, num_layers=layers, num_heads=2,
    num_kv_heads=1, head_dim=16, mlp_width=64, max_positions=128,
  )  # fmt: skip
  return transformer.build(transformer.TransformerConfig(**sizes | options))


@functools.cache
def _parts(layers: int, seed: int, vocab: int, **options):
  made = model(32, layers, vocab, **options)
  tokenizer = checkpoints.load_tokenizer(pair.path('target'))
  return made, jax.jit(made.init)(jax.random.key(seed)), tokenizer


def write_pair(folder: pathlib.Path, vocab: int = 2048, **options) -> None:
  """Directories `target` and `draft` under a folder."""
  for seed, (name, layers) in enumerate((('target', 2), ('draft', 1))):
    checkpoints.save(folder / name, *_parts(layers, seed, vocab, **options))


def experiment(folder: pathlib.Path, **changes) -> Experiment:
  """One LM draft and an n-gram lookup on a few short prompts."""
  settings = {
    'name': 'tiny',
    'target': Checkpoint(str(folder / 'target')),
    'candidates': {
      'draft': Candidate('specjax.drafters.lm.load', 2, str(folder / 'draft')),
      'ngram': Candidate('specjax.drafters.ngram.load', 2),
    },
    'prompts': Prompts(domains=('code',), count=2, length=16),
    'max_new_tokens': 12,
    'quick': True,
  }
  return Experiment(**(settings | changes))


def forget_loops() -> None:
  """Forgets every compiled loop, so that those of a run are counted."""
  for one in (generate.loop, *generate._LOOPS.values()):
    one.clear_cache()


def write_data(folder: pathlib.Path) -> None:
  """What training reads: tokens of a corpus, and eight texts."""
  (folder / 'samples').mkdir(parents=True)
  rng = np.random.default_rng(0)
  streams = ('code', 'tests', 'documentation', 'structured')
  tokens = {name: rng.integers(1, 2048, 400, np.uint16) for name in streams}
  np.savez(folder / 'tokens.npz', **tokens)
  texts = rng.integers(1, 2048, (8, 33), np.uint16)
  np.save(folder / 'samples' / '000000.npy', texts)


def noisy_head(target: transformer.Model, **options) -> Trainable:
  """A head whose loss draws random numbers, as some methods do."""
  head = medusa.trainable(target, **options)

  def loss(params, seen, key):
    noise = jax.random.normal(key, seen.hidden.shape)
    return head.loss(params, seen.replace(hidden=seen.hidden + noise), key)

  return head._replace(loss=loss)


class NoRace:
  """Takes the last layout that there is: what is fastest costs time."""

  def __init__(self, *_):
    pass

  def plain(self, ways):
    return LayoutChoice([*ways][-1])

  def passes(self, forms, count):
    del count  # Unused.
    return LayoutChoice([*forms][-1])
