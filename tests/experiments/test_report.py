"""Figures and the page: right numbers, no markup from outside, bad input."""

import html
import html.parser
import json
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from specjax import reports
from specjax.bench import results
from specjax.errors import UserError
from specjax.programs import report
from specjax.reports import figure_style, plots, step_picture
from specjax.reports import page as report_page
from specjax.reports import run as run_report
from specjax.stats.folders import SAMPLES
from tests.support import browser
from tests.support import rows as made_rows
from tests.support.processes import ROOT

PICTURE = ROOT / 'results/quickstart' / step_picture.FILE
HOSTILE = (
  '</div><script>alert(1)</script><img src=x onerror="a()">\' "$x_{ &amp;'
)
ALLOWED = {
  'html', 'head', 'meta', 'title', 'style', 'body', 'div', 'main', 'h1', 'h2',
  'h3', 'h4', 'p', 'b', 'dl', 'dt', 'dd', 'table', 'thead', 'tbody', 'tr', 'th',
  'td', 'figure', 'img', 'span', 'ul', 'li', 'input', 'label',
  'details', 'summary', 'pre', 'code', 'figcaption',
}  # fmt: skip


def row(**changes):
  """A cell whose numbers can be checked by hand."""
  own = {
    'target': 'big', 'drafter': 'small', 'drafted': 20, 'histogram': [4, 3, 3],
    'tau_without_bonus': 0.9, 'alpha_ci': [0.4, 0.7], 'tau': 1.9,
    'tau_ci': [1.8, 2.0], 'acceptance_by_position': [0.6, 0.3],
    'tokens_per_second': 90.0, 'baseline_tokens_per_second': 60.0,
    'speedup': 1.5, 'speedup_ci': [1.25, 1.625], 'predicted_speedup': 1.6,
    'c': 0.1, 'v': 1.2,
  }  # fmt: skip
  return made_rows.row(**own | changes)


def text(**changes):
  token = {'text': ' a', 'origin': 'accepted', 'chance': 0.25, 'others': []}
  other = {'text': ' b\n', 'chance': 0.125, 'fate': 'rejected'}
  return {
    'drafter': 'small', 'verifier': 'token', 'gamma': 2, 'domain': 'code',
    'temperature': 0.0, 'lossless': True, 'index': 0, 'prompt': 'once',
    'whole_prompt': True, 'continues': True, 'target_calls': 1,
    'tokens': [
      token,
      token | {'text': ' c', 'origin': 'corrected', 'chance': None,
               'others': [other]},
    ],
  } | changes  # fmt: skip


class Page(html.parser.HTMLParser):
  """Elements, attributes and text of a page."""

  def __init__(self, page):
    super().__init__()
    self.elements, self.attributes, self.text = [], [], ''
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    self.attributes += [name for name, _ in attrs]

  def handle_data(self, data):
    self.text += data


def test_markup_from_outside_is_text():
  """Everything that comes from outside is hostile."""
  names = ('drafter', 'domain', 'config', 'target', 'device', 'verifier')
  own = dict.fromkeys(names, HOSTILE)
  versions = {'versions': {HOSTILE: HOSTILE}, 'commit': HOSTILE}
  other = {'text': HOSTILE, 'chance': 0.5, 'fate': 'not judged'}
  token = {'text': HOSTILE, 'origin': 'accepted', 'chance': 0.5}
  texts = [
    text(
      **{name: HOSTILE for name in ('drafter', 'domain', 'verifier')},
      prompt=HOSTILE,
      tokens=[token | {'others': [other]}],
    )
  ]
  page = Page(report_page.render([row(**own, **versions)], texts))
  assert {tag for tag, _ in page.elements} <= ALLOWED
  assert not [name for name in page.attributes if name.startswith('on')]
  images = [a['src'] for tag, a in page.elements if tag == 'img']
  assert len(images) == 3
  assert all(src.startswith('data:image/svg+xml;base64,') for src in images)
  # Prompt, token, what was drafted, headings and tables show it as it is.
  assert page.text.count(HOSTILE) >= 10
  labels = [a['aria-label'] for _, a in page.elements if 'aria-label' in a]
  assert any(HOSTILE in label for label in labels)
  # It asks for nothing from elsewhere.
  links = {'href', 'srcset', 'action', 'data', 'poster', 'background'}
  assert not links & set(page.attributes)
  styles = [a['style'] for _, a in page.elements if 'style' in a]
  assert all(style.startswith('--chance: ') for style in styles)
  source = report_page.render([row()], [text()])
  assert not re.search(r'https?:|url\(|@import', source)
  # The same rows make the same page.
  assert source == report_page.render([row()], [text()])
  assert '1.50' in source
  assert '[1.25' in source


