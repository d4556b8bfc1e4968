"""A loss or gradient that grows although every value is finite: the command runs again, is measured, and is changed.

`measured` and `changes` work in the process of the program, with `attach.serving`; `course`, `runs` and `explained` in
the launcher, without torch.
"""
