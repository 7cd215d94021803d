"""Sentences of the pages that say what committed rows say."""

import textwrap

from experiments.measuring.results import Rows
from experiments.papers import findings as page
from experiments.papers.claims import FAILS, HOLDS, UNDECIDED, pick
from experiments.reports import explain, intervals
from experiments.reports import predict as predict_report
from experiments.reports.sentences_of_drafters import drafters as drafters
from experiments.reports.sentences_of_drafters import (
  drafters_conditions as drafters_conditions,
)
from experiments.reports.words import bullets as _bullets
from experiments.reports.words import conditions
from experiments.reports.words import many as _many
from experiments.reports.words import paragraph as _paragraph
from experiments.reports.words import percent as _percent
from experiments.reports.words import span as _range

_TRAINED = ('draft-64', 'draft-128', 'draft-256')


def quickstart_conditions(rows: Rows) -> str:
  return _paragraph(f'{conditions(rows["quickstart"])}.')


def quickstart(rows: Rows) -> str:
  """What the main job shows."""
  there = rows['quickstart']
  trained = [r for r in there if r['drafter'] in _TRAINED]
  known = [r for r in trained if intervals.stored(r, 'speedup')]
  wins = sum(intervals.above(r, 'speedup', 1) for r in known)
  sure = f', and the interval lies above 1 in {wins} of {len(known)} cells'
  cells = {(r['domain'], r['temperature']) for r in there}
  agree = fastest = 0
  for domain, temperature in cells:
    found = pick(trained, domain=domain, temperature=temperature)
    best = max(found, key=lambda r: r['alpha'])
    agree += best['drafter'] == 'draft-256'
    fastest += max(found, key=lambda r: r['speedup'])['drafter'] == 'draft-256'
  lookup = {t: pick(there, drafter='ngram', temperature=t) for t in (0.0, 1.0)}
  greedy = [r for r in there if not r['temperature'] and r['lossless']]
  same = sum(r['identical_to_plain'] for r in greedy)
  texts = sum(r['prompts'] for r in greedy)
  return _bullets(
    [
      f'the trained drafts reach {_range(r["speedup"] for r in trained)} times '
      f'plain decoding{sure if known else ""}; the largest agrees most often '
      f'in {agree} of {len(cells)} tables and is the fastest in {fastest}',
      'lookup, which wins where text repeats, reaches '
      f'{_range(r["speedup"] for r in lookup[0.0])} at temperature 0 and '
      f'{_range(r["speedup"] for r in lookup[1.0])} at temperature 1',
      f'{_percent(r["repetition"] for r in lookup[0.0])} of the 4-grams of the '
      "target's greedy text are repeats: so small a model loops, and part of "
      'the acceptance at temperature 0 is that. At temperature 1 it is '
      f'{_percent(r["repetition"] for r in lookup[1.0])}',
      f'{same} of {texts} greedy texts are those of plain decoding, token for '
      'token',
    ]
  )


def rules_conditions(rows: Rows) -> str:
  return _paragraph(f'{conditions(rows["rules"])}.')


def rules(rows: Rows) -> str:
  """How fast block verification is beside token verification."""
  there = rows['rules']
  words = []
  for verifier in dict.fromkeys(r['verifier'] for r in there):
    found = pick(there, verifier=verifier)
    words.append(f'{_range(r["speedup"] for r in found)} with {verifier}')
  return _paragraph(
    f'Speed-ups over plain decoding in the same run: {", ".join(words)} '
    'verification.'
  )


def parity(rows: Rows) -> str:
  """How many greedy texts were those of plain decoding, by precision."""
  words = []
  for folder, there in rows.items():
    if not folder.startswith('parity/'):
      continue
    texts = sum(r['compared'] for r in there)
    ties = sum(r['ties'] for r in there)
    bugs = sum(r['bugs'] for r in there)
    same = texts - ties - bugs
    words.append(
      f'{same} of {texts} in {folder.partition("/")[2]}'
      + (
        f' (the others part at {ties} ties and {bugs} bugs)'
        if same < texts
        else ''
      )
    )
  return _paragraph(
    f'On the embedded pair these texts are the same: {"; ".join(words)}.'
  )


