"""Tiny models whose texts can be enumerated and whose loop can be run.

Target and draft are tables of logits after the last token, or transformers
small enough for all their texts to be scored. Rows with different settings of
the pipeline share one batch, so one compiled loop serves all settings.

A draft with another vocabulary lacks one token of the target, which it reads as
two, and has one that the target lacks:

  target   a  b  ab  end          draft   b  zz  end  a
  id       0  1   2    3          id      0   1    2  3
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
from specjax.certify import exact
from specjax.checkpoints import vocabularies
from specjax.checkpoints.vocabularies import reading
from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.loop import generate
from specjax.models import layouts, linear, low_bits, table, transformer
from specjax.models.config import GatedDelta
from specjax.models.transformer import Model
from specjax.requests.request_sampling import NEUTRAL
from specjax.types import Drafter, Params, Spec

# A constraint. The columns are tokens 0, 1, 2 and the end of a text. In state 2
# one token is allowed, and only in state 1 may a text end.
LANGUAGE = sampling.Automaton(
  'a language of the tiny models',
  np.arange(4, dtype=np.int16),
  np.array(
    [[1, 0, 2, -1], [-1, 0, 1, 3], [1, -1, -1, -1], [-1, -1, -1, 3]], np.int16
  ),
  (3,),
  '',
)

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
    'constraint': LANGUAGE,
  },
}


_score = jax.jit(transformer.score, static_argnums=0)
_distributions = jax.jit(
  jax.vmap(sampling.next_distribution, in_axes=(0, None, 0, 0))
)


@dataclasses.dataclass(frozen=True, eq=False)
class TinyModels:
  """A pair of models over one vocabulary, a prompt and settings."""

  target: Model
  draft: Model
  params: Params  # float32; tables also narrower
  prompt: tuple[int, ...] = (0, 1, 0)  # of every text
  eos: tuple[int, ...] = (3,)
  new: int = 4  # tokens of a text that does not end before
  reach: int = 3  # further tokens that a draft may look ahead
  settings: dict[str, dict[str, Any]] = dataclasses.field(
    default_factory=lambda: SETTINGS
  )
  stands: Any = None  # floats that the target's weights stand for, if others

  def cast(self, dtype: str) -> 'TinyModels':
    """Returns models whose tables have a type.

    Transformers stay as they are: how they round depends on the order of their
    sums, which is not enumerated.
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
    """Prompt and tokens of every text that is judged, padded."""
    count = int(self.texts.offset[self.new + self.reach])
    longest = len(self.prompt) + self.new + self.reach
    tokens = np.zeros((count, longest), np.int32)
    for number, row in enumerate(tokens):
      text = (*self.prompt, *self.texts.tokens(number))
      row[: len(text)] = text
    return tokens

  def logits(self, draft: bool, dtype=np.float64) -> np.ndarray:
    """Returns raw logits [texts, V], computed without a cache."""
    model = self.draft if draft else self.target
    params = self.params.drafter if draft else self.params.target
    if not draft and self.stands is not None:
      params = self.stands
    tokens = self._scored
    last = len(self.prompt) + self.texts.length(np.arange(len(tokens))) - 1
    if not isinstance(params, dict):
      return np.asarray(params, dtype)[tokens[np.arange(len(tokens)), last]]
    wide = jax.tree.map(lambda x: np.asarray(x, dtype), params)
    return np.asarray(_score(model, wide, tokens))[np.arange(len(tokens)), last]

  def values(self, rows: int) -> sampling.Sampling:
    """Returns values of `rows` rows of each setting, setting by setting."""
    merged = [NEUTRAL | setting for setting in self.settings.values()]
    columns = {
      name: [setting[name] for setting in merged for _ in range(rows)]
      for name in NEUTRAL
    }
    return sampling.make(
      len(merged) * rows, **columns, eos=self.eos, vocab_size=self.vocab
    )

  def history(self, numbers) -> sampling.History:
    """Returns the histories of texts [M]."""
    new = self.texts.length(numbers)
    inside = np.arange(self.new + self.reach) < new[:, None]
    tokens = self._scored[numbers, len(self.prompt) :]
    text = np.where(inside, tokens, self.vocab)
    counts = (text[:, :, None] == np.arange(self.vocab)).sum(1)
    prompt = np.zeros((len(numbers), self.vocab), bool)
    prompt[:, list(self.prompt)] = True
    follow = LANGUAGE.follow
    states = [follow(self.texts.tokens(number)) for number in numbers]
    made = sampling.History(new, counts, prompt, np.array(states))
    return jax.device_put(made)

  def process(self, logits, numbers) -> dict[str, exact.Distributions]:
    """Returns distributions after texts [M] with logits [M, V], by setting."""
    history = self.history(numbers)
    none = np.full((len(numbers), 0), -1)
    values = jax.device_get(self.values(1))
    made = {}
    for i, (name, setting) in enumerate(self.settings.items()):
      row = jax.tree.map(lambda x, i=i: x[i], values)
      probs, processed = _distributions(logits, row, history, none)
      temperature = (NEUTRAL | setting)['temperature']
      made[name] = exact.Distributions(
        np.asarray(probs), np.asarray(processed), temperature
      )
    return made

  def distributions(
    self, draft: bool = False
  ) -> dict[str, exact.Distributions]:
    """Returns those of the token after every text, in float64, by setting."""
    with jax.enable_x64(True):
      return self.process(self.logits(draft), np.arange(len(self._scored)))

  @functools.cached_property
  def p(self) -> dict[str, exact.Distributions]:
    return self.distributions()

  @functools.cached_property
  def q(self) -> dict[str, exact.Distributions]:
    return self.distributions(draft=True)

  def sequence(self, step: np.ndarray) -> np.ndarray:
    """Returns the chance [texts, calls] of finished texts, from one step's."""
    return exact.sequence(step, self.texts, self.contexts, self.new, self.eos)

  def speculative(self, rule, source, setting: str) -> np.ndarray:
    """Returns the distribution [texts, calls] of speculative decoding."""
    p, q = self.p[setting], self.q[setting]
    return self.sequence(
      exact.step(rule, source, self.texts, p, q, self.contexts)
    )

  @functools.cached_property
  def plain(self) -> dict[str, np.ndarray]:
    """The distribution [texts] of plain decoding, by setting."""
    return {
      name: self.sequence(exact.plain(self.texts, p, self.contexts)).sum(1)
      for name, p in self.p.items()
    }

  def sample(
    self, spec: Spec, rows: int, rounds: int, seed: int, parts=generate.PARTS
  ) -> dict[str, np.ndarray]:
    """Counts the texts and calls of the compiled loop.

    Args:
      spec: what runs.
      rows: rows of each setting in a batch. Fewer settings than `SETTINGS`
        have more rows each.
      rounds: number of batches.
      seed: seed of the keys.
      parts: what a step is made of.

    Returns:
      Counts [texts, calls] by setting.
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
    """Returns the number of each row's text, and its target calls."""
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
  """Copies a state that will be donated, in one program."""
  return jax.tree.map(jnp.copy, state)


