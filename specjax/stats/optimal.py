"""The most that an exact rule can accept of several drafts for one place.

A rule sees n drafted tokens and emits one token of the target's distribution p.
How often is it one of the drafted ones, at most? This is an optimal transport
with membership cost (Sun et al., arXiv:2310.15141): a flow from drafts to their
tokens. Its least cut is

  acceptance = min over sets H of tokens of  p(H) + 1 - P(all n drafts in H)

For one draft it is sum(min(p, q)). Some best H has the tokens of least p / q,
so V + 1 sets are enough (Hu et al., arXiv:2502.18779):

- Independent drafts are all in H with chance q(H)^n. Then p(H) + 1 - q(H)^n is
  concave in the sums p(H) and q(H), and so the least of its tangents. Under a
  tangent a token is in H or not by its own p / q.
- Where no draft repeats another, let H be the largest best set, i in H and j
  not. The chance that all drafts are in H has at least p(i) by i, and would get
  less than p(j) by j. In any order of drafts j can take the place of i, and i
  may still come later: so j would add q(j) / q(i) times what i adds, or more.
  Hence p(i) / q(i) < p(j) / q(j).

The bound is of one place. A rule that judges a tree of different siblings place
by place emits at most `theory.tree_tokens` of the differences between bounds of
1, 2, ... drafts, where these are the same everywhere and no sibling has a
larger subtree than an earlier one. Of one chain no rule emits more than block
verification (Sun et al., arXiv:2403.10444), if it emits a part of the chain and
one token more, and leaves later tokens to the target.
"""

import numpy as np

_STEP = 0.25  # of log t: sums of eight drafts are within 1e-10
_BEGIN = -14.0


def _shares(name: str, probs) -> np.ndarray:
  probs = np.asarray(probs, np.float64)
  if probs.ndim != 1 or not (probs >= 0).all() or not 0 < probs.sum() < np.inf:
    raise ValueError(f'{name} must be [V] chances of tokens, not all of them 0')
  return probs / probs.sum()


def leaves(q, n: int, replacement: bool):
  """Returns the chances [V+1] that drafts are not all of the first k tokens.

  Without replacement: each token rings after a time of its own, exponential
  with rate q, and the first n that ring are drawn. With a = exp(q t) - 1 the
  chance is r (1 + integral over t of exp(-t) (e_1 + ... + e_n-1)), where r is
  the mass behind the first k tokens and e_j the elementary symmetric
  polynomials of their a. The n - 1 likeliest tokens are kept apart, so that
  exp(-t) is not lost in them.

  Args:
    q: [V] masses of tokens in some order.
    n: drafts.
    replacement: whether a draft may repeat another.
  """
  outside = np.concatenate([np.cumsum(q[::-1])[::-1], [0.0]])
  if replacement or n == 1:
    return 1 - (1 - np.minimum(outside, 1)) ** n
  large = np.sort(np.argsort(q)[len(q) - n + 1 :])
  small = q.copy()
  small[large] = 0
  left = small.sum()
  end = np.log((40 + n * np.log(len(q) + 1)) / left)
  within = np.arange(len(q) + 1) > large[:, None]
  total = np.ones(len(q) + 1)
  for t in np.exp(np.arange(_BEGIN, end, _STEP)):
    grown = np.expm1(small * t)
    e = [np.full(len(q) + 1, np.exp(-left * t))]  # [n] of [V+1]
    for _ in range(n - 1):
      e.append(np.concatenate([[0.0], np.cumsum(grown * e[-1][:-1])]))
    for place, here in zip(large, within, strict=True):
      silent = np.exp(-q[place] * t)
      rings = (1 - silent) * here
      for j in range(n - 1, 0, -1):
        e[j] = silent * e[j] + rings * e[j - 1]
      e[0] = silent * e[0]
    total += _STEP * t * sum(e[1:])
  return outside * total


def acceptance(p, q, n: int, replacement: bool = True) -> float:
  """Returns the most that an exact rule can accept of n drafts for one place.

  Args:
    p: [V] the target's distribution.
    q: [V] the draft's.
    n: drafted tokens.
    replacement: whether they are independent. Otherwise each is drawn from
      what the earlier ones leave of q.

  Raises:
    ValueError: p or q is no distribution, or q has fewer than n tokens.
  """
  p, q = _shares('p', p), _shares('q', q)
  if p.shape != q.shape:
    raise ValueError(
      f'q has {len(q)} tokens and p {len(p)}: give one vocabulary'
    )
  if n < 1:
    raise ValueError(f'n must be at least 1, got {n}')
  if not replacement and np.count_nonzero(q) < n:
    raise ValueError(f'q has fewer than {n} tokens: lower n, or replace drafts')
  kept = np.argsort(q)
  kept = kept[q[kept] > 0]
  order = kept[np.argsort(p[kept] / q[kept])]
  inside = np.concatenate([[0.0], np.cumsum(p[order])])
  return float((inside + leaves(q[order], n, replacement)).min())


def acceptance_beside_hub(p, q) -> float:
  """Returns the bound for two drafts, of which one is the likeliest of q.

  SpecHub (Sun et al., arXiv:2411.05289) draws the hub a and another token x
  with chance r(x), r being q without a. So all drafts are in H with chance r(H)
  if a is in it, and never without a: the least cut has a, and every x whose
  p(x) is below r(x), or it is 1.

  Args:
    p: [V] the target's distribution.
    q: [V] the draft's.

  Raises:
    ValueError: p or q is no distribution, or q has one token only.
  """
  p, q = _shares('p', p), _shares('q', q)
  hub = q.argmax()
  others = _shares('q without its likeliest token', np.delete(q, hub))
  return float(min(1, p[hub] + np.minimum(np.delete(p, hub), others).sum()))
