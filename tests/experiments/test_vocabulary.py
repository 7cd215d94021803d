"""Heads of other sizes: padding is allowed, other tokens are refused."""

import copy
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import transformers

from specjax import checkpoints, pair, sampling, verify
from specjax.bench import load, vocabulary
from specjax.bench.config import Candidate, Checkpoint, Draft, Prompts
from specjax.bench.load import load_experiment
from specjax.bench.plan import plan
from specjax.checkpoints.vocabularies import reading
from specjax.drafters import plain
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import variants
from specjax.types import Params, Spec
from tests.support import models, tiny

TOKENS = 2048  # of the embedded tokenizer
PADDED = 2112


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """`same` has heads of the tokenizer's size, `padded` larger ones."""
  path = tmp_path_factory.mktemp('pairs')
  tiny.write_pair(path / 'same', TOKENS)
  tiny.write_pair(path / 'padded', PADDED)
  return path


def experiment(folder, target: str, draft: str):
  return tiny.experiment(
    folder / target,
    candidates={},
    draft=Draft(str(folder / draft / 'draft')),
    gammas=(2,),
  )


@pytest.mark.parametrize(
  ('target', 'draft'), [('same', 'padded'), ('padded', 'same')]
)
def test_a_padded_head_drafts_for_another(folder, target, draft):
  """q covers the target's vocabulary, and is 0 where the draft has nothing."""
  (method,) = load_experiment(plan(experiment(folder, target, draft))).methods
  assert method.drafter == 'lm'
  vocab = method.spec.target.config.vocab_size

  def propose(params):
    prompts, values = [[5, 6, 7], [vocab - 1]], sampling.make(2, 1.0)
    state = models.run(method.spec, params, prompts, values, new_tokens=8)
    ctx = generate.context(state)
    return method.spec.drafter.propose(params, state.drafter, ctx, state.key)

  drafted, _ = jax.eval_shape(propose, method.params)
  assert drafted.probs.shape == (2, 2, vocab)

  model, params = checkpoints.load(folder / draft / 'draft')
  hidden = np.random.default_rng(1).normal(size=32).astype(np.float32)

  @jax.jit
  def distributions(temperature):
    values = sampling.Sampling(temperature, jnp.int32(0), jnp.float32(0.9))
    wide = variants.resize_head(model, vocab).head(params, hidden)
    own = model.head(params, hidden)[:TOKENS]
    return [sampling.distribution(logits, values) for logits in (wide, own)]

  for temperature in np.float32([0, 1]):
    q, own = map(np.asarray, distributions(temperature))
    np.testing.assert_allclose(q[:TOKENS], own, atol=1e-6)
    assert (q[TOKENS:] == 0).all()


def test_a_smaller_draft_keeps_the_targets_text(folder):
  """The target is never cut: it writes tokens that the draft does not have."""
  built = load_experiment(plan(experiment(folder, 'padded', 'same')))
  (method,) = built.methods
  weights = built.base.params.target
  # Padding that is likely: the distribution of a text must not lose it.
  weights['embedding'] = np.array(weights['embedding'])
  weights['embedding'][TOKENS:] *= 3

  def decode(spec, params):
    prompts, values = [[5, 6, 7], [8, 9]], sampling.make(2, 0.0)
    state = models.decoded(spec, params, prompts, values, new_tokens=16)
    assert state.finite.all()
    return models.new_tokens(state)

  base = Spec(method.spec.target, plain.make(), verify.token)
  expected = decode(base, Params(weights, None))
  found = decode(method.spec, Params(weights, method.params.drafter))
  assert found == expected
  assert max(map(max, expected)) >= TOKENS


def test_sizes_of_heads_and_ids_are_compared(tokenizer, tmp_path):
  # Without a tokenizer nothing shows that the difference is padding.
  vocabulary.check_draft(tokenizer, TOKENS, str(tmp_path), TOKENS)
  with pytest.raises(ValueError, match=r'has 2112 logits and the target 2048'):
    vocabulary.check_draft(tokenizer, TOKENS, str(tmp_path), PADDED)
  more = copy.deepcopy(tokenizer)
  more.add_tokens(['<extra>'])
  more.save_pretrained(tmp_path)
  with pytest.raises(ValueError, match=r"1 of those beyond .*'<extra>', not"):
    vocabulary.check_draft(tokenizer, TOKENS, str(tmp_path), PADDED)
  # A token that the draft's head does not have can never be drafted.
  vocabulary.check_draft(tokenizer, PADDED, str(tmp_path), TOKENS)
  vocabulary.check_prompt([3, 1999], 2000)
  with pytest.raises(ValueError, match=r'token id 2000 .* embedding 2000 rows'):
    vocabulary.check_prompt([3, 2000], 2000)


def test_drafts_that_can_draft_little_are_told_or_refused(capsys):
  """A prompt says which share of it a draft can draft, in thousandths."""
  made = types.SimpleNamespace
  share = made(shared=1, target=4, share=0, of_tokens=lambda x: x[0][0] / 1000)
  other = made(other=made(overlap=share))
  described = {'target': made(other=None), 'draft': other}
  for code, prose, warned in (
    (10, 9, 'prose'),
    (500, 600, ''),
    (499, 600, 'code'),
  ):
    texts = {'code': [[code]], 'prose': [[prose]]}
    vocabulary.check_overlaps(described, texts)
    vocabulary.tell(described, texts)
    first, *more = capsys.readouterr().err.splitlines()
    assert first.startswith('draft: another vocabulary: it can draft 1 of')
    assert len(more) == bool(warned)
    assert all(f'of the tokens of {warned}:' in line for line in more)
  with pytest.raises(
    UserError, match=r"^draft can draft 0\.9% of the prompts'"
  ):
    vocabulary.check_overlaps(described, {'a': [[9]], 'b': [[0]]})


