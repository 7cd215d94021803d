"""Estimates the speed of a pair on a GPU or TPU that is not there.

  specjax compiled --device=v5e:2x2 --mesh.model=4

XLA compiles the loop for the device, and what the programs consist of gives
the time of a step. No weight is made and nothing runs. Times are estimates:
good for ratios and for what to change, not for percents. The last line of the
output is one JSON object.
"""

import json

from specjax.bench.compiled import estimate
from specjax.bench.config import Compiled
from specjax.cli import command
from specjax.reports import compiled as report


def main(x: Compiled) -> None:
  made = estimate.estimate(x)
  print(report.summary(made))
  print(json.dumps(made))


def start() -> None:
  command.run(main, Compiled)
