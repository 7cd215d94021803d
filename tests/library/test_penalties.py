"""The stages before the temperature, one by one and in the loop.

They look at the text, so a drafted token's ancestors must be part of it. What
they give is compared with transformers and with a transcription; what the loop
makes of it with the exact distribution of plain sampling.
"""

import collections
import functools
import json

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, trees, verify
from specjax.drafters import lm
from specjax.loop import generate
from specjax.models import table
from specjax.requests import request_sampling
from specjax.stats import fit_tests
from specjax.types import Params, Spec
from tests.support import models, papers_in_numpy, processors

NEUTRAL = {
  name: value
  for name, value in request_sampling.NEUTRAL.items()
  if name not in ('temperature', 'constraint')
}
WARPS = ('top_k', 'top_p', 'min_p')


def make(temperature, settings, vocab, eos) -> sampling.Sampling:
  """Values of rows, every stage present; a setting names those that act."""
  rows = [NEUTRAL | setting for setting in settings]
  stages = {name: [row[name] for row in rows] for name in NEUTRAL}
  return sampling.make(
    len(rows), temperature, vocab_size=vocab, eos=eos, **stages
  )


def recall(values, prompts, new, vocab):
  """The history of rows after their new tokens."""
  batch = len(prompts)
  tokens, added = np.zeros((2, batch, 16), np.int32)
  for i in range(batch):
    tokens[i, : len(prompts[i])] = prompts[i]
    added[i, : len(new[i])] = new[i]
  length, kept = (np.array([len(x) for x in rows]) for rows in (prompts, new))
  return _recall(values, tokens, length, added, kept, vocab)


remember = jax.jit(sampling.remember)


@functools.partial(jax.jit, static_argnames='vocab')
def _recall(values, tokens, length, added, kept, vocab):
  history = sampling.history(values, tokens, length, vocab)
  return sampling.remember(history, values, added, kept)


def fill(rows, depth):
  """Tokens of rows as `above`: -1 where there is none."""
  return np.array([[*row, *[-1] * (depth - len(row))] for row in rows])


def distributions_of(cases, drafted):
  """Our probabilities and logits; so many last tokens are drafted ones."""
  stages = [dict(case['stages']) for case in cases]
  for stage in stages:
    bias = stage.get('logit_bias', {})
    stage['logit_bias'] = {int(k): v for k, v in bias.items()}
  values = make(
    [case['temperature'] for case in cases],
    stages,
    processors.VOCAB,
    processors.ENDS,
  )
  new = [case['new'] for case in cases]
  cut = [max(0, len(x) - n) for x, n in zip(new, drafted, strict=True)]
  history = recall(
    values,
    [case['prompt'] for case in cases],
    [x[:n] for x, n in zip(new, cut, strict=True)],
    processors.VOCAB,
  )
  above = fill([x[n:] for x, n in zip(new, cut, strict=True)], 8)
  logits = np.array([case['logits'] for case in cases])
  return jax.jit(jax.vmap(sampling.next_distribution))(
    logits, values, history, above
  )


def test_every_case_is_that_of_transformers(float64):
  cases, expected = zip(*processors.stored(), strict=True)
  drafted = np.arange(len(cases)) * 5 % 9
  probs, logits = distributions_of(cases, drafted)
  # A forbidden token is stored as null, which numpy reads as NaN.
  theirs = np.array([x['logits'] for x in expected], float)
  theirs[np.isnan(theirs)] = -np.inf
  np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-12)
  theirs = np.array([x['probs'] for x in expected])
  np.testing.assert_allclose(probs, theirs, rtol=0, atol=1e-12)


@pytest.mark.parity
def test_what_is_stored_is_what_transformers_says():
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  stored = processors.stored()
  made = processors.cases()
  assert json.loads(json.dumps(made)) == [case for case, _ in stored]
  for case, expected in stored:
    theirs = processors.by_transformers(case)
    assert theirs['logits'] == expected['logits']
    np.testing.assert_allclose(theirs['probs'], expected['probs'], atol=1e-12)


# Incremental is from scratch

VOCAB = 7
DEPTH = 4
ENDS = (5, 6)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)
EIGHTHS = st.integers(-16, 16).map(lambda x: x / 8)

STAGES = st.fixed_dictionaries(
  {
    'logit_bias': st.dictionaries(st.integers(0, VOCAB - 1), EIGHTHS),
    'repetition_penalty': st.sampled_from([0.25, 0.5, 1.0, 1.25, 4.0]),
    'presence_penalty': EIGHTHS,
    'frequency_penalty': EIGHTHS,
    'forbidden': st.sets(st.integers(0, VOCAB - 3)).map(tuple),
    'min_new_tokens': st.integers(0, 10),
  }
).filter(lambda x: len(x['forbidden']) < VOCAB - len(ENDS))


process = jax.jit(jax.vmap(sampling.process))


