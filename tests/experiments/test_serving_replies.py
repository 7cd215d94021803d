"""Several texts of one answer, whose pieces come in any order and size."""

import json
import types

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specjax.serving import replies

DEPTH = 2


def drafted_of(cut, histogram):
  """Tokens drafted in the steps of a text, less than the depth in some."""
  accepted = int(np.arange(DEPTH + 1) @ histogram)
  return min(accepted + len(cut), DEPTH * sum(histogram))


TEXTS = st.lists(
  st.tuples(
    st.lists(st.text('aé日', max_size=3), min_size=1, max_size=4),  # pieces
    st.sampled_from(['stop', 'length']),
    st.tuples(*[st.integers(0, 3)] * (DEPTH + 1)),  # steps by tokens accepted
  ),
  min_size=1,
  max_size=4,
)


def answer(texts, chat, prediction, usage):
  asked = types.SimpleNamespace(
    chat=chat, prediction=prediction, logprobs=None, origins=True, usage=usage
  )
  run = types.SimpleNamespace(
    asked=asked, depth=DEPTH, created=7, seed=3, texts=texts, prompt_tokens=10
  )
  limits = types.SimpleNamespace(model='it')
  service = types.SimpleNamespace(spelled=None, limits=limits)
  return replies.Answer(run, 'name', service)


def pieces_of(texts, draw):
  """(place, piece) of all texts, in a drawn order of places."""
  order = [place for place, (cut, *_) in enumerate(texts) for _ in cut]
  left = [list(enumerate(cut)) for cut, *_ in texts]
  for place in draw(st.permutations(order)):
    number, text = left[place].pop(0)
    cut, finish, histogram = texts[place]
    last, accepted = number + 1 == len(cut), np.arange(DEPTH + 1) @ histogram
    counts = types.SimpleNamespace(
      histogram=np.array(histogram),
      accepted=np.array([accepted, 0]),
      drafted=drafted_of(cut, histogram),
    )
    piece = types.SimpleNamespace(
      text=text, tokens=len(text), said=[], origins=[(text, 'bonus')],
      finish=finish if last else '', counts=counts if last else None,
    )  # fmt: skip
    yield place, piece


@given(
  texts=TEXTS, chat=st.booleans(), prediction=st.booleans(), data=st.data()
)
def test_an_answer_is_its_pieces_and_counts_them_all(
  chat, texts, prediction, data
):
  made, stream = answer(texts, chat, prediction, usage=True), []
  stream += made.begin()
  assert len(stream) == (len(texts) if chat else 0)
  for place, piece in pieces_of(texts, data.draw):
    made.add(place, piece)
    stream += made.part(place, piece)
  stream += made.end()
  body = made.whole()
  words = [''.join(cut) for cut, *_ in texts]
  ends = [finish for _, finish, _ in texts]
  assert [one['index'] for one in body['choices']] == [*range(len(texts))]
  assert [one['finish_reason'] for one in body['choices']] == ends
  assert {one['logprobs'] for one in body['choices']} == {None}
  head = {'created': 7, 'model': 'it', 'seed': 3}
  head['id'] = 'chatcmpl-name' if chat else 'cmpl-name'
  kinds = ['text_completion'] * 2
  if chat:
    kinds = ['chat.completion', 'chat.completion.chunk']
  assert body.items() >= (head | {'object': kinds[0]}).items()
  told = [
    one['message']['content'] if chat else one['text']
    for one in body['choices']
  ]
  assert told == words

  cuts = [cut for cut, *_ in texts]
  assert [[x['text'] for x in c['origins']] for c in body['choices']] == cuts

  histogram = np.sum([h for *_, h in texts], 0)
  steps, accepted = histogram.sum(), int(histogram @ np.arange(DEPTH + 1))
  written = sum(map(len, words))
  drafted = sum(drafted_of(cut, histogram) for cut, _, histogram in texts)
  usage = body['usage']
  assert usage['prompt_tokens'] == 10
  assert usage['completion_tokens'] == written
  assert usage['total_tokens'] == 10 + written
  assert usage['completion_tokens_details'] == {
    'accepted_prediction_tokens': accepted if prediction else 0,
    'rejected_prediction_tokens': drafted - accepted if prediction else 0,
  }
  metrics = body['metrics']['speculative_decoding']
  assert metrics == {
    'mean_acceptance_length': 1 + accepted / steps if steps else None,
    'draft_acceptance_rate': accepted / drafted if drafted else None,
    'acceptance_histogram': histogram.tolist(),
    'num_spec_steps': steps,
    'num_accepted_draft_tokens': accepted,
    'num_draft_tokens': drafted,
    'num_spec_tokens': DEPTH,
  }

  # The stream says the same, part by part.
  assert stream.pop() == replies.DONE
  parts = [json.loads(part.removeprefix(b'data: ')) for part in stream]
  assert parts.pop()['usage'] == usage
  seen, reasons = [''] * len(texts), [None] * len(texts)
  origins = [[] for _ in texts]
  for part in parts:
    assert part['usage'] is None
    assert part.items() >= (head | {'object': kinds[1]}).items()
    (one,) = part['choices']
    place = one['index']
    assert reasons[place] is None  # Nothing follows the reason of an end.
    seen[place] += one['delta'].get('content', '') if chat else one['text']
    reasons[place] = one['finish_reason']
    origins[place] += [x['text'] for x in one['origins']]
  assert (seen, reasons, origins) == (words, ends, cuts)
