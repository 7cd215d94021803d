"""A service for clients of the OpenAI API, in the rows of pools.

Read a request in this order:

  requests   read or refused, and its prompts as token ids
  schemas    JSON schemas, compiled beside the event loop and kept
  service    the pools of a pair; from a request to texts in a pool
  worker     the thread that owns the pools; tokens become text
  replies    answers: whole, or parts of a stream
  app        addresses, listening, and ending in time
"""