@hypothesis.settings(max_examples=150)
@hypothesis.given(
  logits=st.lists(st.floats(-8, 8), min_size=VOCAB, max_size=VOCAB),
  prompt=TOKENS.filter(bool),
  new=TOKENS,
  stages=STAGES,
)
def test_drafted_tokens_count_as_committed_ones_do(logits, prompt, new, stages):
  cuts = [max(0, len(new) - n) for n in range(DEPTH + 1)]
  rows = len(cuts)
  with jax.enable_x64(True):
    values = make(1.0, [stages] * rows, VOCAB, ENDS)
    history = recall(
      values, [prompt] * rows, [new[:cut] for cut in cuts], VOCAB
    )
    above = fill([new[cut:] for cut in cuts], DEPTH)
    ours = process(np.array([logits] * rows), values, history, above)
  theirs = papers_in_numpy.process(logits, prompt, new, ENDS, **stages)
  np.testing.assert_allclose(ours, [theirs] * rows, rtol=0, atol=1e-12)


def test_every_row_of_a_tree_sees_its_own_path(float64):
  parents, tokens = (0, 0, 1, 1, 3, 5, 2), (1, 2, 1, 3, 1, 1, 2)
  paths = [(), (1,), (2,), (1, 1), (1, 3), (1, 1, 1), (1, 1, 1, 1), (2, 2)]
  logits = np.random.default_rng(0).normal(size=(2, len(paths), VOCAB))
  stages = {
    'repetition_penalty': 1.5,
    'presence_penalty': 0.25,
    'frequency_penalty': 0.5,
    'min_new_tokens': 5,
  }
  prompts, new = [(0, 1), (4,)], [(2, 3), (4, 4, 1)]
  values = make(1.0, [stages, {}], VOCAB, ENDS)
  above = jax.jit(trees.above, static_argnames='depth')(
    np.array(parents), np.array(tokens), depth=DEPTH
  )
  scores = jax.jit(sampling.distributions)(
    logits, values, recall(values, prompts, new, VOCAB), np.stack([above] * 2)
  )
  for row, path in enumerate(paths):
    theirs = papers_in_numpy.process(
      logits[0, row], prompts[0], (*new[0], *path), ENDS, **stages
    )
    np.testing.assert_allclose(scores.logits[0, row], theirs, atol=1e-12)
    np.testing.assert_array_equal(scores.logits[1, row], logits[1, row])
    probs = papers_in_numpy.pipeline(theirs, 1.0)
    np.testing.assert_allclose(scores.probs[0, row], probs, atol=1e-12)


def test_only_kept_tokens_are_remembered():
  values = make(1.0, [{}, {}, {}], VOCAB, ENDS)
  history = recall(values, [(1,), (2, 2), (0, 3)], [(), (6,), (5, 5)], VOCAB)
  emitted = np.array([[1, 1, 2], [1, 1, 2], [5, 0, 0]])
  history = remember(history, values, emitted, np.array([3, 0, 1]))
  assert history.new.tolist() == [3, 1, 3]
  assert history.counts.tolist() == [
    [0, 2, 1, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 0, 3, 0],
  ]
  marked = [np.flatnonzero(row).tolist() for row in history.prompt]
  assert marked == [[1], [2], [0, 3]]


def test_history_keeps_only_what_a_stage_looks_at():
  for stages, kept in (
    ({'top_k': 3, 'forbidden': (1,), 'logit_bias': {2: 1.0}}, set()),
    ({'min_new_tokens': 1}, {'new'}),
    ({'presence_penalty': 1.0}, {'counts'}),
    ({'frequency_penalty': 1.0}, {'counts'}),
    ({'repetition_penalty': 1.1}, {'counts', 'prompt'}),
  ):
    values = sampling.make(2, vocab_size=VOCAB, eos=ENDS, **stages)
    history = recall(values, [(1,), (2, 2)], [(3,), (4, 4)], VOCAB)
    assert {k for k, x in history._asdict().items() if x is not None} == kept


def test_stages_that_do_not_exist_change_nothing(float64):
  logits = np.random.default_rng(1).normal(size=(1, VOCAB))
  above = np.array([[2, 2, -1, -1]])
  for name, value in (
    ('repetition_penalty', 1.7),
    ('presence_penalty', 0.5),
    ('frequency_penalty', 0.5),
    ('min_new_tokens', 9),
    ('forbidden', (3,)),
    ('logit_bias', {4: 2.0}),
  ):
    alone = sampling.make(1, 1.0, vocab_size=VOCAB, eos=ENDS, **{name: value})
    whole = make(1.0, [{name: value}], VOCAB, ENDS)
    ours, expected = (
      process(logits, x, recall(x, [(1, 2)], [(2, 3)], VOCAB), above)
      for x in (alone, whole)
    )
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-15)
    assert not np.array_equal(ours, logits)


def test_low_precision_logits_give_float32():
  values = make(1.0, [{'presence_penalty': 1.0}], VOCAB, ENDS)
  history = recall(values, [(1,)], [(2,)], VOCAB)
  logits = np.zeros((1, VOCAB), jnp.bfloat16)
  made = jax.eval_shape(process, logits, values, history, fill([()], 1))
  assert made.dtype == jnp.float32


