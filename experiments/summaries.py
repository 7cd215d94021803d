"""The summary of a results folder, from its rows: each kind of rows has one."""

from collections.abc import Callable

from experiments import parity, results
from experiments.certificate import report

Summary = Callable[[list[dict]], str]


def peers(rows: list[dict]) -> str:
  """Decoders of two programs: a table for each temperature and domain."""
  parts = []
  for row in rows:
    if row['method'] == rows[0]['method']:
      parts.append(
        f'\n### {row["domain"]}, temperature {row["temperature"]:g}, '
        f'{row["prompts"]} prompts\n\n'
        '| method | draft | gamma | tokens/s | without the prompt '
        '| x transformers plain | same text |\n|---|---|---|---|---|---|---|'
      )
    low, high = row['speedup_ci']
    decoding = row['decoding_tokens_per_second']
    cells = (
      row['method'],
      row['draft'] or '-',
      row['gamma'] or '-',
      f'{row["tokens_per_second"]:.1f}',
      f'{decoding:.1f}' if decoding else '-',
      f'{row["speedup"]:.2f} [{low:.2f}, {high:.2f}]',
      row.get('greedy_identical', '-'),
    )
    parts.append('| ' + ' | '.join(map(str, cells)) + ' |')
  return '\n'.join(parts).strip() + '\n'


# A field that the rows of a kind have and no other rows do.
_KINDS: tuple[tuple[str, Summary], ...] = (
  ('acceptance_by_position', results.summary),
  ('against', parity.table),
  ('seconds_by_prompt', peers),
  ('part', report.text),
)


def of(rows: list[dict]) -> str | None:
  """The summary of rows; None where they are of no known kind."""
  for field, make in _KINDS:
    if all(field in row for row in rows):
      return make(rows)
  return None