COMMAND = 'specjax run pair --target.path=' + 'a/long/path/' * 12


@pytest.mark.parametrize('width', [1280, 390])
def test_the_first_screen_has_the_answer(width, tmp_path):
  rows = [
    row(drafter=name, command=COMMAND) for name in ('small', *'abcdefghijk')
  ]
  texts = [text(drafter='a'), *(text(temperature=t) for t in (0.0, 1.0))]
  file = tmp_path / 'report.html'
  file.write_text(report_page.render(rows, texts))
  with browser.page(tmp_path, width) as page:
    page.open(file.as_uri())
    assert page.run('document.documentElement.scrollWidth') <= width
    said = page.run("document.querySelector('.lead').innerText")
    assert said.startswith('small, gamma 2, pays: 1.50 [1.25, 1.62] times')
    head = page.run("document.querySelector('main').innerText")
    assert COMMAND in head
    ends = """[...document.querySelectorAll('.lead, .first img, .two .text')]
      .map(x => x.getBoundingClientRect().bottom)"""
    assert len(page.run(ends)) == 4
    if width == 1280:
      assert max(page.run(ends)) < 800
    named = page.run("document.querySelector('.two').innerText")
    assert 'code, temperature 1: small' in named


def figures():
  """Figures of committed rows, and of rows with long names."""
  for folder in ('quickstart', 'batches', 'arrivals'):
    rows = made_rows.committed()[folder]
    for make in reports.figures(rows):
      yield f'{folder}: {make.__name__}', make(rows)
  rows = [
    row(drafter=f'drafter {i} of ' + 'a long name ' * 4, device='W' * 40)
    for i in range(12)
  ]
  for make in run_report.figures(rows):
    yield f'long: {make.__name__}', make(rows)


def beyond_view(figure):
  """Labels of ticks that lie outside of the axes, which are not drawn."""
  for axes in figure.axes:
    for axis in (axes.xaxis, axes.yaxis):
      low, high = sorted(axis.get_view_interval())
      places = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
      yield from (one for at, one in places if not low <= at <= high)


def test_no_text_of_a_figure_is_clipped():
  clipped = []
  for name, figure in figures():
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    width, hidden = figure.bbox.width, [*beyond_view(figure)]
    for one in figure.findobj(Text):
      if one.get_visible() and one.get_text() and one not in hidden:
        box = one.get_window_extent(canvas.get_renderer())
        if box.x0 < -1 or box.x1 > width + 1:
          clipped.append((name, one.get_text()[:60]))
  assert clipped == []


def test_a_figure_has_ten_drafters_of_ten_colours():
  rows = [
    row(drafter=f'd{i}', speedup=1 + i / 9, speedup_ci=None) for i in range(12)
  ]
  (axes,) = plots.drafters(rows).axes
  points = [
    line for line in axes.lines if line.get_marker() not in ('', 'None')
  ]
  assert len({line.get_color() for line in points}) == len(points) == 10
  names = [label.get_text() for label in axes.get_yticklabels()]
  # The first is the one of the run; the others are the fastest.
  assert names == ['d0', *(f'd{i}' for i in range(11, 2, -1))]
  assert points[1].get_xdata()[0] == pytest.approx(1 + 11 / 9)
  figure = plots.speedup_against_gamma(rows)
  assert len(figure.legends[0].get_texts()) == 10
  assert '10 of 12 drafters' in figure.legends[0].get_title().get_text()
  others = [{'drafter': one['drafter']} for one in rows]  # Of another program.
  assert figure_style.few(others) == others[:10]


def test_tokens_are_marked_and_what_was_rejected_can_be_reached():
  shown = Page(report_page.Coloured([text()])._repr_html_())
  spans = [a for tag, a in shown.elements if tag == 'span']
  tokens = [a for a in spans if a.get('class', '').startswith('token ')]
  accepted, corrected = tokens[-2:]
  assert accepted['class'] == 'token accepted'
  assert accepted['style'] == '--chance: 0.250'
  assert 'tabindex' not in accepted
  assert corrected['class'] == 'token corrected'
  assert corrected['tabindex'] == '0'
  assert ' b↵ rejected, accepted with chance 0.12' in shown.text


def test_the_page_says_what_there_is_not():
  made = report_page.render([row(speedup=None)], [])
  assert 'has no recorded texts' in made
  assert 'No time was taken' in made
  figure = plots.speedup_against_gamma([row(speedup=None)])
  assert 'Nothing is left to show' in figure.get_supxlabel()
  assert not figure.axes
  with pytest.raises(ValueError, match='rows is empty'):
    plots.speedup_against_gamma([])


