"""Privacy of the clients' uploads, as pure functions of arrays."""

__all__: list[str] = []
