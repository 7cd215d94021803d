"""A service for clients of the OpenAI API, in the rows of pools.

Read a request in this order:

  refusals   what a client did wrong, as the API says it
  kinds      what a value of a request is
  contents   its messages, prompts and prediction
  fields     what a request may say
  rendering  prompts and conversations as token ids
  schemas    JSON schemas, compiled beside the event loop and kept
  texts      one text of an answer: its tokens become text, up to a stop string
  worker     the thread that owns the pools
  opening    the pools of a pair, one of them for predictions
  service    from a request to texts in the pool
  spelling   log-probabilities of tokens
  replies    what is sent
  counters   what Prometheus reads
  app        addresses
  running    listening, and ending in time
"""