def drawn(axes):
  """Points of each drawn series of some axes."""
  return [line.get_xydata().tolist() for line in axes.lines]


def test_speeds_are_drawn_where_they_were_measured():
  rows = [row(), row(gamma=4, v=1.4, speedup=1.4), row(speedup=None)]
  figure = plots.speedup_against_gamma(rows)
  assert '1 of 3 rows have no times' in figure.get_supxlabel()
  series = drawn(figure.axes[0])
  assert [2.0, 1.5] in [points[0] for points in series]
  assert [4.0, 1.4] in [points[0] for points in series]
  (theory,) = (points for points in series if len(points) > 2)
  # tau 1.75 over 1.2 + 0.2; 1.875 over 1.3 + 0.3, v between 1.2 and 1.4.
  assert theory[2] == pytest.approx([2, 1.75 / 1.4])
  assert theory[3] == pytest.approx([3, 1.875 / 1.6])
  assert theory[5] == pytest.approx([5, 1.96875 / 2.0])
  assert theory[0] == [0, 1]
  # Of trees and lossy rules there is none.
  for changes in ({'drafted': 60}, {'lossless': False}):
    figure = plots.speedup_against_gamma([row(**changes)])
    assert all(len(points) <= 2 for points in drawn(figure.axes[0]))


def test_acceptance_is_drawn_by_position():
  rows = [row(acceptance_by_position=[0.6, None]), row(domain='prose')]
  figure = plots.acceptance_by_position(rows)
  (first,), (second,) = (drawn(axes) for axes in figure.axes)
  assert first[0] == [1, 0.6]
  assert first[1][1] != first[1][1]
  assert second == [[1, 0.6], [2, 0.3]]
  # Many drafters have a legend above the axes.
  rows = [row(drafter=name) for name in 'abcdefghi']
  (legend,) = plots.acceptance_by_position(rows).legends
  assert [text.get_text() for text in legend.get_texts()] == list('abcdefghi')


@pytest.fixture
def folder(tmp_path):
  made = results.Folder(tmp_path / 'a', {'seed': 0})
  made.add(row())
  return made


def test_a_report_is_made_again_without_weights(folder, capsys):
  (folder.path / SAMPLES).write_text(json.dumps(text(prompt='twice')))
  report.main(str(folder.path))
  made = (folder.path / report_page.FILE).read_text()
  assert json.loads(capsys.readouterr().out) == {
    'report': str(folder.path / report_page.FILE)
  }
  assert 'twice' in made
  assert 'pass 1' in (folder.path / step_picture.FILE).read_text()


def test_a_picture_of_steps_shows_whose_each_token_is():
  tokens = (PICTURE.parent / SAMPLES).read_text().splitlines()[0]
  shown = step_picture.passes(json.loads(tokens))
  assert len(shown) == json.loads(tokens)['target_calls']
  for one in shown:
    *drafted, (last, _) = one
    assert last in ('corrected', 'bonus')
    origins = [origin for origin, _ in drafted]
    fate = ['rejected'] if last == 'corrected' else []
    assert origins == ['accepted'] * (len(origins) - len(fate)) + fate
  # The picture of the README is of this text, and small.
  kept = PICTURE.read_text()
  assert len(kept.encode()) <= 60_000
  words = re.findall(r'<text [^>]*>(.*?)</text>', kept)
  wanted = [
    html.escape(words.strip(' ').replace('\n', '↵'), quote=False)
    for one in shown[:10]
    for _, words in one
  ]
  assert [w for w in map(str.strip, words) if w in wanted] == [
    w.strip() for w in wanted
  ]


@pytest.mark.parametrize(
  ('file', 'content', 'message'),
  [
    ('config.json', '', 'has no config.json'),
    ('rows.jsonl', '', 'has no rows yet'),
    (
      'rows.jsonl',
      '{"schema": 1, "drafter": "a"}\n',
      'row 1 has no .*verifier.*another program or an older version',
    ),
    (
      'rows.jsonl',
      json.dumps({'schema': 1} | row(tau='much')) + '\n',
      "row 1 has the tau 'much'",
    ),
    (SAMPLES, '{"drafter": "a"}\n', "cannot be read .*'verifier'.*remove it"),
    (SAMPLES, '[1, 2', 'samples.jsonl cannot be read .*remove it'),
  ],
)
def test_bad_folders_are_refused(folder, file, content, message):
  (folder.path / file).unlink(missing_ok=True)
  if content:
    (folder.path / file).write_text(content)
  with pytest.raises(UserError, match=message):
    report.main(str(folder.path))
  assert not (folder.path / report_page.FILE).exists()
