"""The tables and figures of the papers, described as data.

There is one package per paper. `STUDIES` in its module `studies` has one `Study` per
table or figure: the runs to train, the measure, and the scores that the paper reports.
"""
