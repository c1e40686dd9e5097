"""Other engines. Each runs in a process of its own, maybe of another Python: `child.py RUNNER`.

A runner is a file with `opened(job)`: it loads the model, and returns its version and a function that
generates replies of given lengths and returns them as lengths. The job is a dict: `folder`, `device`,
`threads` (on a CPU), `context`, `rows` (most replies at once), `quantization` (in the engine's own words;
`none`: the checkpoint's numbers). Runners of other engines, and `child.py`, import only the standard library
and that engine.
"""
