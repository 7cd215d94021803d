"""The probe: its counts by hand, its verdicts, and how often they are wrong."""

import functools
import json
import types

import numpy as np
import pytest
from scipy import stats

from specjax import pair
from specjax.bench import measure, replay, results
from specjax.bench.config import Candidate, Checkpoint, Experiment
from specjax.drafters.dflash import module
from specjax.drafters.eagle.module import sizes_of
from specjax.drafters.heads import files, overrides
from specjax.drafters.medusa.module import Reading
from specjax.errors import UserError
from specjax.programs import probe, run
from specjax.reports import probe as report
from specjax.reports import run as run_report
from specjax.stats import readings
from specjax.stats.readings import CONFIGURED, Look
from tests.support import tiny


def test_places_and_agreeing_tokens_are_counted_by_hand():
  text = np.array([5, 6, 7, 8])
  drafts = np.array([[5, 6, 0], [6, 0, 8], [7, 8, 0], [8, 0, 0]])
  seen = replay.Watched(text, *[np.zeros(4)] * 3, drafts, np.full(4, 3), False)
  places, accepted = probe._count(seen, 3)
  assert places == 2  # The last two have fewer than three tokens behind them.
  # 5 6 of 5 6 7; 6 of 6 7 8, and what agrees behind a mistake does not count.
  assert accepted.tolist() == [2, 1, 0]


def test_chances_are_of_the_tokens_before():
  look = Look(np.array([4, 4]), np.array([[3, 1], [3, 2]]))
  assert look.alphas == [6 / 8, 3 / 6]
  assert look.tokens.tolist() == [4, 5]
  none = Look(np.array([4]), np.array([[0, 0]]))
  assert none.alphas[0] == 0
  assert np.isnan(none.alphas[1])


def draw(rng, chances):
  """Looks of readings whose prompts are easy and hard alike for all."""
  ease = rng.normal(0, 0.1, 32)
  looks = []
  for chance in chances:
    p = np.clip(chance + ease, 0.01, 0.99)[:, None] ** np.arange(1, 4)
    looks.append(Look(np.full(32, 24), rng.binomial(24, p)))
  return looks


def test_equal_readings_are_seldom_apart_and_seldom_called_better():
  """Intervals hold together; one side of them has half of `CHANCE`."""
  rng, missed, wrong, runs = np.random.default_rng(1), 0, 0, 400
  for _ in range(runs):
    base, *others = draw(rng, [0.5] * 8)
    found = [readings.compare(base, o, len(others)) for o in others]
    missed += any(not f.low <= 0 <= f.high for f in found)
    wrong += any(f.better for f in found)
  assert 0.2 * readings.CHANCE < missed / runs < 2 * readings.CHANCE
  assert wrong / runs < 2 * readings.CHANCE / 2


def test_a_better_reading_is_found_and_a_worse_one_is_not():
  base, better, worse = draw(np.random.default_rng(2), [0.4, 0.5, 0.3])
  assert readings.compare(base, better, 2).better
  assert not readings.compare(base, worse, 2).better
  rows = {'a': (0.4, True), 'b': (0.6, True), 'c': (0.9, False)}
  found = {n: readings.Difference(v, 0, 1, b) for n, (v, b) in rows.items()}
  assert readings.best_of(found) == 'b'
  assert readings.best_of({'c': found['c']}) == CONFIGURED


@pytest.mark.parametrize(
  ('accepted', 'more', 'better', 'alternatives'),
  [
    (500, 24, False, 1), (500, 26, True, 4), (100, 19, False, 4),
    (100, 21, True, 1),
  ],
)  # fmt: skip
def test_a_difference_that_is_sure_but_slight_is_not_clear(
  accepted, more, better, alternatives
):
  base = Look(np.full(32, 1000), np.full((32, 1), accepted))
  more = more + np.array([-1, 1] * 16)[:, None]
  other = base._replace(accepted=base.accepted + more)
  found = readings.compare(base, other, alternatives)
  error = np.std(more / 1000, ddof=1) / 32**0.5
  reach = stats.t(31).ppf(1 - 0.05 / alternatives / 2) * error
  ends = more.mean() / 1000 + np.array([-reach, reach])
  assert [found.low, found.high] == pytest.approx(ends)
  assert found.low > 0
  assert found.better == better


