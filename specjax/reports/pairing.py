"""Heads of others in a run: are they for the target, and read rightly?"""

from specjax.reports.markdown import blocks, paragraph
from specjax.stats.readings import CONFIGURED


def reading(name: str, found: dict) -> str:
  """What a short probe found of a head, as a clause.

  Args:
    name: of the drafter.
    found: the field `reading` of its rows.
  """
  own, count = f'{found["configured"]:.2f}', found['alternatives']
  if found['best'] == CONFIGURED:
    return (
      f'{name} is read as it is configured ({own} of {found["gamma"]} drafted '
      f'tokens accepted on {found["prompts"]} prompts), and none of {count} '
      'near alternatives accepts clearly more'
    )
  return (
    f'{name} is read wrongly: {found["best"]} accepts '
    f'{found["best_accepted"]:.2f} of {found["gamma"]} drafted tokens, and as '
    f'it is configured {own} are. Load it with the options '
    f'{found["changes"]}; specjax probe has all alternatives'
  )


def note(rows: list[dict]) -> str:
  """Which drafters may be of another target, and what probes of them found."""
  names = sorted({row['drafter'] for row in rows if row.get('pairing')})
  if not names:
    return ''
  found = {r['drafter']: r['reading'] for r in rows if r.get('reading')}
  doubt = (
    f'Unverified pairing: {", ".join(names)}. No fingerprint says which '
    'weights such a head was trained for: of another target, its drafts are '
    'rejected, and the texts stay the same.'
  )
  probes = [f'{reading(name, found[name])}.' for name in names if name in found]
  return '\n' + blocks(paragraph(doubt), *map(paragraph, probes))
