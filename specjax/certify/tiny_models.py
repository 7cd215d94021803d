"""Tiny models whose texts can be enumerated and whose loop can be run.

Target and draft are tables of logits after the last token, or transformers
small enough for all their texts to be scored. Rows with different settings of
the pipeline share one batch, so one compiled loop serves all settings.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import transformers as transformers_library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from specjax import sampling
from specjax.certify import constrained, exact
from specjax.loop import generate
from specjax.models import table, transformer
from specjax.models.transformer import Model
from specjax.requests.request_sampling import NEUTRAL
from specjax.types import Params, Spec

SETTINGS: dict[str, dict[str, Any]] = {
  'greedy': {'temperature': 0.0},
  'T 1': {},
  'T 0.6, top-p 0.8': {'temperature': 0.6, 'top_p': 0.8},
  'T 1.5, top-k 2': {'temperature': 1.5, 'top_k': 2},
  'T 1.2, min-p 0.3': {'temperature': 1.2, 'min_p': 0.3},
  'penalties': {
    'repetition_penalty': 1.4,
    'presence_penalty': 0.6,
    'frequency_penalty': 0.4,
  },
  'greedy, penalties': {'temperature': 0.0, 'frequency_penalty': 1.5},
  'bias, forbidden, T 0.8': {
    'temperature': 0.8,
    'logit_bias': {0: 0.7, 2: -0.5},
    'forbidden': (1,),
  },
  'at least 3 tokens': {'min_new_tokens': 3},
  'constrained, T 1.2, top-k 2': {
    'temperature': 1.2,
    'top_k': 2,
    'constraint': constrained.LANGUAGE,
  },
}


_distributions = jax.jit(
  jax.vmap(sampling.next_distribution, in_axes=(0, None, 0, 0))
)


@dataclasses.dataclass(frozen=True, eq=False)
class TinyModels:
  """A pair of models, a prompt and settings.

  Attributes:
    target: and its draft, over the same vocabulary.
    params: of both; float32, tables also narrower.
    prompt: that every text continues.
    eos: tokens that end a text.
    new: tokens of a text that is not ended before.
    reach: further tokens that a draft may look ahead.
    settings: by name, each a part of the pipeline's values.
  """

  target: Model
  draft: Model
  params: Params
  prompt: tuple[int, ...] = (0, 1, 0)
  eos: tuple[int, ...] = (3,)
  new: int = 4
  reach: int = 3
  settings: dict[str, dict[str, Any]] = dataclasses.field(
    default_factory=lambda: SETTINGS
  )

  def cast(self, dtype: str) -> 'TinyModels':
    """The same with tables in a type; transformers stay as they are.

    How a transformer rounds hangs on the order of its sums, which is not
    enumerated.
    """
    if isinstance(self.params.target, dict):
      return self
    narrow = jax.tree.map(lambda x: x.astype(dtype), self.params)
    return dataclasses.replace(self, params=narrow)

  @property
  def vocab(self) -> int:
    return self.target.config.vocab_size

  @functools.cached_property
  def texts(self) -> exact.Texts:
    return exact.Texts(self.vocab, self.new + self.reach)

  @functools.cached_property
  def contexts(self) -> np.ndarray:
    return exact.unfinished(self.texts, self.new, self.eos)

  @functools.cached_property
  def _scored(self) -> np.ndarray:
    """Tokens of every text that is judged, behind the prompt and padded."""
    count = int(self.texts.offset[self.new + self.reach])
    longest = len(self.prompt) + self.new + self.reach
    tokens = np.zeros((count, longest), np.int32)
    for number, row in enumerate(tokens):
      text = (*self.prompt, *self.texts.tokens(number))
      row[: len(text)] = text
    return tokens

  def logits(self, draft: bool, dtype=np.float64) -> np.ndarray:
    """Raw logits [texts, V], in float64 and without a cache."""
    model = self.draft if draft else self.target
    params = self.params.drafter if draft else self.params.target
    tokens = self._scored
    last = len(self.prompt) + self.texts.length(np.arange(len(tokens))) - 1
    if not isinstance(params, dict):
      return np.asarray(params, dtype)[tokens[np.arange(len(tokens)), last]]
    wide = jax.tree.map(lambda x: np.asarray(x, dtype), params)
    scored = jax.jit(transformer.score, static_argnums=0)(model, wide, tokens)
    return np.asarray(scored)[np.arange(len(tokens)), last]

  def values(self, rows: int) -> sampling.Sampling:
    """Values of `rows` rows of each setting, one setting after the other."""
    merged = [NEUTRAL | setting for setting in self.settings.values()]
    columns = {
      name: [setting[name] for setting in merged for _ in range(rows)]
      for name in NEUTRAL
    }
    return sampling.make(
      len(merged) * rows, **columns, eos=self.eos, vocab_size=self.vocab
    )

  def process(self, logits, numbers) -> dict[str, exact.Distributions]:
    """Distributions of the next token from logits [M, V], by setting.

    Args:
      logits: raw; float64 where that is enabled.
      numbers: [M] of the texts.
    """
    new = self.texts.length(numbers)
    inside = np.arange(self.new + self.reach) < new[:, None]
    tokens = self._scored[numbers, len(self.prompt) :]
    text = np.where(inside, tokens, self.vocab)
    counts = (text[:, :, None] == np.arange(self.vocab)).sum(1)
    prompt = np.zeros((len(numbers), self.vocab), bool)
    prompt[:, list(self.prompt)] = True
    follow = constrained.LANGUAGE.follow
    states = [follow(self.texts.tokens(number)) for number in numbers]
    history = sampling.History(
      jnp.asarray(new),
      jnp.asarray(counts),
      jnp.asarray(prompt),
      jnp.asarray(states),
    )
    none = jnp.full((len(numbers), 0), -1)
    values = self.values(1)
    made = {}
    for i, (name, setting) in enumerate(self.settings.items()):
      row = jax.tree.map(lambda x, i=i: x[i], values)
      probs, processed = _distributions(jnp.asarray(logits), row, history, none)
      temperature = (NEUTRAL | setting)['temperature']
      made[name] = exact.Distributions(
        np.asarray(probs), np.asarray(processed), temperature
      )
    return made

  def distributions(
    self, draft: bool = False
  ) -> dict[str, exact.Distributions]:
    """Of the token after every text, by setting; float64 if enabled."""
    return self.process(self.logits(draft), np.arange(len(self._scored)))

  @functools.cached_property
  def p(self) -> dict[str, exact.Distributions]:
    return self.distributions()

  @functools.cached_property
  def q(self) -> dict[str, exact.Distributions]:
    return self.distributions(draft=True)

  def sequence(self, step: np.ndarray) -> np.ndarray:
    """Distribution [texts, calls] of finished texts, given that of a step."""
    return exact.sequence(step, self.texts, self.contexts, self.new, self.eos)

  def speculative(self, rule, source, setting: str) -> np.ndarray:
    """Exact distribution [texts, calls] of speculative decoding."""
    p, q = self.p[setting], self.q[setting]
    return self.sequence(
      exact.step(rule, source, self.texts, p, q, self.contexts)
    )

  @functools.cached_property
  def plain(self) -> dict[str, np.ndarray]:
    """Exact distribution [texts] of plain decoding, by setting."""
    return {
      name: self.sequence(exact.plain(self.texts, p, self.contexts)).sum(1)
      for name, p in self.p.items()
    }

  def sample(
    self, spec: Spec, rows: int, rounds: int, seed: int, parts=generate.PARTS
  ) -> dict[str, np.ndarray]:
    """Counts [texts, calls] of what the compiled loop does, by setting.

    Args:
      spec: what runs.
      rows: of a setting in a batch, if there are all of `SETTINGS`; where
        there are fewer, each has more.
      rounds: batches.
      seed: of the keys.
      parts: of the step.
    """
    rows = rows * len(SETTINGS) // len(self.settings)
    batch = rows * len(self.settings)
    begin = generate.start(
      self.params,
      [self.prompt] * batch,
      spec=spec,
      new_tokens=self.new,
      key=generate.row_keys(seed, range(batch)),
      values=self.values(rows),
    )
    shape = (len(self.settings), len(self.texts), self.new + 2)
    seen = np.zeros(shape, int)
    which = np.repeat(np.arange(len(self.settings)), rows)
    for turn in range(rounds):
      key = generate.row_keys(seed, turn * batch + np.arange(batch))
      state = generate.generate(
        self.params,
        _copy(begin)._replace(key=key),
        jnp.int32(2 * self.new),
        spec=spec,
        parts=parts,
      )
      number, calls = self._outcomes(state)
      np.add.at(seen, (which, number, np.minimum(calls, self.new + 1)), 1)
    return dict(zip(self.settings, seen, strict=True))

  def _outcomes(self, state):
    """Number of the text of each row, and its target calls."""
    tokens, start, length, calls = jax.device_get(
      (state.tokens, state.start, state.length, state.counts.target_calls)
    )
    number = np.zeros(len(tokens), int)
    for i in range(self.new):
      token = tokens[np.arange(len(tokens)), start + i]
      longer = self.texts.after(number, token)
      number = np.where(i < length - start, longer, number)
    return number, calls


@jax.jit
def _copy(state):
  """Of a state that is used up, made at once and not array by array."""
  return jax.tree.map(jnp.copy, state)


def tokenizer() -> transformers_library.PreTrainedTokenizerFast:
  """One for the tokens of the tiny models: a, b, ab and an end of text."""
  words = {'a': 0, 'b': 1, 'ab': 2, 'end': 3}
  made = tokenizers.Tokenizer(BPE(words, [('a', 'b')]))
  made.pre_tokenizer = ByteLevel(add_prefix_space=False)
  return transformers_library.PreTrainedTokenizerFast(
    tokenizer_object=made, eos_token='end'
  )


def tables(
  vocab: int = 4, seed: int = 0, mix: float = 0.5, **options
) -> TinyModels:
  """Two tables of logits; the draft's is part the target's, part its own."""
  random = np.random.default_rng(seed)
  p, other = 1.3 * random.normal(size=(2, vocab, vocab))
  model = table.build(vocab)
  params = Params(
    jnp.asarray(p, jnp.float32),
    jnp.asarray((1 - mix) * p + mix * other, jnp.float32),
  )
  return TinyModels(model, model, params, **options)


def transformers(seed: int = 0, **options) -> TinyModels:
  """Two transformers of width 8 whose caches matter."""
  sizes = dict(
    vocab_size=4,
    width=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_width=16,
    max_positions=64,
  )
  target, draft = (
    transformer.build(transformer.TransformerConfig(num_layers=n, **sizes))
    for n in (2, 1)
  )
  params = dict(target.init(jax.random.key(seed)))
  params['unembedding'] = 2 * params['unembedding']
  part = {name: params[name] for name in params if name != 'layer1'}
  return TinyModels(target, draft, Params(params, part), **options)
