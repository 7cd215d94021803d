"""Drafters of a run beside one another: the best of each, and its length."""

from collections.abc import Callable, Sequence

from specjax.reports import intervals, paired
from specjax.reports.intervals import column, columns
from specjax.reports.markdown import Columns, Table, estimated, number
from specjax.reports.verdicts import best, rule, worth
from specjax.stats import metrics
from specjax.stats.row import by_place, group

_NOTE = """
The rule and the draft length of each drafter that are fastest here (by tau
where no time was taken); a lossy rule has a line of its own. Parameters and
bytes are what a drafter has beside the target, as it is run. Training is the
time and the tokens of all its weights, where their files say it.
""".strip()
_CHOICES = """
Exact rules alone. One drafter is named where its interval excludes the numbers
of all others, else two of those that it does not exclude. A cheap draft takes
less than a plain step; where scoring is free, as where weights are read from
slow memory, gamma + 1 tokens are scored in the time of one (v = 1).
""".strip()
_SIZES = """
tau with the tokens that got a logit, and what it changed against all of them,
in percent, paired on prompts; c is the mean over domains.
""".strip()


def parameters(row: dict) -> str:
  """Returns millions of parameters; rows of older programs do not say."""
  count = row.get('parameters')
  return '-' if count is None else f'{count / 1e6:.2f}M' if count else '0'


def size(row: dict) -> str:
  count = row.get('bytes')
  return '-' if count is None else f'{count / 1e6:.1f} MB' if count else '0'


def training(row: dict) -> str:
  """Returns minutes and tokens; nothing to train costs 0."""
  cost = row.get('training')
  if cost is None:
    return '0' if row.get('parameters') == 0 else '-'
  many = cost.get('together', 1)
  others = f', {many} at once' if many > 1 else ''
  return f'{cost["seconds"] / 60:.0f} min, {cost["tokens"] / 1e6:.1f}M{others}'


_COLUMNS: Columns = (
  *columns('drafter', 'draft'),
  ('rule', rule),
  column('gamma'),
  column('alpha', alone=True),
  *columns('tau', 'c', 'v', 'speedup'),
  column('predicted_speedup', alone=True),
  ('parameters', parameters),
  ('bytes', size),
  ('training', training),
)


def of_each(rows: list[dict]) -> list[Table]:
  """Ranks the best of each drafter at each domain and temperature."""
  made = []
  for (domain, temperature), here in by_place(rows).items():
    ranked = sorted(best(here), key=worth, reverse=True)
    title = f'Best of each drafter: {domain}, temperature {temperature:g}'
    made.append(Table.of(title, '' if made else _NOTE, _COLUMNS, ranked))
  return made


# A number of a row, and the ends of its interval.
Valued = Callable[[dict], tuple[float, Sequence[float] | None]]


def _field(name: str) -> Valued:
  return lambda row: (row[name], intervals.stored(row, name))


def _at_no_cost_of_scoring(row: dict) -> tuple[float, list[float] | None]:
  """Returns the speed-up for the tau and c measured, at v = 1."""

  def speed(tau: float) -> float:
    return metrics.predicted_speedup(tau, row['c'], 1.0, row['gamma'])

  ends = intervals.stored(row, 'tau')
  return speed(row['tau']), ends and [*map(speed, ends)]


def _first(rows: list[dict], value: Valued) -> list[dict]:
  """Returns the row of the largest value, and those that it does not exclude.

  Its interval excludes a row whose value is below. Without an interval nothing
  is first, and the result is empty.
  """
  if not rows:
    return []
  top = max(rows, key=lambda row: value(row)[0])
  ends = value(top)[1]
  if ends is None:
    return []
  near = [r for r in rows if r is not top and value(r)[0] >= ends[0]]
  return [top, *sorted(near, key=lambda r: -value(r)[0])]


def _named(rows: list[dict], value: Valued) -> str:
  """Names the first row, or says that it is undecided, and between which."""
  first = _first(rows, value)
  names = [f'{r["drafter"]} {value(r)[0]:.2f}' for r in first[:2]]
  if len(first) > 2:
    names.append(f'{len(first) - 2} more')
  if len(first) > 1:
    return f'undecided: {", ".join(names)}'
  return names[0] if names else ('no interval' if rows else '-')


