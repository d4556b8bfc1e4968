"""`postmortem layout` inside the user's program: gradients whose strides differ from those of their parameter.

The first process that imports torch does not go on itself: it forks a copy that is looked at (`runs`), and then, for
each change that could help, one or two copies with that change (`changes`), under DistributedDataParallel with gloo
(`replicas`). So torch is imported once. `look` is what happens in a copy; what it notes is read back by `told`.
"""
