"""Training texts of drafts: windows of the corpus, and texts of a model."""

import hashlib
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from specjax import checkpoints, sampling, verify
from specjax.cli import progress
from specjax.cli.fields import SEEDS
from specjax.drafters import plain
from specjax.errors import UserError, blame, need, writing
from specjax.loop import generate
from specjax.models.transformer import Model
from specjax.training import data, folders
from specjax.training.examples import Reader, Split, split
from specjax.training.recipes import (
  ForTarget,
  Heads,
  Mixture,
  Texts,
  need_positions,
)
from specjax.types import Params, Spec


class Material(NamedTuple):
  """A target, and the text that its drafters are trained on.

  Either `streams` of the corpus, or `examples`.
  """

  recipe: Any
  target: Model
  weights: Any
  tokenizer: Any
  streams: dict[str, np.ndarray]
  examples: Split | None = None


def check_target(x: ForTarget, asked: dict) -> None:
  """Checks the target without its weights.

  Args:
    x: the recipe.
    asked: positions that it asks of the target, by field.

  Raises:
    UserError: the target cannot be used, or has too few positions.
  """
  with blame('target: '):
    config = checkpoints.describe(x.target).model.config
  with blame():
    checkpoints.precision.check_dtype(x.dtype)
  need(
    config.encoder is None,
    f'target: {x.target} is an encoder-decoder, which has no text of its own '
    'to learn from: drafters are trained for decoders alone',
  )
  need_positions(config.max_positions, 'the target has', asked)


def check(x: Heads) -> None:
  """Checks the target without its weights, and makes the folder of the data.

  Raises:
    UserError: the target cannot be used, or has too few positions; the data is
      that of another.
  """
  check_target(x, x.positions())
  if x.has_examples:
    return
  folder = pathlib.Path(x.data)
  with writing('data', folder):
    folder.mkdir(parents=True, exist_ok=True)
  folders.claim_data(folder, _made_for(x))
  if not (folder / data.TOKENS).exists():
    x.mixture.need_no_packages(f'none are read for {folder}: leave it at 0')


def _made_for(x: Heads) -> dict[str, Any]:
  """The settings that the tokens and texts of a recipe depend on, by name."""
  with blame('target: '):
    target = checkpoints.fingerprint(x.target)
    tokenizer = checkpoints.load_tokenizer(x.target)
  vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
  known = json.dumps([vocabulary, tokenizer.eos_token_id]).encode()
  named = {'mixture': x.mixture, 'texts': x.texts}
  settings = {
    f'{field}.{name}': value
    for field, values in named.items()
    for name, value in vars(values).items()
    if name != 'count'  # More of them may be written beside these.
  }
  return {
    'target': target,
    'tokenizer': hashlib.sha256(known).hexdigest(),
    'every': x.every,
    'seed': x.seed,
    **settings,
  }


def read_target(x: ForTarget) -> Material:
  """The target and its tokenizer, and nothing yet that is learned."""
  tokenizer = checkpoints.load_tokenizer(x.target)
  target, weights = checkpoints.load(x.target, x.dtype)
  return Material(x, target, weights, tokenizer, {})


def gather(x: Heads) -> Material:
  """Reads the target, and the corpus as its tokenizer sees it.

  Raises:
    UserError: the checkpoint cannot be used, or the folder of the data was
      made with another tokenizer, or lacks a share of the mixture.
  """
  check(x)
  if x.has_examples:
    tokenizer = checkpoints.load_tokenizer(x.target)
    size = checkpoints.describe(x.target).model.config.vocab_size
    sides = split(Reader(x.examples, tokenizer, size))  # Before weights.
    return read_target(x)._replace(examples=sides)
  m = read_target(x)
  folder = pathlib.Path(x.data)
  streams = data.token_streams(m.tokenizer, folder, x.every)
  for name, share in vars(x.mixture).items():
    need(
      not share or name in streams,
      f'mixture.{name} is {share}, but {folder} has no such tokens: leave it '
      'at 0, or name another folder',
    )
  largest = max(int(stream.max()) for stream in streams.values())
  if largest >= m.target.config.vocab_size:
    raise UserError(
      f'data: {folder} holds token {largest}, but the target has only '
      f'{m.target.config.vocab_size}: it was made with another tokenizer; name '
      'another folder'
    )
  return m._replace(streams=streams)


def draw_windows(
  m: Material, count: int, length: int, seed: int, step: int
) -> np.ndarray:
  """Windows [count, length] of the corpus."""
  shape = (count, length - 1)
  return data.draw_batch(m.streams, vars(m.recipe.mixture), shape, seed, step)


def write_texts(
  folder: pathlib.Path,
  model: Model,
  params: Any,
  x: Texts,
  streams: dict[str, np.ndarray],
  mixture: Mixture,
  seed: int,
  phase: str = '',
) -> np.ndarray:
  """Texts [n, length + 1] that a model continued from the corpus.

  Kept in `folder` batch by batch, so that a stopped run goes on. `phase` names
  this work on stderr; it is empty within a phase.
  """
  spec = Spec(model, plain.make(), verify.token)
  length = x.length + 1
  parts = range(0, x.count, x.batch)
  texts = []
  for i in progress.over(phase, parts, alike=1) if phase else parts:
    path = folder / f'{i:06d}.npy'
    if not path.exists():
      prompts = data.draw_batch(
        streams, vars(mixture), (x.batch, x.prompt_length - 1), seed, i
      )
      warm = np.arange(x.batch) >= x.greedy_share * x.batch
      state = generate.start(
        Params(params, None),
        prompts.tolist(),
        spec=spec,
        new_tokens=length - x.prompt_length,
        key=generate.row_keys(seed % SEEDS, i + np.arange(x.batch)),
        values=sampling.make(x.batch, warm.astype(np.float32)),
      )
      state = generate.generate(Params(params, None), state, length, spec=spec)
      made = np.asarray(state.tokens[:, :length], np.uint32)
      data.write_arrays('data', path, made)
    texts.append(_read_texts(path, (x.batch, length)))
  return np.concatenate(texts)


def _read_texts(path: pathlib.Path, shape: tuple[int, int]) -> np.ndarray:
  """The texts of a file.

  Raises:
    UserError: it is damaged, or was written with other settings.
  """
  texts = data.read_arrays('data', path)
  need(
    texts.shape == shape,
    f'data: {path} holds texts {texts.shape} where texts.batch and '
    f'texts.length ask for {shape}; name another folder',
  )
  return texts


def write_target_texts(m: Material) -> np.ndarray:
  """The texts of the target, in the folder of the data."""
  x = m.recipe
  return write_texts(
    pathlib.Path(x.data) / 'samples',
    m.target,
    m.weights,
    x.texts,
    m.streams,
    x.mixture,
    x.seed + 1,
    'texts of the target',
  )


def draw_texts(
  texts: np.ndarray, count: int, length: int, seed: int, step: int
) -> np.ndarray:
  """Beginnings [count, length] of different texts."""
  rng = np.random.default_rng((seed, step))
  rows = rng.choice(len(texts), count, replace=False)
  return texts[rows, :length].astype(np.int32)
