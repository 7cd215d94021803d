"""The page of promises on the real pair; `test_documents` has its numbers.

The pages of findings name each cell of a claim with its number.
"""

from experiments.papers import findings, real_pair

CLAIMS = {claim.text: claim for claim in real_pair.CLAIMS}
PROMPTS = 20


def wave(level, spread):
  """A number of each prompt, about a level."""
  return [level * (1 + spread * (-1) ** i) for i in range(PROMPTS)]


def replay(drafter, domain, tau=(2.0, 3.0, 4.0)):
  """A row of 100 tokens a prompt; prompts differ more for some drafters."""
  spread = 0.01 + len(drafter) / 1000
  return {
    'part': 'replay', 'drafter': drafter, 'domain': domain, 'temperature': 0.0,
    'prompts': PROMPTS, 'prompts_hash': domain, 'gammas': [2, 4, 8],
    'unit_tokens': [100] * PROMPTS, 'unit_overlap': wave(80, spread),
    'unit_target_calls': [wave(100 / each, spread) for each in tau],
  }  # fmt: skip


def both(rows):
  """Rows as of prompts without times, and with them."""
  return {'real_pair/acceptance/x': rows, 'real_pair/timed/x': rows}


def test_the_page_names_every_claim():
  page = findings.PAGES[1]
  text = findings.text(both([replay('sibling', 'qa')]), page)
  assert text.startswith(f'# {page.title}\n')
  assert all(claim in text for claim in CLAIMS)
  assert '### On questions of fact' in text
  assert '### On code' not in text
