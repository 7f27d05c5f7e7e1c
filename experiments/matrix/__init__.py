"""The table of all methods, data sets and partitions."""
