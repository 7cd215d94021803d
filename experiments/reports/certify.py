"""The certificate's rows as tables, and what they amount to."""

from experiments.reports.markdown import markdown


def _part(rows: list[dict], part: str) -> list[dict]:
  return [row for row in rows if row['part'] == part]


def _by_case(rows: list[dict]) -> dict[tuple, list[dict]]:
  """Rows of each rule, drafter and model: one for every setting."""
  cases: dict[tuple, list[dict]] = {}
  for row in rows:
    key = row['rule'], row['drafter'], row['model']
    cases.setdefault(key, []).append(row)
  return cases


def _loop_cells(loops: list[dict]) -> list[str]:
  """Least p-value of a setting, that of all together, texts, and power."""
  if not loops:
    return ['not run', '-', '-', '-']
  together = next(r for r in loops if r['setting'] == 'all')
  single = [r for r in loops if r is not together]
  return [
    f'{min(r["p_value"] for r in single):.2g}',
    f'{together["p_value"]:.2g}',
    f'{sum(r["samples"] for r in single):,}',
    '-' if together['power'] is None else f'{together["power"]:.3f}',
  ]


def laws(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """One line for every rule and drafter, the worst of its settings."""
  loops = _by_case(_part(rows, 'loop'))
  lines = []
  for key, cells in _by_case(_part(rows, 'law')).items():
    rule, drafter, model = key
    lossless = cells[0]['lossless']
    error = max(c['max_error'] for c in cells)
    far = max(c['total_variation'] for c in cells)
    one = next(c for c in cells if c['setting'] == 'T 1')
    lines.append(
      [
        rule if lossless else f'{rule} (lossy)',
        drafter if model == 'table' else f'{drafter}, {model}',
        str(len(cells)),
        f'{error:.0e}' if lossless else '-',
        f'{far:.0e}' if lossless else f'{far:.3f}',
        f'{one["calls"]:.3f}',
        *_loop_cells(loops.get(key, [])),
      ]
    )
  head = [
    'rule',
    'draft',
    'settings',
    'largest error',
    'total variation',
    'calls at T 1',
    'loop: least p-value',
    'of all',
    'texts',
    'power',
  ]
  return head, lines


def settings(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """One line for every setting, the worst of the exact rules."""
  lines: list[list[str]] = []
  part, loops = _part(rows, 'law'), _part(rows, 'loop')
  for name in dict.fromkeys(r['setting'] for r in part):
    cells = [r for r in part if r['setting'] == name and r['lossless']]
    ran = [r for r in loops if r['setting'] == name]
    least = min((r['p_value'] for r in ran), default=None)
    lines.append(
      [
        name,
        str(len(cells)),
        f'{max(c["max_error"] for c in cells):.0e}',
        str(len(ran)),
        '-' if least is None else f'{least:.2g}',
      ]
    )
  return [
    'setting',
    'exact cases',
    'largest error',
    'loops',
    'least p-value',
  ], lines


def numbers(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  """Checks of the measuring code; certificates of older programs have none."""
  lines = [
    [
      row['check'],
      f'{row["deviation"]:.2g}',
      f'{row["bound"]:.2g}',
      'OFF' if _is_off(row) else 'yes',
    ]
    for row in _part(rows, 'numbers')
  ]
  return ['what is known', 'off by', 'at most', 'holds'], lines


def _is_off(row: dict) -> bool:
  # A deviation that is no number is none within the bound.
  return not row['deviation'] <= row['bound']


def mutants(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = []
  for row in _part(rows, 'mutant'):
    unit = {
      'law of the text': f'error {row["evidence"]:.2g}',
      'loop': f'p = 1e-{row["evidence"]:.0f}',
      'memory': f'q off by {row["evidence"]:.2g}',
      'numbers': f'off by {row["evidence"]:.2g}',
    }[row['test']]
    if row['test'] == 'loop' and row['evidence'] >= 300:
      unit = 'p < 1e-300'
    verdict = 'yes' if row['caught'] else 'SURVIVED'
    lines.append([row['mutant'], row['test'], row['setting'], unit, verdict])
  return ['planted bug', 'seen in', 'setting', 'evidence', 'caught'], lines


def published(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = [
    [
      row['rule'],
      row['source'],
      f'{row["published"]:.4f}',
      f'{row["accepted"]:.4f}',
    ]
    for row in _part(rows, 'published')
  ]
  return ['rule', 'example', 'accepted (paper)', 'accepted (here)'], lines


def block(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = [
    [
      f'{row["temperature"]:g}',
      str(row['gamma']),
      str(row['pairs']),
      f'{row["least"]:.1e}',
      f'{row["mean"]:.4f}',
    ]
    for row in _part(rows, 'block')
  ]
  return ['temperature', 'gamma', 'random pairs', 'least', 'mean'], lines


def arithmetic(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
  lines = []
  for row in _part(rows, 'arithmetic'):
    lines.append(
      [
        row['dtype'],
        row['rule'],
        row['drafter'],
        f'{row["total_variation"]:.1e}',
        f'{row["of_plain"]:.1e}',
      ]
    )
  order = list(dict.fromkeys(line[0] for line in lines))
  lines.sort(key=lambda line: order.index(line[0]))
  return [
    'precision',
    'rule',
    'draft',
    'from plain decoding in it',
    'plain decoding in it from float64',
  ], lines


def text(rows: list[dict]) -> str:
  """The certificate."""
  loops = _part(rows, 'loop')
  sections = (
    ('Law of whole texts', laws),
    ('By setting', settings),
    ('Measuring code', numbers),
    ('Planted bugs', mutants),
    ('Tokens accepted by a step: published examples', published),
    ('Block minus token verification, tokens per step', block),
    ('Precision: total variation of whole texts at T 1', arithmetic),
  )
  tables = [(title, *make(rows)) for title, make in sections]
  parts = [
    f'## {title}\n\n{markdown(head, lines)}\n'
    for title, head, lines in tables
    if lines
  ]
  end = rows[-1]
  parts.append(
    f'{len(loops)} tests of compiled loops share a false-alarm rate: each is '
    f'an alarm below {loops[0]["level"]:.1e}. Power is that of all settings '
    f'together against acceptance {end["boost"]:g} times as likely. Took '
    f'{end["seconds"]:.0f} s on {end["device"]}, jax '
    f'{end["versions"]["jax"]}.\n'
  )
  return '\n'.join(parts)


def verdict(rows: list[dict], bound: float) -> dict:
  """What the last line of the program says."""
  exact = [r for r in _part(rows, 'law') if r['lossless']]
  planted = _part(rows, 'mutant')
  survivors = [r['mutant'] for r in planted if not r['caught']]
  errors = [r for r in exact if r['max_error'] > bound]
  alarms = [r for r in _part(rows, 'loop') if r['p_value'] < r['level']]
  toys = [
    r
    for r in _part(rows, 'published')
    if abs(r['accepted'] - r['published']) > bound
  ]
  worse = [
    r
    for r in _part(rows, 'block')
    if r['least'] < -bound
    or ((r['gamma'] == 1 or r['temperature'] == 0) and abs(r['mean']) > bound)
  ]
  off = [r for r in _part(rows, 'numbers') if _is_off(r)]
  return {
    'max_error': max(r['max_error'] for r in exact),
    'tests': len(_part(rows, 'loop')),
    'alarms': len(alarms),
    'mutants': len(planted),
    'survivors': len(survivors),
    'failures': len(errors + alarms + toys + worse + off) + len(survivors),
  }
