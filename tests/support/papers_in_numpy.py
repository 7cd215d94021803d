"""The papers in numpy, and the statistics that compare them with the engine.

No JAX, no cache, no batch: a model is a function from a text (a tuple) to the
probabilities [V] of its next token, and everything is enumerated. So it is
slow, and short enough to be checked by eye.
"""

import heapq
import itertools

import numpy as np

from specjax.stats import fit_tests


def normalize(weights):
  return weights / weights.sum()


def process(
  logits,
  prompt=(),
  new=(),
  eos=(),
  *,
  logit_bias=None,
  repetition_penalty=1.0,
  presence_penalty=0.0,
  frequency_penalty=0.0,
  forbidden=(),
  min_new_tokens=0,
):
  """Logits [V] after the stages before the temperature.

  Repetition as in Hugging Face `generate`; presence and frequency as the
  service that introduced them documents it.
  """
  logits = np.array(logits, np.float64)
  for token, amount in (logit_bias or {}).items():
    logits[token] += amount
  for token in {*prompt, *new}:
    if logits[token] < 0:
      logits[token] *= repetition_penalty
    else:
      logits[token] /= repetition_penalty
  for token in set(new):
    logits[token] -= presence_penalty + frequency_penalty * new.count(token)
  logits[list(forbidden)] = -np.inf
  if len(new) < min_new_tokens:
    logits[list(eos)] = -np.inf
  return logits


