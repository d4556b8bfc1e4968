"""Silent faults: trainings that raise no error, produce no NaN, and do not learn as they should.

`observe` runs inside the user's program and writes what happens there as facts (`facts`), one file per process. `look`
reads such a file. `faults` holds one file per fault: it judges a look, without torch and without the program. `source`
reads the user's code, to find a line. `judge` asks all faults.
"""
