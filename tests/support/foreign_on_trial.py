"""Samplers as others might write them: one right, the others wrong or unfit."""

import numpy as np

from specjax.bench.config import Certificate
from specjax.certify import cells, foreign_trial
from specjax.certify.foreign import Foreign
from specjax.certify.foreign import processed as _target

SMALL = (1, 2), (1, 3)


def judge(monkeypatch, function, settings=('T 1',), shapes=SMALL[:1], steps=64):
  """Judges a function at some settings and shapes; returns rows, verdict."""
  chosen = {name: foreign_trial.SETTINGS[name] for name in settings}
  monkeypatch.setattr(foreign_trial, '_QUICK', shapes)
  rows: list[dict] = []
  x = Certificate(quick=True, rows=steps, rounds=16)
  with monkeypatch.context() as patch:
    patch.setattr(foreign_trial, 'SETTINGS', chosen)
    sampler = Foreign('it', function)
    return rows, foreign_trial.try_foreign(x, sampler, rows.append)


def _draw(probs, coin):
  """The token [B] of coins [B]."""
  ends = probs.cumsum(1) / probs.sum(1, keepdims=True)
  return (coin[:, None] >= ends[:, :-1]).sum(1)


def make(
  target=_target, ratio=np.divide, rest=np.subtract, bonus=None, coin=-1
):
  """A sampler, in which each part can be another."""

  def sampler(draft, q, logits, values, uniforms):
    rows, gamma = draft.shape
    p = target(logits, values)
    q = np.eye(p.shape[2])[draft] if q is None else q.astype(np.float64)
    here = np.arange(rows)[:, None], np.arange(gamma), draft
    passes = uniforms[:, :gamma] < ratio(p[here], q[here])
    kept = np.cumprod(passes, 1).sum(1)
    every = np.arange(rows)
    last = p[every, kept]
    above = q[every, np.minimum(kept, gamma - 1)]
    left = np.maximum(rest(last, above), 0)
    left = np.where(left.sum(1, keepdims=True) > 0, left, last)
    end = last if bonus is None else bonus(last, above)
    whole = (kept == gamma)[:, None]
    tokens = np.pad(draft, ((0, 0), (0, 1)), constant_values=-1)
    tokens[np.arange(gamma + 1) >= kept[:, None]] = -1
    coins = uniforms[every, kept if coin is None else coin]
    tokens[every, kept] = _draw(np.where(whole, end, left), coins)
    return tokens

  return sampler


right = make()


def raced(draft, q, logits, values, uniforms):
  """The right one, that draws what is left by a race of exponentials."""
  gamma, vocab = draft.shape[1], logits.shape[2]
  race = cells.exponentials(uniforms[:, gamma:])
  p = _target(logits, values)
  tokens = right(draft, q, logits, values, uniforms)
  at = (tokens >= 0).sum(1) - 1
  every = np.arange(len(p))
  last = p[every, at]
  if q is None:
    q = np.eye(vocab)[draft]
  left = np.maximum(last - q[every, np.minimum(at, gamma - 1)], 0)
  left = np.where((at == gamma)[:, None], last, left)
  tokens[every, at] = np.argmax(left / race, 1)
  return tokens


raced.coins = lambda gamma, vocab: (gamma, 1)


def with_own_coins(sampler):
  """A sampler that draws by coins other than those that it is given."""

  def drawing(draft, q, logits, values, uniforms):
    coins = np.random.default_rng().random((len(draft), draft.shape[1] + 1))
    return sampler(draft, q, logits, values, coins)

  return drawing


draws_its_own = with_own_coins(right)


def _hot(logits, values):
  top = values['temperature'].max()
  return _target(logits, values | {'temperature': 0 * values['top_p'] + top})


def _negative(logits, values):
  """A greedy row whose temperature is -1, as a flag, among sampled rows."""
  cold = values['temperature'] == 0
  if cold.all():
    return _target(logits, values)
  turned = np.where(cold[:, None, None], -logits, logits)
  return _target(
    turned, values | {'temperature': np.where(cold, 1, values['temperature'])}
  )


def _cut_first(logits, values):
  """Top-p at temperature 1, and the temperature after it."""
  one = values | {'temperature': np.ones_like(values['temperature'])}
  cut = np.where(_target(logits, one) > 0, logits, -np.inf)
  off = values | {
    'top_k': 0 * values['top_k'],
    'top_p': 0 * values['top_p'] + 1,
  }
  return _target(cut, off)


def _without_top_p(logits, values):
  return _target(logits, values | {'top_p': np.ones_like(values['top_p'])})


WRONG = {
  'rest is p': make(rest=lambda p, q: p),
  'q over p': make(ratio=lambda p, q: q / np.maximum(p, 1e-9)),
  'a tenth too eager': make(ratio=lambda p, q: 1.1 * p / q),
  'all accepted': make(ratio=lambda p, q: np.ones_like(p)),
  'greedy bonus': make(bonus=lambda p, q: p == p.max(1, keepdims=True)),
  'bonus of the draft': make(bonus=lambda p, q: q),
  'the coin that rejects draws': make(coin=0),
  'one temperature': make(_hot),
  'negative temperature': make(_negative),
  'temperature after top-p': make(_cut_first),
  'top-p on one side': make(_without_top_p),
}


eager = WRONG['a tenth too eager']


# Bad input.
def mutates(draft, q, logits, values, uniforms):
  logits /= 2
  return right(draft, q, logits, values, uniforms)


def too_many(*arguments):
  return [[0] * (arguments[0].shape[1] + 2)] * len(arguments[0])


def none_at_all(*arguments):
  return [[]] * len(arguments[0])


def fewer_rows(*arguments):
  return right(*arguments)[:-1]


def beyond(draft, q, logits, values, uniforms):
  return right(draft, q, logits, values, uniforms) + logits.shape[2]


def probabilities(draft, q, logits, values, uniforms):
  return logits[:, 0]


def with_hole(draft, q, logits, values, uniforms):
  tokens = right(draft, q, logits, values, uniforms)
  tokens[:, 0] = -1
  tokens[:, 1] = 0
  return tokens


def raises(*arguments):
  raise RuntimeError('no such device')


def beside(draft, q, logits, values, uniforms):
  """The first row's coins are everyone's."""
  return right(draft, q, logits, values, uniforms[:1].repeat(len(draft), 0))


no_function = 'a text'
