"""The local training of every method, in this library and as a PyTorch loop."""
