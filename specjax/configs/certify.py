"""Exactness of every rule, drafter kind and pipeline setting, as a table.

  specjax certify

Nothing is downloaded or read. Sixteen minutes on two idle cores where programs
are not kept yet. Expect errors below 1e-15, no alarm and no survivor. `--quick`
runs every enumeration, but fewer compiled loops (of token, block and recursive
verification), in less than 90 seconds. `--rule=module.fn`,
`--drafter=module.load` or `--policy=module.fn` certifies that thing alone, in
about 30 seconds of one core with `--quick`.
"""

from specjax.bench.config import Certificate


def get_config() -> Certificate:
  return Certificate()
