"""A service for clients of the OpenAI API, in the rows of one pool.

body --fields--> Asked --rendering--> token ids --texts--> rows of a pool
answer <--replies-- texts <--worker-- turns of the pool

refusals   what a client did wrong, as the API says it
fields     what a request may say
rendering  prompts and conversations as token ids
schemas    JSON schemas, compiled beside the event loop and kept
texts      one text of an answer: its tokens become text, up to a stop string
worker     the thread that owns the pool
counters   what Prometheus reads
replies    what is sent
service    from a request to texts in the pool
app        addresses
running    listening, and ending in time
"""
