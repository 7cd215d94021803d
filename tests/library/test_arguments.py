"""Wrong use gets one sentence: what is wrong, and what to do instead."""

import dataclasses
import math
import re

import numpy as np
import pytest

import specjax
from specjax import arguments, drafters, sampling, trees, verify
from specjax.drafters.shapes import policies, shape
from specjax.loop import generate
from specjax.loop.token_records import Recording
from specjax.models import table, variants
from specjax.models.config import Encoder, Experts, Relative
from specjax.models.reduced_vocab_head import places
from specjax.stats import metrics, theory
from specjax.types import LoadedDrafter, Params, Spec, Target
from tests.support import models

SPEC = Spec(models.TARGET, drafters.plain.make(), verify.token)
PARAMS = Params(models.weights(models.TARGET, 0), None)


def start(**changes):
  arguments = {
    'params': PARAMS,
    'prompts': [[1, 2]],
    'spec': SPEC,
    'new_tokens': 3,
    'key': generate.row_keys(0, range(1)),
    'values': sampling.make(1, 0.0),
  }
  arguments |= changes
  params, prompts = arguments.pop('params'), arguments.pop('prompts')
  return generate.start(params, prompts, **arguments)


def spec(**changes):
  return start(spec=dataclasses.replace(SPEC, **changes))


def go(steps, **changes):
  changed = dataclasses.replace(SPEC, **changes)
  return generate.generate(PARAMS, start(), steps, spec=changed)


def make(batch=2, **stages):
  """Values for a target of seven tokens, of which two end a text."""
  return sampling.make(batch, **{'vocab_size': 7, 'eos': (5, 6)} | stages)


def loaded(made, **options):
  """A cascade with the target in the middle."""
  host = Target(models.TARGET, models.target_weights())
  return drafters.cascade.load(host, inner=lambda target: made, **options)


def encoder_decoder():
  config = dataclasses.replace(
    models.TARGET.config,
    rope_theta=None,
    relative=Relative(8, 16),
    encoder=Encoder(1),
  )
  return Target(models.TARGET._replace(config=config))