def choices(rows: list[dict]) -> list[Table]:
  """Says which drafter comes first by what counts, if times are known."""
  rows = best([r for r in rows if r['lossless'] and r['speedup']])
  if len({row['drafter'] for row in rows}) < 2:
    return []
  lines, speed = [], _field('speedup')
  for (domain, temperature), here in by_place(rows).items():
    light = [r for r in _first(here, speed) if r.get('parameters') is not None]
    least = min(light, key=lambda r: r['parameters'], default=None)
    known = [r for r in here if r['c'] is not None]
    cheap = [r for r in known if r['gamma'] * r['c'] < 1]
    free = [r for r in here if r.get('parameters') == 0]
    lines.append(
      [
        domain,
        f'{temperature:g}',
        _named(here, speed),
        f'{least["drafter"]} {parameters(least)}' if least else '-',
        _named(free, speed),
        _named(cheap, _field('tau')),
        _named(known, _at_no_cost_of_scoring),
      ]
    )
  head = ['domain', 'temperature', 'fastest', 'fewest parameters of these']
  head += ['fastest without weights', 'most tau of cheap drafts']
  head += ['fastest where scoring is free']
  return [Table('Which drafter when', _CHOICES, head, lines)]


def tables(rows: list[dict]) -> list[Table]:
  """Compares drafters; rows of older programs lack what is compared."""
  if not all('parameters' in row for row in rows):
    return []
  return [*choices(rows), *of_each(rows)]


def _size(row: dict) -> int:
  """Returns how many tokens get a logit; 0 are all."""
  return row['options'].get('vocabulary', 0)


def _same_but_size(row: dict) -> tuple:
  """Returns what rows share that differ in the size alone."""
  names = 'load', 'draft', 'verifier', 'gamma', 'temperature', 'batch'
  rest = {
    k: v
    for k, v in row['options'].items()
    if k not in ('vocabulary', 'frequencies')
  }
  return *(row.get(name) for name in names), str(rest)


def _tau(row: dict, whole: dict) -> str:
  shown = intervals.shown(row, 'tau')
  if row is whole:
    return shown
  change = paired.difference(whole, row, paired.TAU, relative=True)
  if change is None:
    return shown
  changed = estimated(change, '+.1f')
  return f'{row["tau"]:.2f}, {changed}'


def vocabularies(rows: list[dict]) -> list[Table]:
  """Compares sizes of the vocabulary of each draft at each temperature."""
  alike: dict[tuple, list[dict]] = {}
  for row in rows:
    if row.get('options') is not None:
      alike.setdefault(_same_but_size(row), []).append(row)
  made = []
  for own in alike.values():
    sizes = sorted({_size(row) for row in own}, reverse=True)
    sizes.sort(key=bool)  # All tokens first, then the largest size.
    by_size: dict[int, dict[str, dict]] = {size: {} for size in sizes}
    for row in own:
      by_size[_size(row)][row['domain']] = row
    if len(by_size) < 2 or 0 not in by_size:
      continue
    domains = [domain for (domain,) in group(own, 'domain')]
    lines = []
    for size, here in by_size.items():
      costs = [r['c'] for r in here.values() if r.get('c') is not None]
      one = next(iter(here.values()))
      lines.append(
        [
          str(size or 'all'),
          f'{one["parameters"] / 1e6:.2f}M',
          number(sum(costs) / len(costs) if costs else None, '.3f'),
          *(
            _tau(here[d], by_size[0][d])
            if d in here and d in by_size[0]
            else '-'
            for d in domains
          ),
        ]
      )
    first = own[0]
    title = (
      f'By size of the vocabulary: {first["draft"]}, temperature '
      f'{first["temperature"]:g}'
    )
    head = ['tokens', 'parameters', 'c', *(f'tau, {d}' for d in domains)]
    made.append(Table(title, _SIZES, head, lines))
  return made
