"""Trains the embedded pair: tokenizer, target, the target's text, drafts.

Forward KL at temperature 1, on the corpus and then on what the target wrote
(DistillSpec, arXiv:2310.08461, "teacher-generated" data): what a draft is asked
at inference is what the target does next in text that the target wrote.
"""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers

from specjax import checkpoints
from specjax.bench.config import Size
from specjax.checkpoints import precision
from specjax.corpus import DOMAINS
from specjax.drafters import counts
from specjax.models import transformer
from specjax.training import data, folders
from specjax.training.generated import draw_texts, write_texts
from specjax.training.optimize import train
from specjax.training.recipes import Drafts, Optimization, Recipe, Texts

# Nats [B, T] of each next token under logits [B, T, V].
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def model_of(
  size: Size, vocab_size: int, max_positions: int
) -> transformer.Model:
  """A Llama of given sizes."""
  more = {'vocab_size': vocab_size, 'max_positions': max_positions}
  config = transformer.TransformerConfig(**dataclasses.asdict(size) | more)
  return transformer.build(config)


def wide(logits: jax.Array) -> jax.Array:
  """Logits as probabilities are made of them, in float32 at least."""
  return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def bits_per_byte(model, params, windows):
  """Held-out bits per byte by domain."""
  score = jax.jit(lambda p, t: transformer.score(model, p, t))
  result = {}
  for domain, (tokens, sizes) in windows.items():
    nats = 0.0
    for row in tokens:
      logits = score(params, row[None, :-1])
      nats += float(cross_entropy(logits, row[None, 1:]).sum())
    result[domain] = nats / np.log(2) / sizes.sum()
  return result