# A call, and words of its error, where ... stands for other words.
CALLS = r"""
start(prompts='abc') => prompts must be lists of token ids
start(key=0) => key must be one random key a row, such as ... got
generate.row_keys(2**32, [0]) => and below 4294967296, got
generate.row_keys(0, 3) => indices must be one whole number a row, from 0 on
generate.row_keys(0, [[0]]) => indices must be one whole number a row
generate.row_keys(0, [0.5]) => indices must be one whole number a row
generate.row_keys(0, [-1]) => indices must be one whole number a row
start(values=0.7) => values must be ... sampling.make
start(params={}) => params must be ... Params ... got dict
start(spec='x') => spec must be ... got str 'x'
spec(rule='token') => rule must be ... verify ... got str 'token'
spec(rule=verify.lenience) => (call it first, with its n
spec(eos=[3]) => spec.eos must be a tuple of token ids, got list
spec(target=HOST) => spec.target must be a model, such as
spec(drafter=lm) => spec.drafter must be a specjax.Drafter
spec(drafter=LoadedDrafter(TARGET, plain.make)) => spec.drafter has no draft
generate.generate(PARAMS, 1, 1, spec=SPEC) => state must be what
go(1, drafter=ngram.make(2)) => state has a draft length of 0, but spec.drafter
start(new_tokens=2**31) => new_tokens must be ... and below 2147483648
start(new_tokens=-1) => new_tokens must be whole numbers of ... got int -1
go(2**31) => steps must be ... below 2147483648
start(new_tokens=[2**63]) => new_tokens must be ... and below 2147483648
start(new_tokens=2**31 - 1) => prompt 0 and its new tokens make 2147483649
go(generate.stop_when(-2, 1)) => steps must be a whole number of at least 0
specjax.load('') => path must be a directory or ... got str ''
lm.load(None, '') => target must be what specjax.load returns
counts.load(None, 'x') => target must be what specjax.load returns
early_exit.load(None, layers=1) => target must be what specjax.load returns
cascade.load(None, inner=len) => target must be what specjax.load returns
medusa.load(HOST, 3) => path must be the directory of a trained
counts.load(HOST, '') => path must be the directory of tables
lm.load(HOST, '', widths='ab') => widths must be ... got str 'ab'
early_exit.load(HOST, layers=1).make('x') => depth must be a whole
ngram.load(HOST, longest='x') => longest must be a whole number
lm.load(HOST, PAIR('medusa')) => is a trained head, ...: load
eagle.load(HOST, PAIR('draft-64')) => draft-64 holds no eagle head: load

lm.make(DRAFT, 0) => depth must be a whole number of at least 1
counts.make(0) => depth must be a whole number of at least 1
forced.make(0) => depth must be a whole number of at least 1
ngram.make(0) => depth must be a whole number of at least 1
ngram.make(2, shortest=4) => shortest is 4, but longest is 3
ngram.make(2, places=0) => places must be a whole number of at least 1
ngram.make(2, longest=33) => longest is 33, but a corpus is sorted by 32
suffix.make(0) => depth must be a whole number of at least 1
suffix.load(HOST, factor=0) => factor must be a positive number, such as 1
suffix.load(HOST, factor=True) => factor must be a positive number, such as 1
suffix.load(HOST, candidates='x') => candidates must be a whole number
recycling.load(HOST, candidates=0) => candidates must be a whole
recycling.load(HOST, candidates=12) => candidates is 12, but the vocabulary
recycling.load(HOST, nodes=3).make(4) => nodes is 3, but a draft of depth 4
recycling.make(TARGET, 0) => depth must be a whole number of at least 1
recycling.make(TARGET, 1, 0) => candidates must be ... at least 1, got int 0

skip.load(HOST) => are empty, and the whole target saves nothing
skip.load(HOST, skip=(2,)) => skip is (2,), but the layers of the target are 0
skip.load(HOST, skip_mlp=(-1,)) => skip_mlp must be integers of
skip.load(HOST, skip=(0, 1)) => all 2 layers are left out; keep
skip.load(HOST, skip=(0,), depth=3) => 'depth' is no option of
skip.search(HOST, None, 4) => count is 4, ... choose fewer
skip.search(HOST, None, 0) => count must be a whole number of at least 1
skip.search(None, TEXTS, 1) => target must be what specjax.load returns
skip.search(FEWER, TEXTS, 3) => the target has 3 sub-layers: choose fewer
skip.load(FEWER, skip_attention=(0,)) => name only parts that the target does
skip.matches(HOST, TEXTS, (2,), ()) => but the layers of the target are 0 to 1
skip.matches(HOST, [1, 2], (0,), ()) => tokens must be texts of one length
skip.matches(HOST, [[1], [2, 3]], (0,), ()) => tokens must be texts of one len
skip.matches(HOST, [[0.5]], (0,), ()) => integers [B, T] from 0 to 10
skip.matches(HOST, [[11]], (0,), ()) => integers [B, T] from 0 to 10
skip.matches(HOST, [[-1]], (0,), ()) => integers [B, T] from 0 to 10
skip.matches(HOST, [[]], (0,), ()) => tokens must be texts of one length
skip.search(HOST, [1, 2], 1) => tokens must be texts of one length, integers

windowed.load(HOST, window=0) => window must be ... at least 1
windowed.load(HOST, sinks=512) => sinks must be ... at least 0 and below 512
windowed.load(HOST, layers=1) => 'layers' is no option
windowed.load(encoder_decoder()) => an encoder-decoder has none
early_exit.load(HOST, layers=1, sinks=4) => sinks is 4, but without a window
eagle.load(HOST, 'nowhere', window=9, sinks=512) => sinks must be ... below 512
lm.load(HOST, 'nowhere', window=9, sinks=512) => sinks must be ... below 512
mtp.load(HOST, window=9, sinks=512) => sinks must be ... below 512
medusa.load(HOST, 'nowhere', window=4) => 'window' is no option of this drafter
medusa.load(HOST, 'nowhere', vocabulary=4) => 'vocabulary' is no option of

cascade.make(TABLE, plain.make(), 2) => proposes nothing
cascade.make(TABLE, CHAIN._replace(taps=(1,)), 2) => reads layers (1,)
cascade.make(TABLE, CHAIN._replace(at_once=True), 2) => the masks of its next
cascade.make(TABLE, LEARNS, 2) => learns from its verdicts
cascade.make(TABLE, CHAIN, 2, verify.lenience(0.5)) => the inner rule is lossy
cascade.make(TABLE, TREE, 2, verify.token) => it judges chains,
cascade.load(Target(TABLE), '', inner=CHAIN) => must be a function of
loaded(LoadedDrafter(TABLE, lambda depth: CHAIN), path='', window=4)
  => inner must return a drafter of some length and its parameters
loaded((None, CHAIN), path='', window=4) => inner must return a drafter of some
loaded((CHAIN, None), path='') => path must be the directory of a language model
loaded((CHAIN, None), path='', window=-1) => window must be ... at least 0
loaded((CHAIN, None), path='', window=4, dtype='bfloat16')
  => without a path the weights are those of the target

early_exit.load(HOST, layers=3) => layer 3 is out of range
early_exit.load(HOST) => layer 0 is out of range
early_exit.load(HOST, layers=1.5) => layers must be a whole number
early_exit.trainable(TARGET, 1, 0) => rank must be a whole number of at least 1
eagle.trainable(TARGET, taps=(0, 2)) => layers that do not exist
eagle.trainable(TARGET, 2) => version must be 1 or 3
eagle.trainable(TARGET, 1, taps=(0,)) => reads one layer, the last (1); leave
eagle.trainable(TARGET, taps=(-1, 1)) => layers that do not exist
eagle.trainable(TARGET, taps=(1, 1)) => order of the layers, each once
eagle.trainable(TARGET, join='sum') => join must be linear or pair
eagle.trainable(TARGET, draft_vocab=4)
  => draft_vocab is 4: leave it out, and give the number of tokens as
eagle.trainable(TARGET, 1, vocabulary=4) => version 1, P-EAGLE and a head
eagle.trainable(TARGET, vocabulary=4, own_unembedding=False)
  => vocabulary is 4, but version 1, P-EAGLE and a head without
eagle.trainable(TARGET, vocabulary=4, mask_token=3)
  => vocabulary is 4, but version 1, P-EAGLE and a head without
eagle.trainable(TARGET, activation='x') => must be one of silu
eagle.trainable(TARGET, norms=('layer', 'x')) => norms has 'x'
eagle.trainable(TARGET, join='pair', norms=('layer',)) => norms has 'layer'
eagle.trainable(TARGET, norms=('taps', 'fused')) => taps and fused: choose one
eagle.trainable(TARGET, 1, norms=('fused',)) => which version 1 has not
eagle.trainable(TARGET, norms=('carried',)) => but not last
eagle.trainable(TARGET, 1, projects=False, width=16) => as wide as its target, 8
eagle.trainable(TARGET, 1, join='pair', width=16) => as wide as its target, 8
eagle.trainable(TARGET, start='draft') => start must be 'target' or empty,
eagle.trainable(TARGET, start='target', version=1) => is of version 3
eagle.trainable(TARGET, start='target', width=8, taps=(0,))
  => end taps with 1, got
eagle.trainable(TARGET, start='target') => choose a width of at most that,
lm.trainable(TARGET, gated=False, num_layers=1, mlp_width=8, **models.SMALL)
  => llama has no gated = False
medusa.trainable(TARGET, 0) => count must be a whole number of at least 1
dflash.trainable(TARGET, **SIZES | {'block': 1}) => block is 1: it holds
dflash.trainable(TARGET, **SIZES | {'layers': 0}) => layers must be ... least 1
dflash.trainable(TARGET, **SIZES | {'taps': (0, 2)}) => name layers that do
dflash.trainable(TARGET, **SIZES | {'correction': 'lstm'})
  => correction must be one of
dflash.trainable(TARGET, **SIZES | {'confidence': 'token'}) => needs one
dflash.trainable(TARGET, **SIZES | {'rank': 0}) => rank must
dflash.trainable(TARGET, **SIZES | {'conv': -1}) => conv must
dflash.trainable(TARGET, **SIZES | {'confidence': 'both'}) => confidence must
dflash.load(HOST, 'nowhere', block=-1) => block must be a whole number of at
dflash.load(HOST, 'x', tree=4, policy=STOPS) => tree and policy are both given
dflash.trainable(TARGET, **SIZES | {'windows': (8,)}) => windows has 1 entries
dflash.trainable(TARGET, **SIZES | {'windows': (8, 2)}) => one width, got (8, 2)
dflash.trainable(TARGET, **SIZES | {'windows': (2, 2)}) => shorter than a block
dflash.trainable(TARGET, **SIZES | {'anchors': 0}) => anchors must

trees.most_accepted([(0.2,)], 0) => needs a node
shape.read({'beam': 2}) => needs both
shape.read({'replacement': True}) => give widths or parents
shape.read({'widths': (0,)}) => at least 1
shape.read({'parents': 'ab'}) => parents must be
shape.read({'beam': -1, 'nodes': 2}) => beam must be a whole number of at least
shape.read({'beam': 2, 'nodes': -1}) => nodes must be a whole number of at least
shape.read({'widths': (2,), 'beam': 2, 'nodes': 3}) => has one shape: choose one
shape.build(None, 1, {'parents': (0, 3)}) => earlier rows, level by level, got
shape.build(None, 2, {'parents': (0, 1, 0)}) => earlier rows, level by level
shape.build(None, 2, {'beam': 2, 'nodes': 2}) => 2 nodes make no tree of 2 level
lm.make_tree(DRAFT, ()) => parents is empty
lm.make_tree(DRAFT, (0, 1, 1, 1), hub=True) => hub is of trees with two siblings
medusa.load(HOST, 'x', tree=4, policy=STOPS) => tree and policy are both given
medusa.load(HOST, 'x', tree=4, beam=2, nodes=4) => tree and beam and nodes
medusa.load(HOST, 'x', tree=-1) => tree must be a whole number of at least 0

policies.confidence(-0.1) => threshold must be in [0, 1]
policies.confidence(1.5) => threshold must be in [0, 1]
policies.heuristic(2.5) => first must be a whole number of at least 1, got 2.5
policies.heuristic(2**31) => first must be a whole number of at least 1,
policies.entropy(-0.1) => threshold must be finite and not negative
policies.adaedl(first=1.5) => first, wanted and move must be in [0, 1]
policies.learned(0, 0, math.inf, 0) => weights must be finite
policies.learned(0, 0, 0, 0, 1.5) => risk must be in [0, 1]
policies.bandit(-1) => cost and scoring must be finite and not negative
policies.bandit(0.1, -1) => cost and scoring must be finite and not negative
policies.bandit(0.1, 0.1, 0) => lengths must be whole numbers of at least 1
policies.bandit(0.1, 0.1, 2.5) => lengths must be whole numbers of at least 1
policies.expected(0, 0) => must be finite and not negative, nor both 0
policies.expected(-0.1, 1) => must be finite and not negative
policies.expected(math.inf) => must be finite and not negative
policies.expected(fade=1.0) => fade must be in [0, 1)
verify.lenience(0.0) => factor must be in (0, 1], got 0
verify.lenience(1.5) => factor must be in
verify.typical(1.2) => epsilon must be in
verify.typical(0.1, -1.0) => delta must be in

models.begin('lm', 0.0, []) => prompts is empty
models.begin('lm', 0.0, [(1,)], new_tokens=512) => 513 tokens, but
models.begin('lm', 0.0, [(1,)], new_tokens=[1, 2]) => new_tokens must be one
models.begin('lm', 0.0, [(1,)], indices=[0, 1]) => key has 2 rows for 1 prompts
start(spec=dataclasses.replace(models.spec_of('tree'), rule=verify.block))
  => does not fit the drafter: it judges
sampling.make(2, temperature=[0.0, math.inf]) => temperature must be
sampling.make(2, top_p=[0.5, 1.1]) => top_p must be
make(frequency_penalty=[0.0, -2.1]) => frequency_penalty must be in
sampling.make(0) => batch must be a whole number of at least 1
make(min_new_tokens=1, eos=()) => min_new_tokens needs a token that ends
make(min_new_tokens=1, eos=(9,)) => eos must name tokens from 0 to 6
make(min_new_tokens=1, vocab_size=None) => min_new_tokens needs a vocabulary
make(forbidden=range(7)) => forbidden must leave a token, got all 7
make(forbidden=(7,)) => forbidden must name tokens from 0 to 6, got 7
make(forbidden=3) => forbidden must be a tuple of tokens, got 3
make(forbidden=[(1,), (2,), (3,)]) => forbidden has 3 rows instead of 2
make(forbidden=range(5), min_new_tokens=1) => min_new_tokens must leave a token
make(forbidden=[range(5), ()], min_new_tokens=1)
  => min_new_tokens must leave a token
make(logit_bias={7: 1.0}) => logit_bias must name tokens from 0 to 6, got 7
make(logit_bias={1: -math.inf}) => logit_bias must be finite
make(logit_bias=((1, 2, 3),)) => logit_bias must be pairs
start(values=make(1, forbidden=(1,)))
  => forbidden was made for 7 tokens, but the target
start(values=make(1, logit_bias={1: 1})) => logit_bias was made for 7 tokens
start(values=make(1, min_new_tokens=1)) => values were made for eos [5, 6], but
verify.simulated(-0.1) => rate must be in
verify.simulated(1.1) => rate must be in
Recording(logprobs=21) => logprobs must be a whole number
specjax.load('/nowhere', layout='fast') => layout is 'fast': choose one of auto
PAIR('draft-7b') => draft-128 ... target
ngram.load(HOST, corpus='nowhere.npy') => nowhere.npy is no file
ngram.load(HOST, places='x') => places must be a whole number of at least 1
models.tiny(11, 2, windows=(3,)) => windows has 1 entries for 2 layers
models.tiny(11, 2, rotary_dim=3) => rotary_dim = 3 must be even
models.tiny(11, 2, num_heads=3, num_kv_heads=2) => must be a multiple
Experts(5, 9, 4) => 9 of 5 experts
places(np.array([0, 5]), 5) => and the target 5
places(np.array([-1, 2]), 5) => tokens -1
places(np.array([2, 2]), 5) => twice

theory.tokens_per_call(0.5, [1, -2]) => gamma must be at least 0
theory.break_even_c(2.0, 0) => gamma must be at least 1, got 0
theory.break_even_c(2.0, 3, 0.0) => v must be above 0, got 0.0
metrics.predicted_speedup(2.0, 0.0, 0.0, 3) => cost of a step, must be above 0
metrics.ratio([1, 2], [1]) => one length
"""
TABLE = table.build(models.VOCAB)
STOPS = policies.heuristic()
NAMES = {
  **vars(drafters),
  **{name: getattr(drafters, name) for name in drafters.DRAFTERS},
  'CHAIN': drafters.lm.make(TABLE, 2),
  'DRAFT': models.DRAFT,
  'FEWER': Target(variants.without(models.TARGET, (0,), ())),
  'HOST': Target(models.TARGET),
  'LEARNS': drafters.lm.make(TABLE, 2, STOPS),
  'PAIR': specjax.pair.path,
  'np': np,
  'PARAMS': PARAMS,
  'SIZES': models.DFLASH_SIZES,
  'SPEC': SPEC,
  'STOPS': STOPS,
  'TABLE': TABLE,
  'TARGET': models.TARGET,
  'TEXTS': [[1, 2, 3]],
  'TREE': drafters.lm.make_tree(TABLE, (0, 0, 1)),
}
for _used in (
  Experts, LoadedDrafter, Recording, Target, dataclasses, encoder_decoder,
  generate, go, loaded, make, math, metrics, models, places, policies, sampling,
  shape, spec, specjax, start, theory, trees, verify,
):  # fmt: skip
  NAMES[_used.__name__.rpartition('.')[2]] = _used