def test_a_reading_that_drafts_fewer_tokens_is_compared_over_these():
  base = Look(np.full(8, 4), np.tile([3, 2, 1], (8, 1)))
  fewer = Look(np.full(8, 5), np.tile([5, 5], (8, 1)))
  found = readings.compare(base, fewer, 1)
  assert found.value == pytest.approx(10 / 5 - 5 / 4)
  assert found.better
  rows = [
    {
      'drafter': 'head',
      'alternative': name,
      'unit_places': look.places,
      'unit_accepted': look.accepted,
    }
    for name, look in ((CONFIGURED, base), ('fewer', fewer))
  ]
  said = report.sentence('head', report.find(rows)['head'])
  assert 'fewer: 2.00 tokens a draft of 2, 1.25 as configured' in said


def experiment(folder, results, *members):
  """A head for each member of the pair that a path is read as."""
  heads = {
    name: Candidate(
      'tests.support.readings.load', 3, str(folder), {'member': name}
    )
    for name in members
  }
  return tiny.experiment(
    folder,
    candidates={**heads, 'ngram': Candidate('ngram', 2)},
    results=str(results),
    max_new_tokens=8,
    prompts=tiny.Prompts(domains=('code', 'structured'), count=4, length=8),
    quick=False,
  )


@pytest.mark.slow
def test_the_right_reading_is_found_and_rows_are_kept(folder, tmp_path, capsys):
  both = folder, tmp_path / 'a', 'draft', 'target'
  with pytest.raises(SystemExit, match='1'):
    probe.main(experiment(*both))
  *said, last = capsys.readouterr().out.splitlines()
  last = json.loads(last)
  right = 'the weights of the target'
  assert last['best'] == {'draft': right, 'target': CONFIGURED}
  assert last['changes']['draft'] == {'member': 'target'}
  assert "its first token is the target's in 1.00 of places" in '\n'.join(said)
  file = tmp_path / 'a' / 'rows.jsonl'
  before = file.read_text()
  rows = [json.loads(line) for line in before.splitlines()]
  assert [r['alternative'] for r in rows[:2]] == [CONFIGURED, right]
  # The target drafts for itself: every token of each place agrees.
  assert rows[1]['unit_places'] == [6] * 8
  assert rows[1]['unit_accepted'] == [[6] * 3] * 8
  with pytest.raises(SystemExit, match='1'):
    probe.main(experiment(*both))
  assert file.read_text() == before
  assert 'read otherwise it accepts clearly more' in report.headline(rows)


@pytest.mark.slow
def test_a_tree_is_probed_as_a_chain(folder, tmp_path):
  with pytest.raises(UserError, match='name a head'):
    probe.prepare(tiny.experiment(folder))
  x = experiment(folder, tmp_path / 'a', 'target')
  x.candidates['target'].options['widths'] = (2, 1, 1)
  x.verifiers = ('recursive',)
  probed = probe.Probe(probe.prepare(x))
  one, loaded = probed.plan.drafters['target'], probed.built
  seen = probe.look(one, loaded, {}, probed.jobs[:1])
  assert seen.accepted.shape[1] == 3
  assert seen.mean == 3


@pytest.fixture(scope='module')
def probed(folder, tmp_path_factory):
  x = experiment(folder, tmp_path_factory.mktemp('probed') / 'a', 'draft')
  return probe.Probe(probe.prepare(x))


@pytest.mark.slow
def test_the_short_probe_finds_the_right_reading(probed, monkeypatch):
  one, loaded = probed.plan.drafters['draft'], probed.built
  jobs = probe.jobs(loaded, 6, 5)
  assert sum(job.live for job in jobs) == 6
  found = probe.short(one, loaded, jobs)
  assert found['best'] == 'the weights of the target'
  assert found['changes'] == {'member': 'target'}
  assert found['best_accepted'] == found['gamma'] == 3
  assert (found['alternatives'], found['prompts']) == (1, 6)
  # Texts without a whole draft say nothing.
  none = Look(np.zeros(8, int), np.zeros((8, 3)))
  monkeypatch.setattr(probe, 'look', lambda *_: none)
  assert probe.short(one, loaded, probed.jobs) == {}
  with pytest.raises(UserError, match='all texts of the target end within 3'):
    probed.run()


@pytest.mark.slow
def test_a_reading_that_overflows_accepts_nothing(probed, monkeypatch):
  head, loaded = probed.plan.drafters['draft'], probed.built
  watch, calls = replay.watch, []

  def overflows(*args):
    calls.append(args)
    if len(calls) == 1:
      raise measure.NotFinite('logits')
    return watch(*args)

  jobs = probed.jobs
  monkeypatch.setattr(replay, 'watch', overflows)
  seen = probe.look(head, loaded, {'member': 'target'}, jobs)
  assert seen.places.tolist() == [6] * 8
  assert not seen.accepted.any()
  calls.clear()
  with pytest.raises(measure.NotFinite):
    probe.look(head, loaded, {}, jobs)


