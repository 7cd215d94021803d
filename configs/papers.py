"""Published tables: the runs that fill them.

  python -m experiments.tables --config configs/papers.py:leviathan/table3/wmt
  specjax run configs/papers.py:leviathan/table3/wmt

The first prints the paper's numbers beside those of a run of the same config,
if there is one, and notes on the run. Behind the colon stand a paper, a table
and a part of it: without a table the first of the paper is meant, without a
part the first of the table. `results/papers.md` lists them all; the numbers,
the notes and the fields of each config are in `experiments/papers`, one file a
paper.

Where a config has a path such as `google-t5/t5-small`, that is both a name on
the Hugging Face Hub and a folder: fetch it to there with

  hf download google-t5/t5-small --local-dir google-t5/t5-small

or name another place with `--target.path=...`. Data sets of the Hub
need the extra `datasets`; `--prompts.path=FILE` with
`--prompts.dataset=` reads a file instead.
"""

from experiments.papers.published import get_config as get_config