@pytest.mark.parametrize(
  ('call', 'words'), re.findall(r'^(\S.*?)\s+=> (.*)', CALLS, re.MULTILINE)
)
def test_wrong_use_gets_a_sentence(call, words):
  message = '.*'.join(re.escape(part.strip()) for part in words.split('...'))
  models.refused(message, eval, call, dict(NAMES))


def test_drafters_without_weights_take_a_target_and_no_path():
  for name in ('forced', 'ngram', 'skip', 'suffix', 'windowed'):
    load = getattr(drafters, name).load
    models.refused('target must be what specjax.load returns', load, None)
    models.refused('has no weights', load, NAMES['HOST'], '/nowhere')


@pytest.mark.parametrize(
  'go_on',
  [
    lambda state: generate.generate(PARAMS, state, 1, spec=SPEC),
    pytest.param(
      lambda state: generate.step(PARAMS, state, spec=SPEC),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_state_is_used_once(go_on):
  state = start()
  after = generate.generate(PARAMS, state, 1, spec=SPEC)
  with pytest.raises(ValueError, match='state was used up'):
    go_on(state)
  assert int(go_on(after).length[0]) == 4


@pytest.mark.parametrize(
  ('given', 'says'),
  [
    ({'a': {'b': np.ones(3)}, 'c': ()}, ''),
    ({'a': {'b': np.ones(2)}, 'c': ()}, r"['a']['b'] is (2,) and should be"),
    ({'a': {}, 'c': ()}, "['a']['b'] is not there and should be (3,)"),
    ({'a': {'b': np.ones(3)}}, ' is nested in another way'),
  ],
)
def test_trees_are_compared_place_by_place(given, says):
  found = arguments.misfit(given, {'a': {'b': np.zeros(3)}, 'c': ()})
  assert found.startswith(says)
  assert bool(found) == bool(says)
