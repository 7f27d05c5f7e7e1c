"""The tables and figures of papers as data: what is run for them, how a value is read
off, and what the paper reports. One folder a paper;
`STUDIES` in its `studies` names them.
"""