def window_shape(o: Optimization, step: int) -> tuple[int, int]:
  """Every fourth batch has half as many windows, twice as long.

  Attention over short windows is cheaper; the long ones teach the positions.
  """
  if step % 4 == 3:
    return max(1, o.batch // 2), 2 * o.length
  return o.batch, o.length


def load_tokenizer(recipe: Recipe, folder: pathlib.Path):
  """The recipe's tokenizer, trained the first time."""
  path = folder / 'tokenizer'
  if not path.exists():
    tokenizer = data.train_tokenizer(
      recipe.vocab_size, recipe.tokenizer_sample, recipe.seed
    )
    tokenizer.model_max_length = recipe.max_positions
    tokenizer.save_pretrained(path)
  return transformers.AutoTokenizer.from_pretrained(path)


def train_target(recipe: Recipe, folder: pathlib.Path, tokenizer, streams):
  """Next-token training on the corpus."""
  o = recipe.target_training
  model = model_of(recipe.target, recipe.vocab_size, recipe.max_positions)
  windows = {
    d: data.held_out_windows(tokenizer, 2 * o.length, 8, d) for d in DOMAINS
  }
  weights = vars(recipe.mixture)

  def loss(params, frozen, tokens):
    logits = transformer.score(model, params, tokens[:, :-1])
    return cross_entropy(logits, tokens[:, 1:]).mean()

  def report(params):
    bits = bits_per_byte(model, params, windows)
    return {'bits per byte': {k: round(v, 3) for k, v in bits.items()}}

  return model, train(
    'target',
    folder,
    o,
    model.init(jax.random.key(recipe.seed)),
    loss,
    None,
    lambda step, params: data.draw_batch(
      streams, weights, window_shape(o, step), recipe.seed, step
    ),
    report,
  )


def draft_size(width: int, layers: int = 1) -> Size:
  """Thin layers: heads of 32, an MLP of three times the width."""
  return Size(
    width=width,
    num_layers=layers,
    num_heads=width // 32,
    num_kv_heads=max(1, width // 64),
    head_dim=32,
    mlp_width=3 * width,
  )


def train_drafts(
  recipe: Recipe, d: Drafts, folder, target, params, models, streams, texts
):
  """Trains every draft on the same batches, so the target reads them once.

  Args:
    recipe: of the corpus and the seed.
    d: steps.
    folder: checkpoints go there.
    target: the target model.
    params: its parameters.
    models: name -> draft model.
    streams: token streams of the corpus.
    texts: [n, T+1] the target's own text.

  Returns:
    name -> parameters, after the corpus and after the target's text.
  """

  def loss(drafts, frozen, tokens):
    inputs = tokens[:, :-1]
    p = jax.nn.softmax(wide(transformer.score(target, frozen, inputs)))

    def divergence(name):
      logits = transformer.score(models[name], drafts[name], inputs)
      return optax.softmax_cross_entropy(logits, p).mean()

    return {name: divergence(name) for name in models}

  def from_samples(step, drafts):
    o = d.on_samples
    return draw_texts(texts, o.batch, o.length + 1, recipe.seed + 2, step)

  def from_corpus(step, drafts):
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


def make_drafts(
  recipe: Recipe, d: Drafts, folder, tokenizer, target, params, streams
):
  """Lets the target write texts, and trains drafts on these and the corpus.

  Returns:
    name -> model, and name -> parameters.
  """
  dtype = precision.resolve(recipe.dtype, 'float32')
  teacher = jax.tree.map(lambda x: x.astype(dtype), params)
  texts = write_texts(
    folder / 'samples',
    target,
    teacher,
    d.texts,
    streams,
    recipe.mixture,
    recipe.seed + 1,
    'texts of the target',
  )
  models = {
    f'draft-{width}': model_of(
      draft_size(width, d.layers), recipe.vocab_size, recipe.max_positions
    )
    for width in d.widths
  }
  early, drafts = train_drafts(
    recipe, d, folder, target, teacher, models, streams, texts
  )
  for name, model in models.items():
    path = folder / 'corpus-only' / name
    if not path.exists():
      checkpoints.save(path, model, early[name], tokenizer)
  return models, drafts


def shrink(recipe: Recipe) -> None:
  """A toy version of a recipe that shows that every stage runs."""
  recipe.folder += '-quick'
  recipe.vocab_size = min(recipe.vocab_size, 512)
  recipe.tokenizer_sample = 50_000
  recipe.every = 40
  recipe.target = Size(64, 2, 4, 2, 16, 128)
  recipe.target_training.shrink(12, 64)
  if recipe.drafts is not None:
    recipe.drafts.widths = (32,)
    recipe.drafts.texts = Texts(count=8, batch=8, length=64)
    recipe.drafts.on_corpus.shrink(12, 64)
    recipe.drafts.on_samples.shrink(12, 64)


def main(recipe: Recipe) -> dict[str, str]:
  if recipe.quick:
    shrink(recipe)
  recipe.check()
  folder = pathlib.Path(recipe.folder)
  folders.claim(folder, recipe)
  tokenizer = load_tokenizer(recipe, folder)
  streams = data.token_streams(tokenizer, folder, recipe.every, recipe.packages)
  print({k: len(v) for k, v in streams.items()}, 'tokens')
  target, params = train_target(recipe, folder, tokenizer, streams)
  models, drafts = {}, {}
  if recipe.drafts is not None:
    models, drafts = make_drafts(
      recipe, recipe.drafts, folder, tokenizer, target, params, streams
    )
  models['target'], drafts['target'] = target, params
  export(recipe, folder, tokenizer, streams, models, drafts)
  made = {'folder': str(folder / 'pair'), 'target': str(folder / 'pair/target')}
  if first := next((name for name in models if name != 'target'), ''):
    made['draft'] = str(folder / 'pair' / first)
  return made


def export(recipe, folder, tokenizer, streams, models, params):
  """Writes the finished models and prints what they are worth."""
  windows = {
    d: data.held_out_windows(tokenizer, 2 * 256, 16, d) for d in DOMAINS
  }
  for name, model in models.items():
    path = folder / 'pair' / name
    if not path.exists():
      checkpoints.save(path, model, params[name], tokenizer)
    # What is shipped is judged: 16-bit weights, read again.
    model, stored = checkpoints.load(path)
    size = sum(x.size for x in jax.tree.leaves(stored))
    bits = bits_per_byte(model, stored, windows)
    line = '  '.join(f'{k} {v:.3f}' for k, v in bits.items())
    print(f'{name}  {size} parameters  bits per byte  {line}')
  for order, successors in (('unigram', 0), ('bigram', counts.SUCCESSORS)):
    path = folder / 'pair' / order
    if not path.exists():
      counts.save(
        path, counts.count(streams.values(), recipe.vocab_size, successors)
      )
