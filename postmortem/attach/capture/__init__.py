"""A capture: the state of a training before one step and the batches of that step, in a folder without pickle.

`values` writes nested values as JSON and tensors, `folder` keeps whole captures only, `state` collects what a program
holds and puts it back, `origin` says where a capture comes from.
"""
