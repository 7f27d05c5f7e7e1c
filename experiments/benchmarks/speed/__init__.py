"""The local training of every method, in fcjax and as a PyTorch loop."""