def tokenizer() -> transformers_library.PreTrainedTokenizerFast:
  """Returns one with the tokens a, b, ab and an end of text."""
  words = {'a': 0, 'b': 1, 'ab': 2, 'end': 3}
  made = tokenizers.Tokenizer(BPE(words, [('a', 'b')]))
  made.pre_tokenizer = ByteLevel(add_prefix_space=False)
  return transformers_library.PreTrainedTokenizerFast(
    tokenizer_object=made, eos_token='end'
  )


def tables(
  vocab: int = 4, seed: int = 0, mix: float = 0.5, **options
) -> TinyModels:
  """Returns two tables of logits, of which the draft's is a mixture."""
  random = np.random.default_rng(seed)
  p, other = 1.3 * random.normal(size=(2, vocab, vocab))
  model = table.build(vocab)
  params = Params(
    jnp.asarray(p, jnp.float32),
    jnp.asarray((1 - mix) * p + mix * other, jnp.float32),
  )
  return TinyModels(model, model, params, **options)


def transformers(
  seed: int = 0, recurrent: GatedDelta | None = None, **options
) -> TinyModels:
  """Returns two transformers of width 8, whose caches matter."""
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
    transformer.build(
      transformer.TransformerConfig(num_layers=n, recurrent=recurrent, **sizes)
    )
    for n in (2, 1)
  )
  params = dict(jax.jit(target.init)(jax.random.key(seed)))
  params['unembedding'] = 2 * params['unembedding']
  part = {name: params[name] for name in params if name != 'layer1'}
  return TinyModels(target, draft, Params(params, part), **options)


def eight_bits(seed: int = 0) -> TinyModels:
  """Returns `transformers` with a target in eight bits, for the kernel.

  Its texts are enumerated with the floats that these bits stand for.
  """
  made = transformers(seed)
  few = linear.quantize(made.params.target, tied=False)
  stands = jax.tree.map(
    lambda w: low_bits.widen(w) if low_bits.is_low_bits(w) else w,
    few,
    is_leaf=low_bits.is_low_bits,
  )
  native = layouts.to_native(made.target, few)
  model, few = native or (made.target, few)
  params = made.params._replace(target=few)
  return dataclasses.replace(made, target=model, params=params, stands=stands)


# The draft with a vocabulary of its own

TARGET_TOKENS = Tokens(
  4, {0: b'a', 1: b'b', 2: b'ab'}, special={3: 'end'}, ends=(3,)
)
DRAFT_TOKENS = Tokens(
  4, {0: b'b', 1: b'zz', 3: b'a'}, special={2: '</s>'}, ends=(2,)
)
_ROWS = np.array([1, 2, 3, 0])  # of the draft's tokens in the target's


def spelled(tiny: TinyModels) -> reading.Spelled:
  """Returns weights of a draft that says about the same in its own tokens."""
  weights: Any = dict(tiny.params.drafter)
  weights['embedding'] = weights['embedding'][_ROWS]
  weights['unembedding'] = weights['unembedding'][:, _ROWS]
  made, _ = vocabularies.tables.build(TARGET_TOKENS, DRAFT_TOKENS)
  return reading.Spelled(weights, made)


def other_reading() -> reading.Reading:
  made, _ = vocabularies.tables.build(TARGET_TOKENS, DRAFT_TOKENS)
  return reading.other(reading.sizes_of(made))


def holding(drafter: Drafter, params: Any) -> Drafter:
  """Returns a drafter that has its parameters, whatever it is given."""

  def bind(function):
    return lambda given, *rest: function(given._replace(drafter=params), *rest)

  return drafter._replace(
    init=bind(drafter.init),
    propose=bind(drafter.propose),
    commit=bind(drafter.commit),
  )
