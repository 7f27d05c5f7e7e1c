"""Clients, server and local training: the only code that reaches across clients."""

__all__: list[str] = []
