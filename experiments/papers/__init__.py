"""The tables and figures of papers as data: what is run for them, how a value is read
off, and what the paper reports. One module a paper; `STUDIES` in it names them."""