def swapped(path):
  """The directory of a draft with two tokens in each other's place."""
  tiny.write_pair(path)
  file = path / 'draft' / 'tokenizer.json'
  content = json.loads(file.read_text())
  vocab = content['model']['vocab']
  a, b = list(vocab)[300:302]
  vocab[a], vocab[b] = vocab[b], vocab[a]
  file.write_text(json.dumps(content))
  return str(path / 'draft')


INNER = {'inner': Candidate('ngram', 2)}
FEW = {'vocabulary': 64, 'frequencies': pair.path('unigram')}


@pytest.mark.parametrize(
  ('load', 'options', 'draft', 'says'),
  [
    # Where what drafts needs those of the target: as in a cascade's middle.
    ('cascade', INNER, 'swapped', r'2 of 2048 tokens differ, such as'),
    ('lm', FEW, 'swapped', 'leave vocabulary out'),
    ('lm', {}, 'two', r"can draft 0\.\d% of the prompts' tokens"),
  ],
)
def test_other_tokens_are_refused_in_one_line_before_weights_are_read(
  folder, tmp_path, monkeypatch, load, options, draft, says
):
  if draft == 'two':
    path = small_tokens(tmp_path / 'd', {'\x00': 0, '~': 1})
  else:
    path = swapped(tmp_path)
  monkeypatch.setattr(checkpoints, 'load', None)
  candidate = Candidate(load, 2, path, options)
  x = tiny.experiment(folder / 'same', candidates={'draft': candidate})
  with pytest.raises(UserError, match=says) as caught:
    load_experiment(plan(x))
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('load', ['lm', 'quantized'])
def test_a_draft_with_other_tokens_drafts_through_tables(
  folder, tmp_path, load, capsys
):
  """Swapped ids are told by their bytes, and what it drafts is the target's."""
  path = swapped(tmp_path)
  candidate = Candidate(load, 2, path)
  x = tiny.experiment(folder / 'same', candidates={'draft': candidate})
  (method,) = load_experiment(plan(x)).methods
  assert 'another vocabulary: it can draft 2,048' in capsys.readouterr().err
  places = np.asarray(method.params.drafter.tables.places)
  assert sorted(places) == [*range(TOKENS)]
  assert (places != np.arange(TOKENS)).sum() == 2
  assert method.brings['vocabulary'] == {'shared': TOKENS, 'of': TOKENS}


def small_tokens(path, vocab):
  """The directory of a draft whose tokenizer has few tokens."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False)
  fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
  model = tiny.model(32, 1, len(vocab))
  checkpoints.save(path, model, models.weights(model, 0), fast)
  return str(path)


@pytest.fixture
def spelling(folder, tmp_path, monkeypatch):
  """A plan whose draft has a token a letter, and does not load weights."""
  letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  path = small_tokens(tmp_path / 'd', {t: i for i, t in enumerate(letters)})
  monkeypatch.setattr(checkpoints, 'load', None)

  def make(**prompts):
    return tiny.experiment(
      folder / 'same',
      candidates={'draft': Candidate('lm', 2, path)},
      prompts=Prompts(count=2, **prompts),
      max_new_tokens=None,
    )

  return make


def drawn(x) -> tuple[list[int], int]:
  """The longest prompts, in tokens of the draft, and the new tokens."""
  planned = plan(x)
  found = load.survey(planned)
  texts = load.read_prompts(planned, found.tokenizer, found.described)
  tables = found.described['draft draft'].other.tables
  ids = [ids for one in texts.values() for ids in one.texts]
  return [reading.length_of(tables, x) for x in ids], planned.max_new_tokens


def test_lengths_that_nobody_sets_fit_in_the_drafts_tokens(spelling, tmp_path):
  lines = tmp_path / 'lines.txt'
  lines.write_text('a line of many words ' * 40 + '\n' + 'a short line\n')
  for prompts in ({}, {'path': str(lines), 'field': 'line'}):
    lengths, new = drawn(spelling(**prompts))
    assert new == 128 // 4  # Of the positions of a draft with other tokens.
    assert 0 < max(lengths) < 128 - new


def test_a_length_that_does_not_fit_the_draft_names_one_that_does(spelling):
  with pytest.raises(UserError, match=r'^prompts\.length is 60') as caught:
    drawn(spelling(length=60))
  assert '\n' not in str(caught.value)
  fitting = int(re.search(r'prompts\.length=(\d+)', str(caught.value))[1])
  lengths, _ = drawn(spelling(length=fitting))
  assert max(lengths) < 128


def test_weights_with_the_tokenizer_of_a_larger_model(tmp_path, monkeypatch):
  tiny.write_pair(tmp_path)
  made = tiny.model(32, 1, 1024)
  target = tmp_path / 'small'
  checkpoints.save(target, made, models.weights(made, 0))
  for name in ('tokenizer.json', 'tokenizer_config.json'):
    (target / name).write_bytes((tmp_path / 'target' / name).read_bytes())
  monkeypatch.setattr(checkpoints, 'load', None)
  x = tiny.experiment(tmp_path, target=Checkpoint(str(target)))
  says = r'target\.path: .* up to 2047 .* 1024 rows'
  with pytest.raises(ValueError, match=says):
    load_experiment(plan(x))


def test_every_end_of_text_ends_a_row(folder, tmp_path, tokenizer):
  made = tiny.model(32, 1)
  target = tmp_path / 'target'
  checkpoints.save(target, made, models.weights(made, 0), tokenizer, eos=(7, 9))
  x = experiment(folder, 'same', 'same')
  x.target.path = str(target)
  built = load_experiment(plan(x))
  assert built.plain.eos == built.methods[0].spec.eos == (7, 9)
