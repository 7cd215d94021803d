"""Conversations in a run: what later turns hold, and how they count."""

import dataclasses
import functools
import itertools
import json
import pathlib

import numpy as np
import pytest

from specjax.bench import measure, row_fields, turns
from specjax.bench.config import Parity, Prompts
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.programs import generate, parity, predict
from specjax.reports import run as run_report
from specjax.stats import metrics
from tests.support import rows as made
from tests.support import tiny

TALKS = [
  {'category': 'chat', 'turns': ['def add(a, b):', 'And with three?']},
  {'category': 'chat', 'turns': ['import os\n']},
  {'category': 'chat', 'turns': ['class A:', 'Another one.', 'Once more!']},
]


@pytest.fixture(scope='module')
def prompts(tmp_path_factory) -> Prompts:
  path = tmp_path_factory.mktemp('talks') / 'question.jsonl'
  path.write_text(''.join(json.dumps(talk) + '\n' for talk in TALKS))
  return Prompts(path=str(path), turns=0)


def settings(folder, tmp_path, prompts, **changes):
  prompts = dataclasses.replace(prompts)  # Programs may change theirs.
  changes = {'prompts': prompts, 'results': str(tmp_path / 'a')} | changes
  return tiny.experiment(folder, **{'drafters': ('ngram',)} | changes)


def said(runner) -> list[tuple[str, ...]]:
  return [talk.says for talk in runner.built.prompts['chat'].talks]


class Watched(Runner):
  """Keeps every job that is decoded, with its run."""

  def play(self, decode, domain, job, lead=()):
    def keep(job):
      run = decode(job)
      self.seen.append((decode, job, run))
      return run

    self.seen = getattr(self, 'seen', [])
    return super().play(keep, domain, job, lead)


@pytest.fixture(scope='module')
def untimed(folder, tmp_path_factory, prompts):
  x = settings(
    folder, tmp_path_factory.mktemp('rows'), prompts, drafters=('draft',),
    timed=False, batch=2,
  )  # fmt: skip
  runner = Watched(plan(x))
  runner.run()
  return runner


def test_a_conversation_is_one_unit_of_all_its_turns(untimed):
  numbers = {len(talk): i for i, talk in enumerate(said(untimed))}
  for row in untimed.folder.rows:
    assert (row['prompts'], row['texts']) == (3, 6)
    assert [t['texts'] for t in row['by_turn']] == [3, 2, 1]
    assert row['prompts_from']['turns'] == 3
    new = row['new_tokens']
    for turns_of, number in numbers.items():
      assert row['unit_tokens'][number] == turns_of * new
      # The last token of each turn has no room behind it.
      assert row['unit_prefixes'][number] == turns_of * (new - 1)
    for name in ('tokens', 'target_calls'):
      whole = sum(turn[name] for turn in row['by_turn'])
      assert row[name] == whole == sum(row[f'unit_{name}'])
    assert sum(map(sum, row['unit_histogram'])) == sum(row['histogram'])
    bins = row['acceptance_by_context']
    assert sum(b['steps'] for b in bins) == sum(row['histogram'])
    assert row['shortened'] == 0


def test_greedy_texts_of_all_turns_are_compared(untimed):
  greedy, drawn = untimed.folder.rows
  assert (greedy['temperature'], drawn['identical_to_plain']) == (0, None)
  verdicts = [d['verdict'] for d in greedy['differences']]
  assert 'bug' not in verdicts
  assert greedy['identical_to_plain'] + len(verdicts) == 6
  title = run_report.cells([greedy])[0].markdown()
  assert f'{greedy["identical_to_plain"]} of 6 texts' in title
  summary = run_report.summary(untimed.folder.rows)
  _, _, table = summary.partition('Turn by turn')
  lines = [x for x in table.splitlines() if x.startswith('| chat')]
  assert [x.split('|')[6].strip() for x in lines[:6]] == [*'123123']
  assert [x.split('|')[7].strip() for x in lines[:6]] == [*'321321']