# The loop: the distribution of whole texts

LAST = 4  # ends a text, among five tokens
NEW = 4
ROUNDS = 8
ROWS = 256  # of one setting in one round
TABLE = table.build(5)

# Prompt, temperature, stages.
SETTINGS = (
  ((1,), 1.0, {'repetition_penalty': 2.5}),
  ((2, 3), 0.7, {'repetition_penalty': 0.5, 'top_p': 0.75}),
  ((3, 0), 1.0, {'presence_penalty': 1.5}),
  ((0,), 1.0, {'frequency_penalty': 1.25}),
  ((3,), 1.5, {'frequency_penalty': -1.5, 'top_k': 3}),
  ((2,), 1.0, {'logit_bias': {0: 1.5, 3: -2.0}}),
  ((1, 1), 1.0, {'forbidden': (0, 2)}),
  ((0, 3), 1.0, {'min_new_tokens': 3, 'logit_bias': {LAST: 2.0}}),
  (
    (2, 0, 1),
    1.25,
    {
      'logit_bias': {1: 0.5}, 'repetition_penalty': 1.5,
      'presence_penalty': 0.5, 'frequency_penalty': 0.75, 'forbidden': (3,),
      'min_new_tokens': 2, 'min_p': 0.125,
    },
  ),
  (
    (3, 3),
    0.0,
    {'frequency_penalty': 2.0, 'presence_penalty': 1.0, 'min_new_tokens': 4},
  ),
)  # fmt: skip

SPEC = Spec(TABLE, lm.make(TABLE, 3), verify.token, (LAST,))
TREE = Spec(
  TABLE, lm.make_tree(TABLE, (0, 0, 1, 1, 3)), verify.recursive, (LAST,)
)
PARAMS = Params(models.weights(TABLE, 0), models.near(TABLE, 0))
LEVEL = 1e-4


def target_of(setting):
  """The exact distribution of the target's next token: text -> [V]."""
  prompt, temperature, stages = setting
  logits = np.asarray(models.weights(TABLE, 0), float)
  before = {k: v for k, v in stages.items() if k not in WARPS}
  warps = {k: v for k, v in stages.items() if k in WARPS}
  return lambda text: papers_in_numpy.pipeline(
    papers_in_numpy.process(
      logits[(*prompt, *text)[-1]], prompt, text, (LAST,), **before
    ),
    temperature,
    **warps,
  )


def begin(spec=SPEC):
  which = np.tile(np.arange(len(SETTINGS)), ROWS)
  prompts, temperature, stages = zip(*(SETTINGS[i] for i in which), strict=True)
  values = make(temperature, stages, 5, SPEC.eos)
  return which, models.run(spec, PARAMS, prompts, values, new_tokens=NEW)


def test_the_law_of_the_text_is_that_of_plain_sampling():
  which, start = begin()
  seen = [collections.Counter() for _ in SETTINGS]
  for turn in range(ROUNDS):
    key = generate.row_keys(1, turn * len(which) + np.arange(len(which)))
    state = models.copy(start)._replace(key=key)
    state = generate.generate(PARAMS, state, jnp.int32(NEW), spec=SPEC)
    for setting, text in zip(which, models.new_tokens(state), strict=True):
      seen[setting][text] += 1
  laws = (papers_in_numpy.sample(target_of(x), NEW, SPEC.eos) for x in SETTINGS)
  total = fit_tests.together(map(papers_in_numpy.fit, seen, laws))
  assert total.freedom > 300
  assert total.p_value > LEVEL


@pytest.mark.parametrize('spec', [SPEC, TREE], ids=['chain', 'tree'])
def test_a_target_accepts_itself(spec):
  """So the draft's penalties see what it has drafted, too.

  Of siblings the first is drawn from the law of the target.
  """
  which, state = begin(spec)
  params = PARAMS._replace(target=PARAMS.drafter)
  state = generate.generate(params, state, jnp.int32(NEW), spec=spec)
  tried, kept = np.zeros((2, len(SETTINGS)), int)
  np.add.at(tried, which, np.asarray(state.counts.tried.sum(1)))
  np.add.at(kept, which, np.asarray(state.counts.accepted.sum(1)))
  assert (tried > 150).all()
  assert (kept >= (1 - 1e-3) * tried).all()


def test_stages_may_be_iterators():
  made, known = (
    sampling.make(2, vocab_size=VOCAB, forbidden=f, logit_bias=b)
    for f, b in (
      (map(int, (1, 2)), zip((0, 3), (1.5, -2.0), strict=True)),
      ((1, 2), {0: 1.5, 3: -2.0}),
    )
  )
  assert known.forbidden.sum() == 4
  np.testing.assert_array_equal(made.forbidden, known.forbidden)
  np.testing.assert_array_equal(made.logit_bias, known.logit_bias)
  each = sampling.make(2, vocab_size=VOCAB, forbidden=iter([(1, 2), (1, 2)]))
  np.testing.assert_array_equal(each.forbidden, known.forbidden)