def certificate(rows: Rows) -> str:
  """What the certificate planted and found."""
  there = rows['certificate']
  planted = [r for r in there if r['part'] == 'mutant']
  caught = sum(r['caught'] for r in planted)
  loops = [r for r in there if r['part'] == 'loop']
  alarms = sum(r['p_value'] < r['level'] for r in loops)
  return _paragraph(
    f'It plants {len(planted)} bugs and says which test finds each '
    f'({caught} are found): a residual that forgets q, keys tied to positions, '
    'penalties blind to drafted tokens, a cache one slot off, ... Of its '
    f'{len(loops)} tests of compiled loops {alarms} gave an alarm.'
  )


def precision(rows: Rows) -> str:
  """How far low precision moves the law of a whole text."""
  there = [r for r in rows['certificate'] if r['part'] == 'arithmetic']
  words = []
  for dtype in dict.fromkeys(r['dtype'] for r in there):
    far = max(r['total_variation'] for r in pick(there, dtype=dtype))
    words.append(f'{far:.0e} in {dtype}')
  return _paragraph(
    'From plain decoding in the same precision, the law of a text of four '
    f'tokens moves by at most {", ".join(words)} (last table of the '
    'certificate).'
  )


def limit(rows: Rows) -> str:
  """How near a plain step is to what its bytes cost."""
  (found,) = rows['against_huggingface/result.json']
  return _paragraph(
    f'One plain step takes {found["limit_ratio"]:.2f} times what reading its '
    'weights and cache once costs at the bandwidth measured in the same run '
    f'({found["bandwidth_gb_per_second"]:.1f} GB/s): '
    '[results/against_huggingface](results/against_huggingface).'
  )


def findings(rows: Rows) -> str:
  """How many published claims hold here."""
  found = [claim(rows) for claim in page.CLAIMS]
  verdicts = [page.overall(cells) for cells in found if cells]
  said = ', '.join(
    f'{verdicts.count(v)} {word}'
    for v, word in (
      (HOLDS, 'hold'),
      (FAILS, 'do not'),
      (UNDECIDED, 'undecided'),
    )
  )
  cells = [cell.outcome for cells in found for cell in cells]
  return _paragraph(
    f'Of {len(verdicts)} published claims that the embedded pair can speak to: '
    f'{said} (by the mean of the cells of a claim and its interval; of the '
    f'{len(cells)} cells {cells.count(HOLDS)} hold, {cells.count(FAILS)} do '
    'not). '
    '[results/findings.md](results/findings.md) has every cell, and '
    '[results/papers.md](results/papers.md) every published table with what it '
    'needs.'
  )


def explain_conditions(rows: Rows) -> str:
  """Where the speed was explained, and how steady the machine was."""
  there = explain.cells_of(rows['explain'])
  plain = [t for r in there for t in r['seconds_per_step']['plain']]
  low, high = (f'{1e3 * t:.1f}' for t in (min(plain), max(plain)))
  return _paragraph(
    f'{conditions(there)}; a plain step took {low} to {high} ms within the run.'
  )


def explain_verdict(rows: Rows) -> str:
  """The sentence of the verdict."""
  return textwrap.fill(
    explain.decide(rows['explain']).sentence,
    80,
    initial_indent='> ',
    subsequent_indent='> ',
  )


def explain_agreement(rows: Rows) -> str:
  """How well the model of costs meets what was measured."""
  name = 'measured_over_predicted'
  there = explain.cells_of(rows['explain'])
  known = [r for r in there if intervals.stored(r, name)]
  meets = sum(intervals.meets(r, name, 0.95, 1.05) for r in known)
  said = f'Measured over predicted is {_range(r[name] for r in there)}'
  if known:
    met = f'{meets} of {len(known)} cells'
    said += f'; its interval meets 0.95 to 1.05 in {met}'
  return _paragraph(f'{said}.')


def predict(rows: Rows) -> str:
  """How the prediction fared, and what it recommends."""
  board = predict_report.Board(rows['predict'])
  return (
    _paragraph(board.verdict()) + '\n\n' + _paragraph(board.recommendation())
  )