def test_a_wrong_later_answer_is_a_difference_of_its_turn(untimed):
  (method,) = untimed.built.methods
  cell = method.cell('chat', 0.0)
  base, talks = [], untimed.built.prompts['chat'].talks
  decode = functools.partial(measure.decode, untimed.built.base, timed=False)
  for job in untimed.units('chat', 0.0):
    base.append(turns.play(decode, job, talks))
  wrong = [turns.join([*run.turns]) for run in base]
  (three,) = (i for i, t in enumerate(said(untimed)) if len(t) == 3)
  batch, row = divmod(three, 2)
  last = wrong[batch].turns[2]
  texts = [list(text) for text in last.texts]
  texts[row][5] += 1
  wrong[batch].turns[2] = dataclasses.replace(last, texts=texts)
  found = untimed.compare(method, cell, base, wrong)
  (difference,) = found['differences']
  assert found['identical_to_plain'] == 5
  assert (difference['prompt'], difference['turn']) == (three, 3)
  assert difference['position'] == 5


def later(runner, temperature):
  """Of each way that decodes: first prompt -> (answers, later prompts)."""
  found: dict = {}
  for decode, job, run in runner.seen:
    if job.values.temperature[0] != temperature:
      continue
    way = found.setdefault(id(decode.args[0].spec), {})
    for row, number in enumerate(job.indices[: job.live].tolist()):
      if run.counts.tokens[row]:
        way[number] = job.prompts[row], run.texts[row]
  return list(found.values())


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_later_turns_hold_the_right_answers(untimed, temperature):
  tokenizer, talks = untimed.built.target.tokenizer, said(untimed)
  ways = later(untimed, temperature)
  plain, _, method = ways
  assert [*map(len, ways)] == [6, 6, 6]
  for way, number in itertools.product(ways, plain):
    turn, talk = divmod(number, 3)
    if turn:
      # Alpha, and greedy texts of all, are measured where plain decoding went.
      own = way is method and temperature
      prompt, answer = (way if own else plain)[number - 3]
      more = tokenizer.encode(
        f'\n\n{talks[talk][turn]}', add_special_tokens=False
      )
      assert way[number][0] == prompt + answer + more
  if temperature:
    assert any(plain[n][1] != method[n][1] for n in plain)


def test_greedy_methods_are_given_answers(untimed):
  """Also where those of plain decoding are other ones."""
  (method,) = untimed.built.methods
  job = untimed.units('chat', 0.0)[0]
  decode = functools.partial(measure.decode, untimed.built.base, timed=False)
  base = untimed.play(decode, 'chat', job)
  first = base.turns[0]
  wrong = [[token % 256 + 1 for token in text] for text in first.texts]
  base.turns[0] = dataclasses.replace(first, texts=wrong)
  untimed.seen = []
  untimed.decode(method, method.cell('chat', 0.0), job, base)
  (_, second, _) = untimed.seen[1]
  for row, index in enumerate(job.indices[: job.live]):
    if len(said(untimed)[index]) > 1:
      given = second.prompts[row][len(job.prompts[row]) :]
      assert given[:12] == wrong[row]


def test_turns_have_one_shape(untimed):
  assert {job.slots for _, job, _ in untimed.seen} == {untimed.built.slots[0]}
  longest = untimed.built.prompts['chat'].longest
  assert longest + 12 <= untimed.built.slots[0]
  for _, job, _ in untimed.seen:
    assert max(map(len, job.prompts)) <= longest


def run_of(tokens, calls, seconds=1.0):
  run = made.run(tokens, calls, seconds)
  accepted = np.zeros((len(tokens), max(calls)), int)
  log = measure.Log(accepted, accepted + 1, accepted + 9)
  return dataclasses.replace(run, log=log)


