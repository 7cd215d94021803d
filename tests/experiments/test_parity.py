"""Ties and bugs: each is given its name, whatever the precision."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import pair as pair_config
from specjax import checkpoints, sampling, verify
from specjax.bench import comparisons, load, measure, parting, ties
from specjax.bench.config import Checkpoint, Mesh, Parity, Prompts
from specjax.bench.plan import plan
from specjax.certify import planted
from specjax.drafters import lm, plain
from specjax.errors import UserError
from specjax.loop import generate
from specjax.programs import parity
from specjax.types import Params, Spec
from tests.support import models, tiny

PROMPT = [4, 5, 6, 4, 5]
SLOTS = 128
GREEDY = sampling.make(1, 0.0)
MODEL = models.DRAFT  # one layer: there are many programs to compile
PLAIN = Spec(MODEL, plain.make(), verify.token)
DRAFTED = dataclasses.replace(PLAIN, drafter=lm.make(MODEL, 3))
# A rule that is wrong at temperature 0 too; the program takes it by its name.
ACCEPTS_ALWAYS = planted.IN_RULES['every token is accepted'](verify.token)


def ways(weights, spec=DRAFTED):
  params = Params(weights, None)
  base, way = (measure.Decoding(one, params) for one in (PLAIN, spec))
  return [ties.way(base, 1, SLOTS), ties.way(way, 2, SLOTS)]


def best(weights):
  """The two largest logits after the prompt, and their tokens."""
  logits = np.asarray(models.score(MODEL, weights, np.array([PROMPT])))[0, -1]
  order = np.argsort(-logits)[:2]
  return order.tolist(), logits[order]


def with_gap(gap):
  """Weights whose two best tokens after the prompt are apart by a gap."""
  weights = dict(models.draft_weights())
  (a, b), (high, _) = best(weights)
  # The token's column is the best one's, a little shorter.
  columns = np.array(weights['unembedding'])
  columns[:, b] = columns[:, a] * (1 - gap / high)
  weights['unembedding'] = columns
  return weights, a, b


def test_the_config_of_a_users_pair_has_a_part_for_parity(folder):
  x = pair_config.get_config('parity')
  assert isinstance(x, Parity)
  x.target.path, x.draft.path = str(folder / 'target'), str(folder / 'draft')
  x.dtype = 'bfloat16'
  planned, _ = parity.prepare(x)
  assert [*planned.drafters] == ['lm', 'ngram']
  assert planned.dtype == 'bfloat16'
  with pytest.raises(UserError, match='the parts are run, parity, got '):
    pair_config.get_config('predict')


@pytest.mark.parametrize(
  ('gap', 'verdict'), [(0, 'tie'), (1e-7, 'tie'), (1e-4, 'bug'), (0.1, 'bug')]
)
def test_a_margin_beyond_the_noise_is_a_bug(gap, verdict):
  weights, a, b = with_gap(gap)
  found = ties.explain(ways(weights), PROMPT, GREEDY, [a, 1], [b, 2])
  assert found.verdict == verdict
  assert found.position == 0
  assert found.tokens == (a, b)
  assert found.margin == pytest.approx(gap, abs=1e-6)
  assert found.gap == found.margin
  assert 0 < found.noise < 1e-5
  assert 0 < found.rounding < 1e-5


def wrong_positions(params, tokens, positions, *rest, **options):
  """A planted bug: positions of a drafted block are one too large."""
  positions += 1 < tokens.shape[1] < SLOTS
  return MODEL.forward(params, tokens, positions, *rest, **options)


def test_shapes_that_are_too_far_apart_excuse_nothing():
  """A bug in one of the shapes is not taken for its noise."""
  weights, a, b = with_gap(1e-3)
  target = MODEL._replace(forward=wrong_positions)
  wrong = ways(weights, dataclasses.replace(DRAFTED, target=target))
  found = ties.explain(wrong, PROMPT, GREEDY, [a], [b])
  assert found.noise > found.margin
  assert found.verdict == 'bug'
  assert found.operation is not None
  assert 1 <= found.rows <= 4


def test_a_text_that_ends_early_is_a_bug():
  both = ways(models.draft_weights())
  found = ties.explain(both, PROMPT, GREEDY, [1, 2], [1])
  assert found.position == 1
  assert found.tokens == (2, None)
  assert (found.margin, found.verdict) == (None, 'bug')
  assert ties.first_difference([1, 2], [1, 2]) is None
  with pytest.raises(ValueError, match='equal'):
    ties.explain(both, PROMPT, GREEDY, [1], [1])


def test_margins_are_of_processed_logits():
  """A bias that makes a tie of two tokens makes a tie of their texts."""
  weights = models.draft_weights()
  (a, b), (high, low) = best(weights)
  values = sampling.make(
    1, 0.0, vocab_size=models.VOCAB, logit_bias={b: float(high - low)}
  )
  assert ties.explain(ways(weights), PROMPT, GREEDY, [a], [b]).verdict == 'bug'
  found = ties.explain(ways(weights), PROMPT, values, [a], [b])
  assert found.margin < 1e-5
  closed = sampling.make(1, 0.0, vocab_size=models.VOCAB, forbidden=(b,))
  found = ties.explain(ways(weights), PROMPT, closed, [a], [b])
  assert (found.margin, found.verdict) == (None, 'bug')


def test_scores_are_those_of_the_loop():
  """The ways score what the loop scores: its greedy token is their best."""
  weights = models.draft_weights()
  state = models.run(PLAIN, Params(weights, None), [PROMPT], GREEDY)
  state = generate.generate(
    Params(weights, None), state, jnp.int32(1), spec=PLAIN
  )
  assert best(weights)[0][:1] == list(models.new_tokens(state)[0])


# The program


def config(folder, **changes) -> Parity:
  common = tiny.experiment(
    folder,
    target=Checkpoint(str(folder / 'draft')),
    drafters=('ngram',),
    temperatures=(0.0,),
    quick=False,
  )
  return Parity(**(vars(common) | changes))


def run(x, capsys):
  """Exit status, the object of the last line, and the rows."""
  status = 0
  try:
    parity.main(x)
  except SystemExit as stop:
    status = stop.code
  *_, last = capsys.readouterr().out.splitlines()
  found = json.loads(last)
  with open(f'{found["results"]}/rows.jsonl') as file:
    return status, found, [json.loads(line) for line in file]


@pytest.mark.slow
def test_two_precisions_differ_by_ties_only(folder, tmp_path, capsys):
  """And the comparison with float32 is of bfloat16, on both sides."""
  x = config(
    folder, against='dtype', dtype='bfloat16', other_dtype='float32',
    prompts=Prompts(domains=('code',), count=4, length=16), max_new_tokens=48,
    results=str(tmp_path / 'a'),
  )  # fmt: skip
  status, found, rows = run(x, capsys)
  assert status == 0
  assert found['differences'] == found['ties'] > 0
  assert {(r['dtype'], r['against']) for r in rows} == {('bfloat16', 'float32')}
  for d in rows[0]['differences']:
    assert 0 <= d['gap'] <= d['margin'] <= d['noise']
    assert d['noise'] > 1e-4
    assert d['tokens'][0] != d['tokens'][1]
    assert d['operation'] is None
  summary = (tmp_path / 'a' / 'summary.md').read_text()
  assert summary.count('| tie') == found['ties'] + 1  # and the head


@pytest.mark.parametrize(
  'exact', ['auto', pytest.param('bits', marks=pytest.mark.slow)]
)
def test_a_wrong_rule_is_a_bug(exact, folder, tmp_path, capsys, request):
  """In the same bits it parts no operation."""
  if exact == 'bits':
    request.getfixturevalue('kernel')
  x = config(
    folder,
    exact=exact,
    verifiers=('tests.experiments.test_parity.ACCEPTS_ALWAYS',),
    results=str(tmp_path / 'a'),
  )
  status, found, rows = run(x, capsys)
  assert (status, found['ties']) == (1, 0)
  assert found['bugs'] == found['differences'] > 0
  differences = [d for r in rows for d in r['differences']]
  assert {d['verdict'] for d in differences} == {'bug'}
  if exact == 'bits':
    parted = {(d['operation'], d['rows']) for d in differences}
    assert parted == {(parting.NOWHERE, None)}
    *_, last = (tmp_path / 'a' / 'summary.md').read_text().splitlines()
    assert last.endswith('bits first part in no operation (1 text).')
  # The rows are kept, and so is the status.
  assert run(x, capsys) == (status, found, rows)


@pytest.mark.slow
def test_double_precision_differs_nowhere(folder, tmp_path, capsys):
  x = config(folder, dtype='float64', results=str(tmp_path / 'a'))
  status, found, rows = run(x, capsys)
  assert (status, found['compared'], found['differences']) == (0, 2, 0)
  assert {r['dtype'] for r in rows} == {'float64'}
  with jax.enable_x64(True):
    built = parity.Comparison(*parity.prepare(x)).built
  for params in (built.base.params, built.methods[0].params):
    assert {w.dtype for w in jax.tree.leaves(params)} == {np.dtype('float64')}


def test_texts_of_another_program(folder, tmp_path, capsys):
  """Named by tokens or number, as tokens or text; one of them is wrong."""
  x = config(folder, results=str(tmp_path / 'a'))
  comparison = parity.Comparison(*parity.prepare(x))
  (_, mine, _), *_ = comparison.pairs
  wrote = comparison.decode(mine, 'code')
  text = comparison.built.target.tokenizer.decode([7, 8])
  other = [*wrote[1][:5], wrote[1][5] + 1, *wrote[1][6:], 3]
  file = tmp_path / 'texts.jsonl'

  def write(*entries):
    lines = [json.dumps(entry) + '\n' for entry in entries]
    file.write_text(''.join(lines))

  lines = (tmp_path / 'a' / 'prompts.jsonl').read_text().splitlines()
  write(
    json.loads(lines[0]) | {'tokens': wrote[0]}, {'prompt': 1, 'tokens': other}
  )
  changes = {'against': 'text', 'text': str(file)}
  x = config(folder, **changes, results=str(tmp_path / 'b'))
  status, found, (row,) = run(x, capsys)
  assert (status, found['compared'], found['bugs']) == (1, 2, 1)
  (difference,) = row['differences']
  assert (difference['prompt'], difference['position']) == (1, 5)
  assert difference['tokens'] == [wrote[1][5], wrote[1][5] + 1]
  assert (difference['operation'], difference['rows']) == (None, None)

  write({'prompt': 0, 'text': text}, {'prompt': 1, 'tokens': other})
  with pytest.raises(UserError, match='prompt 0 has 2 tokens and no end of'):
    parity.main(config(folder, **changes, results=str(tmp_path / 'c')))
  write({'prompt': 0, 'tokens': wrote[0]})
  with pytest.raises(UserError, match='1 of 2 prompts have no text, such as p'):
    parity.main(config(folder, **changes, results=str(tmp_path / 'c')))
  assert not (tmp_path / 'c').exists()


def test_a_lossy_rule_is_refused(folder, tmp_path):
  x = config(folder, verifiers=('simulated:0.8',), results=str(tmp_path / 'a'))
  with pytest.raises(UserError, match='is lossy'):
    parity.main(x)
  assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{"prompt": 0, "tok', 'line 1 of .* is no valid JSON'),
    ('[1, 2]', 'must be an object or a string'),
    ('{"tokens": [1]}', 'no object with a prompt'),
    ('{"prompt": 0}', 'needs either text or tokens'),
    ('{"prompt": 0, "text": "a", "tokens": [1]}', 'needs either'),
    ('{"prompt": 0, "tokens": "a"}', 'tokens a list of ids'),
    ('{"prompt": 0, "text": [1]}', 'text must be a string'),
    ('{"prompt": 2, "tokens": [1, 2]}', '2 is none of the 2 prompts'),
    ('{"prompt": -1, "tokens": [1, 2]}', '-1 is none of the 2 prompts'),
    ('{"prompt": true, "tokens": [1, 2]}', 'True is none of the 2 prompts'),
    ('{"prompt": [9], "tokens": [1, 2]}', r'\[9\] is none of the 2 prompts'),
    ('{"prompt": 1, "tokens": [-1, 2]}', 'prompt 1 has a token outside the v'),
    ('{"prompt": 1, "tokens": [11, 2]}', 'prompt 1 has a token outside the v'),
    ('{"prompt": 1, "tokens": [1]}', 'has 1 tokens and no end of text'),
    ('{"prompt": 1, "tokens": [1, 3]}', 'prompt 1 has two texts'),
  ],
)
def test_bad_texts_are_refused(tmp_path, line, message):
  file = tmp_path / 'texts.jsonl'
  # What is behind the end of a text or the limit is cut off.
  good = '{"prompt": [5, 6], "tokens": [10, 3]}\n'
  good += '{"prompt": 1, "tokens": [1, 2, 4]}'
  spec = dataclasses.replace(PLAIN, eos=(10,))
  prompts = [[5, 6], [7]]
  file.write_text(good)

  def read():
    entries = comparisons.read_texts(str(file))
    return comparisons.match_texts(entries, prompts, None, spec, 2)

  assert read() == [[10], [1, 2]]
  prompts.append([5, 6])  # The same prompt may come twice.
  file.write_text(good.replace('[5, 6]', '2'))
  assert read() == [[10], [1, 2], [10]]
  prompts.pop()
  file.write_text(f'{line}\n{good}')
  with pytest.raises(UserError, match=message):
    read()


@pytest.mark.parametrize('sizes', [(1, 2), (2, 1), (2, 2)])
def test_a_mesh_has_no_bits_of_its_own(sizes, folder):
  planned = plan(tiny.experiment(folder, exact='bits'))
  planned = dataclasses.replace(planned, mesh=Mesh(*sizes))
  target = checkpoints.describe(planned.target)
  with pytest.raises(UserError, match='exact is bits, but the model is on a m'):
    load.check_bits(planned, target)
