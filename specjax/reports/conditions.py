"""Where and how rows were measured, in words."""

from collections.abc import Iterable

from specjax.reports.markdown import span

_OVER_BLOCKS = (
  'Measured over plain decoding with weights in blocks, which is not the '
  'fastest everywhere.'
)
_LAYOUTS = {
  'whole': 'whole weights',
  'native': 'the C kernel',
  'uniform': 'uniform passes',
  'blocked': 'blocked weights',
}
_VERSIONS = (('jax', 'jax'), ('python', 'Python'))


def values(rows: list[dict], name: str) -> str:
  """Returns the values of a field, in words; '' if rows lack it."""
  distinct = dict.fromkeys(str(r.get(name)) for r in rows)
  return ' and '.join(value for value in distinct if value != 'None')


def machine(rows: list[dict], facts: Iterable[str] = ()) -> str:
  """'On an abacus: batch 1, jax 0.10.2', as a clause.

  Args:
    rows: of one program.
    facts: what else is said between the device and the versions; '' is not.
  """
  versions = rows[0].get('versions') or {}
  details = [fact for fact in facts if fact]
  if all(row.get('xla_threads') == 1 for row in rows):
    details.append('XLA on one thread')
  details += [
    f'{word} {versions[key]}' for key, word in _VERSIONS if key in versions
  ]
  where = f'On {values(rows, "device") or "an unknown device"}'
  return f'{where}: {", ".join(details)}' if details else where


def baseline(rows: list[dict]) -> str:
  """Says how plain decoding was chosen; '' if one way alone was tried."""
  baselines = [row['baseline'] for row in rows if row.get('baseline')]
  names = dict.fromkeys(one.get('layout') for one in baselines)
  layouts = ' and '.join(_LAYOUTS[name] for name in names if name)
  if not layouts:
    return ''
  tried = max(len(one.get('seconds_per_step') or ()) for one in baselines)
  text = f'plain decoding with {layouts}'
  if tried < 2:
    return text
  best = 'the faster of two' if tried == 2 else f'the fastest of {tried}'
  return f'{text}, {best} layouts'


def over_blocks(rows: list[dict]) -> str:
  """Warns of times over a layout that was not chosen as the fastest."""
  timed = (r for r in rows if r.get('timed') or r.get('speedup') is not None)
  return '' if all(row.get('baseline') for row in timed) else _OVER_BLOCKS


def conditions(rows: list[dict]) -> str:
  """Says where and how prompts were decoded, as a clause."""
  forms = (
    ('batch {}', 'batch'),
    ('{} prompts of each domain', 'prompts'),
    ('{} new tokens each', 'new_tokens'),
    ('{}', 'dtype'),
    ('weights in {}', 'weights'),
  )
  facts = [(form, values(rows, name)) for form, name in forms]
  sizes = [row['batch'] for row in rows if row.get('batch') is not None]
  if len({*sizes}) > 1:
    facts[0] = forms[0][0], span(sizes, 'd')
  text = machine(rows, [form.format(known) for form, known in facts if known])
  parts = [text, baseline(rows), _language(rows)]
  return '; '.join(part for part in parts if part)


def _language(rows: list[dict]) -> str:
  """Says what constrained the texts; '' if nothing did."""
  names = dict.fromkeys(
    r['constraint']['what'] for r in rows if 'constraint' in r
  )
  if not names:
    return ''
  ended = [row['ended'] for row in rows if 'ended' in row]
  shares = list(dict.fromkeys(f'{x:.0%}' for x in (min(ended), max(ended))))
  cut = '' if min(ended) == 1 else ', and the others were cut'
  return (
    f'all texts within {" and ".join(names)}, of which {" to ".join(shares)} '
    f'ended by themselves{cut}'
  )
