"""Drafts distilled from the target, on the corpus and on its own text.

Forward KL at temperature 1 (DistillSpec, arXiv:2310.08461, "teacher-generated"
data): what a draft is asked at inference is what the target does next in text
that the target wrote.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments import data
from experiments.optimize import train
from experiments.settings import Recipe
from specjax import generate, sampling, verify
from specjax.drafters import plain
from specjax.models import transformer
from specjax.types import Params, Spec


def write_samples(recipe: Recipe, folder: pathlib.Path, model, params, streams):
  """Texts [n, 257] that the target continued from prompts of the corpus.

  Kept in `folder` batch by batch, so that a stopped run goes on.
  """
  d = recipe.drafts
  spec = Spec(model, plain.make(), verify.token)
  length = d.on_samples.length + 1
  texts = []
  for i in tqdm(range(0, d.samples, d.batch), 'texts of the target'):
    path = folder / 'samples' / f'{i:06d}.npy'
    if not path.exists():
      prompts = data.draw_batch(
        streams,
        vars(recipe.mixture),
        (d.batch, d.prompt_length - 1),
        recipe.seed + 1,
        i,
      )
      warm = np.arange(d.batch) >= d.greedy_share * d.batch
      state = generate.start(
        Params(params, None),
        prompts.tolist(),
        spec=spec,
        new_tokens=length - d.prompt_length,
        key=generate.row_keys(recipe.seed + 1, i + np.arange(d.batch)),
        values=sampling.make(d.batch, warm.astype(np.float32)),
      )
      state = generate.generate(Params(params, None), state, length, spec=spec)
      path.parent.mkdir(exist_ok=True)
      part = path.with_name('part.npy')
      np.save(part, np.asarray(state.tokens[:, :length], np.uint16))
      part.rename(path)
    texts.append(np.load(path))
  return np.concatenate(texts)


def train_drafts(
  recipe: Recipe, folder, target, params, models, streams, texts
):
  """Trains every draft on the same batches, so the target reads them once.

  Args:
    recipe: sizes and steps.
    folder: checkpoints go there.
    target: the target model.
    params: its parameters.
    models: name -> draft model.
    streams: token streams of the corpus.
    texts: [n, T+1] the target's own text.

  Returns:
    name -> parameters, after the corpus and after the target's text.
  """
  d = recipe.drafts

  def loss(drafts, frozen, tokens):
    inputs = tokens[:, :-1]
    p = jax.nn.softmax(transformer.score(target, frozen, inputs))

    def divergence(name):
      q = jax.nn.log_softmax(
        transformer.score(models[name], drafts[name], inputs)
      )
      return -jnp.sum(p * q, -1).mean()

    return {name: divergence(name) for name in models}

  def from_samples(step):
    rng = np.random.default_rng((recipe.seed + 2, step))
    rows = rng.choice(len(texts), d.on_samples.batch, replace=False)
    return texts[rows].astype(np.int32)

  def from_corpus(step):
    shape = (d.on_corpus.batch, d.on_corpus.length)
    return data.draw_batch(
      streams, vars(recipe.mixture), shape, recipe.seed + 3, step
    )

  keys = jax.random.split(jax.random.key(recipe.seed + 4), len(models))
  drafts = {
    name: model.init(key)
    for (name, model), key in zip(models.items(), keys, strict=True)
  }
  early = train(
    'drafts-corpus', folder, d.on_corpus, drafts, loss, params, from_corpus
  )
  return early, train(
    'drafts-samples', folder, d.on_samples, early, loss, params, from_samples
  )