def test_joined_turns_add_up():
  first, second = run_of([4, 6], [4, 2], 3.0), run_of([5, 0], [1, 0], 2.0)
  run = turns.join([first, second])
  assert run.counts.tokens.tolist() == [9, 6]
  assert run.counts.target_calls.tolist() == [5, 2]
  assert [len(text) for text in run.texts] == [9, 6]
  assert (run.seconds, run.prefill_seconds, run.compilations) == (5.0, 1.0, 2)
  # Rows wait for each other in every turn: 4 steps, then 1.
  assert run.steps == 5
  assert first.steps == 4
  assert turns.join([run_of([4, 4], [4, 1]), run_of([4, 4], [1, 4])]).steps == 8
  # No step is paired with one of another turn, however far pairs reach.
  steps = np.diff(np.flatnonzero(run.log.accepted[0] >= 0))
  assert steps.tolist()[:3] == [1, 1, 1]
  assert steps[3] > metrics.LAGS
  one, two = turns.answers_of([run, turns.join([run_of([3], [1])])])
  assert [len(x) for x in one] == [4, 6, 3]
  assert [len(x) for x in two] == [5, 0, 0]


def test_intervals_are_over_conversations():
  """Two turns that say the same are not two questions."""
  tokens, calls = [8, 9, 7, 8, 5, 9], [4, 3, 5, 4, 4, 6]
  runs = [
    turns.join([run_of([n], [c]), run_of([n], [c])])
    for n, c in zip(tokens, calls, strict=True)
  ]
  alpha = row_fields.alpha_of(runs, len(runs))
  row = row_fields.acceptance(runs, alpha, alpha)
  low, high = metrics.ratio(tokens, calls).interval
  most = 2.0  # A draft of one token, and the token behind it.
  assert row['tau_ci'] == [low, most]
  assert high > most
  twice = metrics.ratio(tokens * 2, calls * 2).interval
  assert high - low > 1.2 * np.ptp(twice)
  # Plain decoding takes twice as long for first turns, thrice for second ones.
  base = [
    turns.join(
      [
        dataclasses.replace(turn, seconds=(2 + i) * turn.seconds)
        for i, turn in enumerate(run.turns)
      ]
    )
    for run in runs
  ]
  found = row_fields.by_turn(runs, alpha, base)
  assert found['texts'] == 12
  for i, turn in enumerate(found['by_turn']):
    assert turn['tau_ci'] == row['tau_ci']
    assert turn['speedup'] == pytest.approx(2 + i)


@pytest.mark.slow
def test_predictions_are_of_all_turns(folder, tmp_path, prompts):
  x = settings(folder, tmp_path, prompts, gammas=(2,), temperatures=(0.0,))
  predictor = predict.Predictor(predict.prepare(x))
  predictor.run()
  (seen,) = predictor.rows('replay')
  (check,) = predictor.rows('check')
  assert seen['unit_tokens'] == check['unit_tokens']
  assert sorted(seen['unit_tokens']) == [12, 24, 36]
  assert check['equal_calls'] >= check['same_text'] - 1
  assert check['same_text'] == 3


def test_parity_compares_the_texts_of_all_turns(folder, tmp_path, prompts):
  x = settings(folder, tmp_path, prompts, temperatures=(0.0,), batch=2)
  comparison = parity.Comparison(*parity.prepare(Parity(**vars(x))))
  comparison.run()
  (row,) = comparison.folder.rows
  assert (row['compared'], row['bugs']) == (6, 0)
  lines = pathlib.Path(x.results, 'prompts.jsonl').read_text().splitlines()
  found = [json.loads(line)['prompt'] for line in lines]
  assert len(found) == 6
  assert all(any(p[: len(q)] == q for q in found[:3]) for p in found[3:])


def test_one_conversation_is_shown_turn_by_turn(
  folder, tmp_path, prompts, capsys
):
  x = settings(folder, tmp_path, prompts, seed=1)
  generate.main(x)
  out = capsys.readouterr().out.splitlines()
  shown = json.loads(out[-1])['turns']
  talk = next(t for t in TALKS if t['turns'][0].split()[0] in out[0])
  assert [len(one['tokens']) for one in shown] == [12] * len(talk['turns'])
  assert all(text in out for text in talk['turns'][1:])
