"""The estimates of `specjax compiled`, as tables."""

from specjax.reports.markdown import blocks, markdown, number, paragraph
from specjax.stats import roofline

# Scoring more tokens cannot cost less: plain decoding is badly compiled then.
_FALSE = 0.9


def _milliseconds(value: float) -> str:
  return f'{value * 1e3:.2f}'


def contents(made: dict) -> str:
  """Makes the table of the parts of each program."""
  gpu = made['chip']['clock'] is None
  kinds = list(roofline.PRICES) if gpu else ['kernels', 'cycles']
  head = ['program', *kinds, 'collectives', 'exchanged MB', 'temporary MB']
  head += ['copied at a call: weights MB', 'caches MB']
  sizes = 'exchanged', 'temporary', 'copied_weights', 'copied_caches'
  lines = [
    [
      name,
      *(f'{one[kind]:,}' for kind in kinds),
      ', '.join(f'{n} {kind}' for kind, n in one['collectives'].items()) or '-',
      *(f'{one[field] / 1e6:,.0f}' for field in sizes),
    ]
    for name, one in made['programs'].items()
  ]
  return markdown(head, lines)


def speeds(made: dict) -> str:
  """A table of times and speed-ups, all estimates."""
  head = ['program', 'ms', 'limit, ms', 'over the limit', 'v', 'c', 'tau']
  head += ['speed-up', 'c at the limit', 'speed-up at the limit']
  lines = []
  for name, one in made['programs'].items():
    found, limit = one.get('estimate', {}), one.get('limit', {})
    lines.append(
      [
        name,
        _milliseconds(one['seconds']),
        _milliseconds(one['least_seconds']),
        f'{one["seconds"] / one["least_seconds"]:.2f}',
        number(found.get('v')),
        number(found.get('c'), '.3f'),
        number(one.get('tau')),
        number(found.get('speedup')),
        number(limit.get('c'), '.3f'),
        number(limit.get('speedup')),
      ]
    )
  return markdown(head, lines)


def largest(name: str, one: dict) -> str:
  """A table of where a step takes more than its limit."""
  over = one['seconds'] - one['least_seconds']
  lines = [
    [phase or '-', module or '-', _milliseconds(s), f'{s / over:.0%}']
    for phase, module, s in one['largest']
  ]
  head = ['phase', 'module', 'ms beyond', 'share']
  return f'#### {name}\n\n{markdown(head, lines)}'


def caveats(made: dict) -> str:
  """Says what a device would not hold, and which times are no good, or ''."""
  found, limit = [], made['chip']['memory']
  for name, one in made['programs'].items():
    if (whole := made['held'] + one['temporary']) > limit:
      found.append(
        f'{name} takes {whole / 1e9:.1f} GB with its temporaries, and the '
        f'device has {limit / 1e9:.0f}: it would not run.'
      )
    v = one.get('estimate', {}).get('v', 1.0)
    if v < _FALSE:
      found.append(
        f'v of {name} is {v:.2f}: plain decoding takes longer than to score a '
        'draft, so a speed-up over it is no praise. The speed-up at the limit '
        'is that of two good programs.'
      )
  if made['weights'] != 'floats' and made['chip']['clock'] is None:
    found.append(
      f'weights are {made["weights"]}, and floats that XLA makes of them in '
      'memory are not counted: these times are too good.'
    )
  return '\n\n'.join(map(paragraph, found))


def assumptions(made: dict) -> str:
  """A sentence on what the estimate takes for granted."""
  chip = made['chip']
  memory = (
    f'memory of {chip["bandwidth"] / 1e9:,.0f} GB/s and '
    f'{chip["operations"] / 1e12:,.0f} T operations/s'
  )
  prices = ', '.join(
    f'{price * 1e6:g} us a {what[:-2] if what == "launches" else what[:-1]}'
    for what, price in roofline.PRICES.items()
  )
  if chip['clock'] is None:
    how = (
      f'a step takes its bytes over the {memory}, and {prices} '
      '(prices that are assumed, not measured)'
    )
  else:
    how = (
      f"a step takes its compiler's cycles at {chip['clock'] / 1e9:g} GHz, and "
      f'what is fetched beside over the {memory}'
    )
    for flag, value in made['flags'].items():
      how += f'; compiled with --{flag}={value}'
  accepted = ''
  if made['alpha'] is not None:
    accepted = f' A drafted token is accepted with chance {made["alpha"]:g}.'
  return paragraph(
    f'Assumed: {how}. Loops over the cache in use turn as for {made["used"]} '
    f'slots; exchanges between chips take no time.{accepted}'
  )


def summary(made: dict) -> str:
  """Everything, as markdown."""
  mesh, layers = made['mesh'], made['layers']
  over = ', draft split' if mesh['split_draft'] else ''
  title = paragraph(
    f'*Estimates* for {made["device"]}, which was not there: target '
    f'{made["target"]} of {layers[0]} layers, draft {made["draft"]} of '
    f'{layers[1]}, {made["dtype"]}, weights {made["weights"]}; mesh '
    f'{mesh["data"]} x {mesh["model"]}{over}, batch {made["batch"]}, gamma '
    f'{made["gamma"]}, {made["slots"]} slots, {made["used"]} in use.'
  )
  programs = made['programs'].items()
  return blocks(
    title,
    '### What a step consists of',
    contents(made),
    '### Times and speed-up (estimates)',
    speeds(made),
    caveats(made),
    assumptions(made),
    '### The ten largest times beyond the limit (estimates)',
    paragraph('`-` is what belongs to no phase of a step, or to no module.'),
    *(largest(name, one) for name, one in programs),
  )


def beside(made: dict, row: dict) -> str:
  """Makes a table of the measured costs beside those estimated for a device.

  Args:
    made: the estimate of a chain.
    row: of the same drafter and draft length.
  """
  chain = made['programs']['chain']
  names = {'v': '.2f', 'c': '.3f', 'speedup': '.2f'}
  lines = [
    [where, *(number(one.get(n), f) for n, f in names.items())]
    for where, one in (
      ('measured here', row),
      (f'{made["device"]}, estimate', chain['estimate']),
      (f'{made["device"]}, limit of its memory', chain['limit']),
    )
  ]
  lead = (
    f'{row["drafter"]} with gamma {row["gamma"]} and tau {row["tau"]:.2f}, '
    f'here and on {made["device"]}, where it was compiled, but not run: '
    f'{made["dtype"]}, weights {made["weights"]}.'
  )
  table = markdown(['where', 'v', 'c', 'speed-up'], lines)
  return blocks(paragraph(lead), table, caveats(made), assumptions(made))


def quoted(made: dict | None) -> dict:
  """Returns the fields of a last line that quote an estimate."""
  if made is None:
    return {}
  found = made['programs']['chain']['estimate']
  return {'device': made['device'], 'on_device': found}