def read(name, read_as):
  """A shipped head, read as these values say."""
  kind = name.rstrip('13')
  # Blocks as long as those it was trained with.
  more = {'block': 8} if kind == 'dflash' else {}
  return Candidate(kind, 3, pair.path(name), {'read_as': read_as} | more)


# One mistake each, and of a head that is trained for the embedded target.
MISTAKES = {
  'a layer too early': ('eagle1', {'taps': (1,)}),
  'the feature before the token': ('eagle1', {'feature_first': True}),
  'tokens as they are, of version 3': (
    'eagle3',
    {'norms': ('feature', 'layer', 'last')},
  ),
  'heads that are one place off': ('medusa', {'skip': 1}),
  'a block that turns too slowly': ('dflash', {'rope_theta': 1e6}),
}


def meaning(head, fields):
  """What a head's configuration says, with other values of some fields."""
  kind = head.rstrip('13')
  read = {
    'eagle': sizes_of,
    'medusa': functools.partial(overrides.pick, Reading),
    'dflash': module.sizes_of,
  }[kind]
  return read(files.read_config(pair.path(head), kind) | fields)


@pytest.mark.slow
@pytest.mark.parametrize('head', ['eagle1', 'eagle3', 'medusa', 'dflash'])
def test_planted_mistakes_are_found_and_the_right_reading_is_right(
  head, tmp_path, monkeypatch
):
  seen, look = {}, probe.look

  def once(one, loaded, changes, jobs):
    """Looks at the readings of the right head alone.

    A mistaken head is read in some of these ways. In the others it is wrong
    twice, and accepts nothing.
    """
    options = {**one.options, **changes}
    key = meaning(head, options.pop('read_as', {})), str(options)
    if one.name == 'right':
      seen[key] = look(one, loaded, changes, jobs)
    assert changes or key in seen
    base = next(iter(seen.values()))
    return seen.get(key, base._replace(accepted=np.zeros_like(base.accepted)))

  monkeypatch.setattr(probe, 'look', once)
  mistakes = {n: m for n, (h, m) in MISTAKES.items() if h == head}
  x = Experiment(
    'probe',
    Checkpoint(pair.path('target')),
    {'right': read(head, {})}
    | {name: read(head, fields) for name, fields in mistakes.items()},
    results=str(tmp_path / 'a'),
    prompts=tiny.Prompts(count=4),
    max_new_tokens=24,
  )
  probed = probe.Probe(probe.prepare(x))
  probed.run()
  best = report.verdicts(probed.folder.rows)
  assert best['best'].pop('right') == CONFIGURED
  for name, changes in best['changes'].items():
    if name != 'right':
      assert best['best'][name] != CONFIGURED, name
      # What is found is what the head's files say.
      assert meaning(head, changes['read_as']) == meaning(head, {}), name


def test_a_head_of_others_is_probed_before_a_run(capsys):
  unverified = types.SimpleNamespace(drafter='head', brings={'pairing': 'x'})
  own = types.SimpleNamespace(drafter='own', brings={})
  runner = types.SimpleNamespace(
    readings={},
    complete=lambda: False,
    plan=types.SimpleNamespace(drafters={'head': 'planned'}),
    built=types.SimpleNamespace(
      methods=[unverified, own], job='job', prompts={}
    ),
  )
  runner.built.target = types.SimpleNamespace(
    model=types.SimpleNamespace(placement=None)
  )
  found = {
    'best': 'taps (1,)', 'changes': {'read_as': {'taps': (1,)}},
    'alternatives': 5, 'gamma': 3, 'configured': 0.02, 'best_accepted': 1.5,
    'prompts': 8,
  }  # fmt: skip
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(probe, 'has_alternatives', lambda one: one == 'planned')
    patch.setattr(probe, 'jobs', lambda *_: ['jobs'])
    patch.setattr(probe, 'short', lambda one, loaded, jobs: found)
    run.probe(runner)
  assert runner.readings == {'head': {'reading': results.plain(found)}}
  told = capsys.readouterr().err
  assert 'head is read wrongly: taps (1,) accepts 1.50 of 3' in told
  rows = [{'drafter': 'head', 'pairing': 'unverified', 'reading': found}]
  assert "{'read_as': {'taps': (1,)}}" in ' '.join(
    run_report.pairing(rows).split()
  )
  right = found | {'best': CONFIGURED}
  said = ' '.join(run_report.pairing([rows[0] | {'reading': right}]).split())
  assert 'read as it is configured (0.02 of 3 drafted tokens' in said