def pipeline(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
  """The distribution [V] of processed logits, in Hugging Face's order."""
  logits = np.asarray(logits, np.float64)
  if temperature == 0:
    return np.eye(len(logits))[np.argmax(logits)]
  probs = normalize(np.exp((logits - logits.max()) / temperature))
  if top_k:
    smallest = np.sort(probs)[::-1][min(top_k, len(probs)) - 1]
    probs = normalize(np.where(probs >= smallest, probs, 0))
  if top_p < 1:
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    kept = np.zeros(len(probs), bool)
    kept[order[before < top_p]] = True
    probs = normalize(np.where(kept, probs, 0))
  return normalize(np.where(probs >= min_p * probs.max(), probs, 0))


def extend(texts, model, count, eos=()):
  """Plain sampling on from texts (text -> probability) to `count` tokens.

  A text that one of `eos` ends stays as it is; longer texts are cut.
  """
  done = {}
  stack = list(texts.items())
  while stack:
    text, weight = stack.pop()
    text = text[:count]
    ends = [i + 1 for i, token in enumerate(text) if token in eos]
    if ends or len(text) == count:
      text = text[: min(ends, default=count)]
      done[text] = done.get(text, 0) + weight
      continue
    after = model(text)
    stack += [((*text, x), weight * after[x]) for x in np.flatnonzero(after)]
  return done


def sample(model, count, eos=()):
  """Exact distribution of the first `count` tokens of plain sampling."""
  return extend({(): 1.0}, model, count, eos)


def leviathan(p, q, more, boost=1.0):
  """One step of speculative decoding, enumerated.

  Algorithm 1 of Leviathan et al., arXiv:2211.17192. `more` says of a drafted
  text whether another token is drafted; `boost` of p / q plants an error.

  Returns:
    Probability of everything the step may emit: the accepted tokens and one
    more, so the length of the text tells how many were accepted.
  """
  chances = {}

  def end(text, weights):
    for x in np.flatnonzero(weights):
      chances[*text, x] = chances.get((*text, x), 0) + weights[x]

  def draft(text, weight):
    if not more(text):
      end(text, weight * p(text))
      return
    kept = np.minimum(boost * p(text), q(text))
    rejected = 1 - kept.sum()
    rest = np.maximum(p(text) - q(text), 0)
    if rest.sum():
      end(text, weight * rejected * normalize(rest))
    for x in np.flatnonzero(kept):
      draft((*text, x), weight * kept[x])

  draft((), 1.0)
  return chances


def sun(p, q, depth):
  """One step of block verification, enumerated.

  Algorithm 2 of Sun et al., arXiv:2403.10444: the longest prefix whose own
  coin passes is accepted.
  """
  chances = {}
  for text in itertools.product(range(len(p(()))), repeat=depth):
    drawn, weights, passes = 1.0, [1.0], [1.0]
    for i, token in enumerate(text):
      before, chance = text[:i], q(text[:i])[token]
      drawn *= chance
      ratio = p(before)[token] / chance if chance else 0
      weights.append(min(weights[-1] * ratio, 1))
    if not drawn:
      continue
    for i in range(1, depth + 1):
      left = np.maximum(weights[i] * p(text[:i]) - q(text[:i]), 0).sum()
      lost = left + 1 - weights[i]
      passes.append(left / lost if lost else 1.0)
    passes[depth] = weights[depth]
    later_fail = 1.0
    for i in range(depth, -1, -1):
      stays = drawn * passes[i] * later_fail
      later_fail *= 1 - passes[i]
      if not stays:
        continue
      rest = p(text)
      if i < depth:
        rest = np.maximum(weights[i] * p(text[:i]) - q(text[:i]), 0)
      for x, weight in enumerate(normalize(rest)):
        emitted = (*text[:i], x)
        chances[emitted] = chances.get(emitted, 0) + stays * weight
  return chances


def siblings(p, q, count, replacement):
  """Chance [V] that a step accepts each token as one of `count` siblings.

  With replacement Miao et al., arXiv:2305.09781, Algorithm 2; without Chen et
  al., arXiv:2402.12374, Algorithm 1.
  """
  accepted = np.zeros(len(p))

  def judge(weight, left, probs, drawn):
    if len(drawn) == count or not weight:
      return
    for x in np.flatnonzero(probs):
      keep = min(1, left[x] / probs[x])
      accepted[x] += weight * probs[x] * keep
      rest = np.maximum(left - probs, 0)
      if not rest.sum():
        continue
      after = probs.copy()
      if not replacement:
        after[[*drawn, x]] = 0
        if not after.sum():
          after = np.ones(len(p))
          after[[*drawn, x]] = 0
        after = normalize(after)
      judge(weight * probs[x] * (1 - keep), normalize(rest), after, (*drawn, x))

  judge(1.0, np.asarray(p), np.asarray(q), ())
  return accepted


def k_seq(p, q, count):
  """Chance that one of `count` independent draws is accepted.

  Sun et al., arXiv:2310.15141: all are judged by min(1, p / (rho q)), where
  rho solves 1 - (1 - beta)^count = rho beta and beta = sum(min(p / rho, q)).
  """
  low, high = 1.0, float(count)
  for _ in range(60):
    rho = (low + high) / 2
    beta = np.minimum(p / rho, q).sum()
    over = 1 - (1 - beta) ** count > rho * beta
    low, high = (rho, high) if over else (low, rho)
  return 1 - (1 - np.minimum(p / high, q).sum()) ** count


def eagle_2(logits, depth, beam, nodes):
  """Paths of the tree of Li et al., arXiv:2406.16858: the best of every level
  are expanded, and of all nodes seen the best are kept.

  `logits` gives those [V] of the draft after a path; `beam` nodes are expanded
  at every level, and as many children of each are looked at.
  """
  worth, level = {(): 0.0}, [()]
  for _ in range(depth):
    below = {}
    for path in level:
      with np.errstate(divide='ignore'):
        sure = np.log(pipeline(logits(path), 1.0))
      for token in np.argsort(-sure, kind='stable')[:beam]:
        below[(*path, int(token))] = worth[path] + max(sure[token], -1e4)
    worth |= below
    level = sorted(below, key=lambda path: -below[path])[:beam]
  del worth[()]
  return sorted(worth, key=lambda path: -worth[path])[:nodes]


def best_first(logits, nodes):
  """Paths of the tree of Ringel and Romano, arXiv:2604.12989, of laws by place.

  `logits` [K, V] are those of every place.
  """
  sure = [np.log(pipeline(place, 1.0)) for place in logits]
  heap = [(-x, (token,)) for token, x in enumerate(sure[0])]
  heapq.heapify(heap)
  kept = []
  while len(kept) < nodes:
    worth, path = heapq.heappop(heap)
    kept.append(path)
    if len(path) < len(sure):
      for token, x in enumerate(sure[len(path)]):
        heapq.heappush(heap, (worth - x, (*path, token)))
  return kept


def paths(draft, row):
  """The texts from the root to every row of one draft, all of which exists."""
  found = [()]
  for token, parent in zip(draft.tokens[row], draft.parents[row], strict=True):
    found.append((*found[parent], int(token)))
  return found


def difference(a, b):
  """Largest difference of two distributions of texts."""
  return max(abs(a.get(x, 0) - b.get(x, 0)) for x in {*a, *b})


def outcomes(*tables):
  """Chances or counts, which are dicts, as arrays over the same outcomes."""
  every = list(dict.fromkeys(x for table in tables for x in table))
  return [np.array([table.get(x, 0) for x in every]) for table in tables]


def fit(counts, chances):
  """Tests counts of outcomes against their probabilities; both are dicts."""
  return fit_tests.fit(*outcomes(counts, chances))


def power(samples, pairs, level):
  """Chance that `fit` at a level sees that samples are of another model.

  Each pair has the distribution to be tested, and the one of the samples.
  """
  return fit_tests.power(samples, [outcomes(*pair) for pair in pairs], level)