def predict_conditions(rows: Rows) -> str:
  """Where it was predicted, and how steady the machine was."""
  there = pick(rows['predict'], part='replay')
  mine = pick(there, drafter=there[0]['drafter'])
  steps = [1e3 * r['plain_seconds'] for r in pick(rows['predict'], part='cost')]
  return _paragraph(
    f'On {_many(there, "device")}: batch 1, {_many(there, "prompts")} prompts '
    f'of each domain, {sum(r["tokens"] for r in mine):,} tokens of the target '
    f'in all; a plain step took {_range(steps, 1)} ms.'
  )


def maximum(rows: Rows) -> str:
  """What a larger cache costs, and how near a step is to its bytes."""
  there = rows['limit']
  found = [r for r in there if r['sweep'] == 'limit']
  items = []
  for model in dict.fromkeys(r['model'] for r in found):
    small, large = sorted(pick(found, model=model), key=lambda r: r['size'])
    items.append(
      f'{small["parameters"] / 1e6:.0f}M parameters: '
      f'{small["step_ms"]:.1f} ms, {small["limit_ratio"]:.2f} times what '
      'reading its weights and the cache in use takes at '
      f'{small["bandwidth_gb_per_second"]:.0f} GB/s, as measured in the same '
      f'minutes; with {large["size"]:,} slots instead of {small["size"]:,} '
      f'{large["step_ms"] / small["step_ms"]:.2f} times as long'
    )
  for row in there:
    if row['sweep'] == 'transformers' and row['way'] == 'transformers':
      items.append(
        f'transformers takes {row["ratio"]:.2f} times as long for a token on '
        'the same weights'
      )
  return _bullets(items)


def growth(rows: Rows) -> str:
  """With which power of a size a step grows."""
  items = []
  for row in rows['step_costs']:
    if row.get('exponent') is None:
      continue
    mine = pick(rows['step_costs'], sweep=row['sweep'])
    if row is not mine[0]:
      continue
    what = 'scoring' if row['sweep'] == 'gamma' else 'a plain step'
    size = 'gamma + 1' if row['sweep'] == 'gamma' else f'the {row["sweep"]}'
    low, high = row['exponent_ci']
    items.append(
      f'{what} as the power {row["exponent"]:.2f} [{low:.2f}, {high:.2f}] of '
      f'{size}, {mine[0]["size"]:,} to {mine[-1]["size"]:,}'
    )
  return _bullets(items)


def judging(rows: Rows) -> str:
  """The share of a step that sampling and verification take."""
  there = [r for r in rows['step_costs'] if r['sweep'] == 'judge']
  items = []
  for size in sorted({r['size'] for r in there}):
    mine = [r for r in pick(there, size=size) if r['stages'] != 'all']
    worst = max(mine, key=lambda r: r['share'])
    every = pick(there, size=size, stages='all')
    items.append(
      f'{size:,} tokens: {_percent(r["share"] for r in mine)} of a step with '
      f'one stage, the most with {worst["stages"]} at gamma {worst["gamma"]}; '
      f'{max(r["share"] for r in every):.0%} with all of them'
    )
  return _bullets(items)


def simulated(rows: Rows) -> str:
  """Speed-ups for a given acceptance."""
  there = [r for r in rows['step_costs'] if r['sweep'] == 'simulated']
  words = []
  for rate in sorted({r['size'] for r in there}):
    best = max(pick(there, size=rate), key=lambda r: r['speedup'])
    words.append(
      f'{best["speedup"]:.2f} at {rate:g} (gamma {best["gamma"]}, predicted '
      f'{best["predicted_speedup"]:.2f})'
    )
  return _paragraph(
    f'Simulated acceptance gives {", ".join(words)} times plain decoding.'
  )


def many_prompts(rows: Rows) -> str:
  """Where many prompts were measured."""
  there = rows['continuous_batching']
  return _paragraph(
    f'On {_many(there, "device")}, jax {there[0]["versions"]["jax"]}: '
    f'{_many(there, "prompts")} prompts, {_many(there, "batch")} rows, '
    f'temperature {there[0]["temperature"]:g}.'
  )
