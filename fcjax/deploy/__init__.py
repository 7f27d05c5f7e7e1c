"""From a simulation to a real federation: the parts of the server and of a client.

`fcjax.deploy.cut` divides a method into these parts, `fcjax.deploy.app` writes an app
for a run, and `fcjax.deploy.flower` runs the parts with Flower.
"""

__all__: list[str] = []
