"""The FedCRef paper."""
