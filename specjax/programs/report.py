"""Makes the page of a run's results again.

  specjax report runs/quickstart-012345

writes report.html from the rows and the recorded texts of a folder, and
steps.svg, a picture of the first steps of one text; no weights are read.
`specjax run` writes them at its end.
"""

import json

from specjax.cli import command
from specjax.reports import page
from specjax.stats import folders


def main(path: str) -> None:
  folder = folders.existing_run(path)
  page.write(folder, folders.read_samples(folder))
  print(json.dumps({'report': str(folder.path / page.FILE)}))


def start() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument('folder', help='of the results')
  command.guard(lambda: main(parser.parse_args().folder))
