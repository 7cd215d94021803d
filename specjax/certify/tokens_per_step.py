"""Tokens per step, exactly: published toy values and what must hold."""

import numpy as np

from specjax import verify
from specjax.certify import exact


def _after_texts(probs, temperature=1.0) -> exact.Distributions:
  with np.errstate(divide='ignore'):
    return exact.Distributions(probs, np.log(probs), temperature)


def _random(random, texts: exact.Texts, greedy: bool) -> exact.Distributions:
  probs = random.dirichlet(np.full(texts.vocab, 0.7), len(texts))
  if greedy:
    probs = np.eye(texts.vocab)[probs.argmax(1)]
  return _after_texts(probs, float(not greedy))


def published() -> list[dict]:
  """Toy examples of the papers, in tokens accepted by a step."""
  two = exact.Texts(2, 3)
  p, q, certain, even = (
    exact.constant(probs, two)
    for probs in ([1 / 3, 2 / 3], [2 / 3, 1 / 3], [1, 0], [0.5, 0.5])
  )
  sun = 'Sun et al., arXiv:2403.10444, gamma 2'
  chen = 'Chen et al., arXiv:2402.12374, 2 children'
  pair = exact.tree((0, 0), True)
  cases = (
    ('token', sun, verify.token, exact.tree((0, 1)), p, q, 10 / 9),
    ('block', sun, verify.block, exact.tree((0, 1)), p, q, 11 / 9),
    ('with replacement', chen, verify.recursive, pair, certain, even, 0.75),
    (
      'without replacement',
      chen,
      verify.recursive,
      exact.tree((0, 0)),
      certain,
      even,
      1.0,
    ),
  )
  return [
    {
      'rule': name,
      'source': source,
      'accepted': exact.efficiency(rule, drafts, two, p, q) - 1,
      'published': value,
    }
    for name, source, rule, drafts, p, q, value in cases
  ]


def block_against_token(pairs: int, depth: int) -> list[dict]:
  """Least and mean of block's tau minus token's, over random p and q."""
  rows = []
  for greedy in (False, True):
    random = np.random.default_rng(0)
    for gamma in range(1, depth + 1):
      texts = exact.Texts(3, gamma + 1)
      drafts = exact.tree(tuple(range(gamma)))
      gains = []
      for _ in range(pairs):
        p, q = (_random(random, texts, greedy) for _ in range(2))
        token, block = (
          exact.efficiency(rule, drafts, texts, p, q)
          for rule in (verify.token, verify.block)
        )
        gains.append(block - token)
      rows.append(
        {
          'temperature': float(not greedy),
          'gamma': gamma,
          'pairs': pairs,
          'least': min(gains),
          'mean': float(np.mean(gains)),
        }
      )
  return rows
