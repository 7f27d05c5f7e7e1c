"""The tables and figures of the FedCRef paper."""
