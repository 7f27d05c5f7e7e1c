"""From a simulation to a real federation: the parts of the server and of a client.

`cut` divides a method into these parts. `flower` runs them with Flower.
"""
